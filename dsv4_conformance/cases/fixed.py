"""Fixed cases: inputs that once failed, as files, planned in every profile that selects their requirement. Torch-free.

The files are those that ``dsv4-conformance soak`` keeps (docs/soak.md). Shipped ones lie in ``cases/fixed/``; more are
read from the folder that DSV4_FIXED_CASES names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.codec import from_data
from dsv4_conformance.cases.identity import case_id
from dsv4_conformance.errors import BadInput

VARIABLE = "DSV4_FIXED_CASES"
FORMAT = 1


@dataclass(frozen=True)
class FixedCase:
    """One case of the suite function ``test``."""

    test: str
    requirement: str
    surface: str
    case: Case


def fixed_cases(test: str, requirement: str, surface: str) -> Iterator[Case]:
    """The fixed cases of one suite function on one surface, in the order of their files' names."""
    for fixed in (*_shipped(), *_added(os.environ.get(VARIABLE, ""))):
        if (fixed.test, fixed.requirement, fixed.surface) == (test, requirement, surface):
            yield fixed.case


def read_fixed(text: str, name: str) -> FixedCase:
    """The case of a file's ``text``. Raises BadInput naming the file if it is none that soak wrote."""
    try:
        data: Any = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("it holds no object")
        if data["format"] != FORMAT:
            raise BadInput(f"its format is {data['format']}, and this version reads {FORMAT}")
        return FixedCase(data["test"], data["requirement"], data["surface"], from_data(data["case"]))
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadInput(f"{name} is no file of a failed case ({what}); take one that soak kept.") from None
    except BadInput as error:
        raise BadInput(f"{name} cannot be read as a failed case: {error}") from None


def file_of(case: str) -> str:
    """The file of the fixed case with this id, if it is one from the folder that DSV4_FIXED_CASES names; else ""."""
    return _files(os.environ.get(VARIABLE, "")).get(case, "")


@cache
def _files(folder: str) -> dict[str, str]:
    paths = sorted(Path(folder).glob("*.json")) if folder else []
    fixed = zip(paths, _added(folder), strict=True)
    return {case_id(one.test, one.requirement, one.case): str(path) for path, one in fixed}


@cache
def _shipped() -> tuple[FixedCase, ...]:
    return _read(resources.files("dsv4_conformance.cases").joinpath("fixed"))


@cache
def _added(folder: str) -> tuple[FixedCase, ...]:
    if not folder:
        return ()
    if not Path(folder).is_dir():
        raise BadInput(f"{VARIABLE} is {folder[:300]!r}, which is no folder; name the one with your fixed cases.")
    return _read(Path(folder))


def _read(folder: Traversable) -> tuple[FixedCase, ...]:
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    return tuple(read_fixed(entry.read_text(encoding="utf-8"), entry.name) for entry in files)
