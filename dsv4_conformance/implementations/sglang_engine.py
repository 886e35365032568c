"""The modules of the installed SGLang, loaded once per process, with sentences for installations that do not fit.

A module is imported when a surface needs it. On a CPU its Triton kernels run in the corrected interpreter.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations import sglang_standins, triton_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

REMEDY = (
    "install `dsv4-conformance[sglang]` and then, alone, a release of it: "
    "`pip install --no-deps sglang==0.5.23` (docs/engines.md names those that were run)"
)
SETTINGS = {
    # What the engine's metadata would ask DeepGEMM and a CUDA planner for; it has torch paths for both.
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_USE_TOPK_V2": "0",
}
"""Environment of the engine where a user has not set it otherwise."""


def check_available(who: str = "sglang") -> None:
    """Raise BadInput, in one sentence, if SGLang is missing or has no DeepSeek-V4 attention with sparse prefill.

    ``who``: the adapter's name, for the sentence."""
    found = release.version()
    if release.folder() is None:
        raise BadInput(f"implementation '{who}' needs the package sglang, which is not installed; {REMEDY}.")
    if not release.exists(release.MODEL) or not release.exists(release.BACKEND):
        what = "is too old" if _numbers(found) < (0, 5, 12) else "is incomplete"
        raise BadInput(
            f"implementation '{who}' finds no DeepSeek-V4 attention in sglang {found}, which {what}; {REMEDY}."
        )
    if not release.has(release.CHUNKS, "SparsePrefillChunkCache"):
        raise BadInput(
            f"implementation '{who}' finds no sparse prefill in sglang {found}, which is "
            f"{'too old' if _numbers(found) < (0, 5, 13) else 'too new'}; {REMEDY}."
        )


def load(device: str) -> None:
    """Prepare the process for the engine on this device. BadInput, in one sentence, if a requirement is missing."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with complete():
        if device == "cpu":
            triton_interpreter.start()
        sglang_standins.install(device)


def module(name: str) -> ModuleType:
    """A module of the release. BadInput, in one sentence, if it cannot be imported."""
    with complete(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its requirements' requirements
        found = import_module(name)
    logging.getLogger(release.PACKAGE).setLevel(logging.ERROR)
    return found


def attribute(name: str, *names: str) -> Any:
    """The first of these names that the module has. BadInput if it has none: a release that does not fit."""
    found = module(name)
    for candidate in names:
        if hasattr(found, candidate):
            return getattr(found, candidate)
    raise misfit(f"{name} has no {' and no '.join(names)}")


def misfit(reason: str) -> BadInput:
    """What is raised for a release that lacks what is driven."""
    fits = f"implementation 'sglang' does not fit sglang {release.version()}"
    return BadInput(f"{fits} ({reason}), which is too new or altered; {REMEDY}.")


@contextmanager
def complete() -> Iterator[None]:
    """Turn what imports raise into BadInput, in one sentence: a missing requirement, or a release that does not fit."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name == release.PACKAGE:
            raise misfit(f"there is no module {error.name}") from None
        raise BadInput(
            f"implementation 'sglang' finds sglang {release.version()} without the module {name!r}, which it imports; "
            "install what it needs with `pip install 'dsv4-conformance[sglang]'`."
        ) from None
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
        raise misfit(" ".join(str(error).split()) or type(error).__name__) from None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; of none, numbers above all."""
    parts = [part for part in version.split(".")[:3] if part.isdigit()]
    return tuple(int(part) for part in parts) or (999,)
