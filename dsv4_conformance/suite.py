"""What suite files import to say which requirement a test checks, on which surfaces and with which cases.

Torch-free: suite modules are imported during collection, which must not touch a device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., None])

ATTENTION = ("SparseDecode", "SparsePrefill")
DECODE = ("SparseDecode",)
PREFILL = ("SparsePrefill",)
ENDPOINT = "Endpoint"
"""A served model. It is named by --dsv4-endpoint, not offered by an adapter."""


@dataclass(frozen=True)
class TestSpec:
    """Requirement, surfaces and case family of one test function."""

    __test__ = False

    requirement: str
    surfaces: tuple[str, ...]
    family: str


def requirement(req_id: str, *, on: tuple[str, ...], cases: str) -> Callable[[F], F]:
    """Mark a test function: it checks ``req_id`` on each surface of ``on``, with cases of family ``cases``.

    The function takes the fixtures ``subject`` (runs and judges the implementation, runner/subject.py) and ``case``.
    """

    def mark(function: F) -> F:
        function.dsv4 = TestSpec(req_id, on, cases)  # type: ignore[attr-defined]
        return function

    return mark
