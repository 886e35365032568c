"""The catalogue's 169 entries and what became of each: modelled, the same mechanism as another, or out of scope."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Status = Literal["modelled", "same", "out"]
FILES = ("S", "V", "F", "T", "H", "O")
"""One file of entries per letter: SGLang, vLLM, kernel libraries, TensorRT-LLM, Hugging Face and training, others."""


class Entry(BaseModel):
    """One public bug. ``title``: what was wrong, in our words; ``urls``: report or fix first; ``engines``: where.

    ``status``: "modelled" (a fault of this id exists), "same" (``as_``: the entry whose model has the same mechanism,
    ``why``: in what it is the same), "out" (``why`` no surface of the suites can express it).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str = Field(pattern=r"^[A-Z]\d{2}$")
    title: str
    urls: tuple[str, ...] = Field(min_length=1)
    engines: tuple[str, ...] = Field(min_length=1)
    status: Status
    as_: str = Field(default="", alias="as")
    why: str = ""

    @model_validator(mode="after")
    def _told(self) -> Entry:
        if (self.status == "same") != bool(self.as_):
            raise ValueError(f"{self.id}: status same, and no other, names another entry in `as`")
        if self.status != "modelled" and not self.why:
            raise ValueError(f"{self.id}: status {self.status} needs a reason in `why`")
        return self


@cache
def entries() -> Mapping[str, Entry]:
    """Every entry by id, in the files' order. Raises ValueError for an id that occurs twice."""
    folder = resources.files("dsv4_conformance.faults").joinpath("accounting")
    found: dict[str, Entry] = {}
    for letter in FILES:
        table = tomllib.loads(folder.joinpath(f"{letter}.toml").read_text(encoding="utf-8"))
        for name, fields in table.items():
            if name in found or name[0] != letter:
                raise ValueError(f"{letter}.toml holds {name}, which is another file's or occurs twice")
            found[name] = Entry(id=name, **fields)
    return found


def entry(name: str) -> Entry:
    """The entry of this id. Raises ValueError for an unknown one."""
    if name not in entries():
        raise ValueError(f"{name} is no entry of the accounting files")
    return entries()[name]
