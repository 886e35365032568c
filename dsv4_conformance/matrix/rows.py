"""Rows of a matrix: an implementation, and the tox environment that holds its engine."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.registry import FAULT

HERE = ""
"""Environment of a row that runs in the environment of the command itself."""


@dataclass(frozen=True)
class Row:
    """``implementation`` as ``run --impl`` takes it, in tox environment ``environment`` (HERE: this one)."""

    name: str
    implementation: str
    environment: str = HERE

    @property
    def folder(self) -> str:
        """Name of its folder of results."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.")


def read_rows(words: Sequence[str], known: Collection[str]) -> list[Row]:
    """Rows from words: ``IMPL`` runs here, ``IMPL@ENV`` in tox environment ENV, and ``sglang-0.5.23`` is short for
    ``sglang@sglang-0.5.23``. ``known``: names of implementations.

    Raises BadInput for a word that is none of these, and for two rows of one name.
    """
    rows = [_row(word, known) for word in words]
    for place, row in enumerate(rows):
        if any(row.folder == other.folder for other in rows[:place]):
            raise BadInput(f"the row {row.name!r} is given twice, or its results would lie where another row's do.")
    return rows


def _row(word: str, known: Collection[str]) -> Row:
    implementation, at, environment = word.partition("@")
    if at:
        if not implementation or not environment:
            raise BadInput(f"the row {word!r} lacks a half; write IMPLEMENTATION@TOX-ENVIRONMENT.")
        return Row(word, implementation, environment)
    if word in known or ":" in word or word.startswith(FAULT):
        return Row(word, word)
    plain = word.replace("-", "_")
    if plain in known:
        return Row(word, plain, word)
    fitting = [name for name in known if plain.startswith(f"{name}_")]
    if not fitting:
        raise BadInput(
            f"the row {word!r} begins with no implementation; known are {', '.join(sorted(known))}. Write "
            "IMPLEMENTATION@TOX-ENVIRONMENT to name both."
        )
    return Row(word, max(fitting, key=len), word)
