"""Cases of the Endpoint surface: one per accuracy task. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.cases.profiles import Size

TASKS = ("gsm8k", "aime25")


@dataclass(frozen=True)
class AccuracyCase(_Described):
    """One accuracy task; how it is asked stands in the golden that it is compared with. ``seed`` changes nothing."""

    surface: str
    task: str
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return self.task


def tasks(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Every task. The questions are the same whatever the seed."""
    for task in TASKS:
        yield AccuracyCase(surface, task, seed)


ACCURACY_FAMILIES = {"accuracy_tasks": tasks}
