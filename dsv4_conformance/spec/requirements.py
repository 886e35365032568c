"""Registry of requirements: numbered MUST and SHOULD sentences with their sources and the public bugs that broke them.

The sentences are data, ``spec/requirements/*.toml``, one file per area. Suites name requirements by id; reports and the
traceability matrix read titles and bugs from here. No torch.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.implementations.api import SURFACE_METHODS
from dsv4_conformance.suite import ENDPOINT

RequirementId = Annotated[str, Field(pattern=r"^INV-\d{2,3}$")]

SURFACES = (*SURFACE_METHODS, ENDPOINT)
"""What a requirement can bind: the adapter's surfaces, and a server, which is no adapter and offers no methods."""

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Bug(BaseModel):
    """One public bug report or fix that broke a requirement; ``summary`` is one line in our words."""

    model_config = _STRICT

    url: str
    engine: str
    summary: str


class Requirement(BaseModel):
    """One sentence about DeepSeek-V4 attention.

    ``exactness`` says how a verdict is reached (spec §21): E bit for bit, A within the error budget of a low-precision
    kernel, B as float32 arithmetic, C equal sets, S a statistical test (docs/accuracy.md). ``surfaces``: what it binds.
    """

    model_config = _STRICT

    id: RequirementId
    level: Literal["MUST", "SHOULD"]
    title: str
    text: str
    surfaces: list[str]
    exactness: Literal["E", "A", "B", "C", "S"]
    source: list[str]
    bugs: list[Bug]


class _File(BaseModel):
    model_config = _STRICT

    requirement: list[Requirement]


@dataclass(frozen=True)
class Registry:
    """All requirements in the order of their ids; may hold duplicates, which ``lint`` reports."""

    requirements: tuple[Requirement, ...]

    def __iter__(self) -> Iterator[Requirement]:
        return iter(self.requirements)

    @property
    def ids(self) -> tuple[str, ...]:
        """Every id, in order."""
        return tuple(requirement.id for requirement in self.requirements)

    def get(self, requirement_id: str) -> Requirement:
        """The requirement with this id. Raises BadInput naming the nearest ids if there is none."""
        for requirement in self.requirements:
            if requirement.id == requirement_id:
                return requirement
        near = ", ".join(_nearest(requirement_id, self.ids))
        raise BadInput(f"There is no requirement {requirement_id!r}; the nearest ids are {near}.")

    def of_surface(self, surface: str) -> tuple[Requirement, ...]:
        """Requirements that bind one surface, in order."""
        return tuple(requirement for requirement in self.requirements if surface in requirement.surfaces)


@cache
def load_registry() -> Registry:
    """The shipped registry. Raises HarnessError if a data file is broken."""
    return read_registry(files("dsv4_conformance.spec").joinpath("requirements"))


def read_registry(folder: Traversable) -> Registry:
    """Registry of every ``*.toml`` in a folder. Raises HarnessError naming the file and entry that is malformed."""
    found: list[Requirement] = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".toml"):
            continue
        try:
            found += _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).requirement
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise HarnessError(f"{file.name} is not valid TOML: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise HarnessError(f"{file.name}, {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return Registry(tuple(sorted(found, key=lambda requirement: _number(requirement.id))))


def lint(registry: Registry, tested_ids: Iterable[str]) -> list[str]:
    """Problems of a registry against the ids that tests name, one sentence each; empty when it is sound."""
    tested = set(tested_ids)
    known = set(registry.ids)
    problems = [f"{name} is defined {n} times." for name, n in Counter(registry.ids).items() if n > 1]
    problems += [f"{name} has no test." for name in registry.ids if name not in tested]
    problems += [f"{name} is named by a test but defined nowhere." for name in sorted(tested - known)]
    for requirement in registry:
        problems += [f"{requirement.id}: {problem}" for problem in _problems(requirement)]
    return problems


def _nearest(wanted: str, ids: tuple[str, ...]) -> list[str]:
    digits = re.search(r"\d+", wanted)
    if digits is None:
        return get_close_matches(wanted, ids, n=3, cutoff=0.0)
    return sorted(ids, key=lambda known: abs(_number(known) - int(digits.group())))[:3]


def _number(requirement_id: str) -> int:
    return int(requirement_id.removeprefix("INV-"))


def _problems(requirement: Requirement) -> Iterator[str]:
    for field in ("title", "text"):
        if not getattr(requirement, field).strip():
            yield f"{field} is empty."
    words = set(requirement.text.replace(",", " ").replace(".", " ").split()) & {"MUST", "SHOULD"}
    if words != {requirement.level}:
        said = " and ".join(sorted(words)) or "neither MUST nor SHOULD"
        yield f"text says {said}, but the level is {requirement.level}."
    if not requirement.surfaces:
        yield "surfaces is empty."
    for surface in requirement.surfaces:
        if surface not in SURFACES:
            yield f"surface {surface!r} is not one of {', '.join(SURFACES)}."
    if not requirement.source or not all(source.strip() for source in requirement.source):
        yield "source is empty."
    for bug in requirement.bugs:
        if not _is_web_address(bug.url):
            yield f"bug url {bug.url!r} is not an https address of a page."
        if not bug.engine.strip() or not bug.summary.strip():
            yield f"bug {bug.url} lacks an engine or a summary."


def _is_web_address(url: str) -> bool:
    if any(character.isspace() or character in "<>\"'" for character in url):
        return False
    parts = urlsplit(url)
    return parts.scheme == "https" and "." in parts.netloc and len(parts.path) > 1
