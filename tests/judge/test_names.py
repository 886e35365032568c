"""docs/judge.md tells the names, dtypes, shapes and metadata that the judge takes."""

import re
from pathlib import Path

import pytest

from dsv4_conformance.judge.names import ENTRIES, METADATA, Entry, dtype_text, shape_text

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/judge.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|([^|]*)\|$", re.MULTILINE)


def table(kind: str) -> dict[str, tuple[str, str, bool]]:
    """name -> dtypes, shapes, required, as the document says of this kind of dump."""
    section = DOCUMENT.split(f"A **{kind}** call:")[1].split("\nA **")[0].split("Metadata, all strings")[0]
    rows = ROW.findall(section)
    return {
        name: (dtypes, shapes.replace("`", ""), note.strip().startswith("required"))
        for name, dtypes, shapes, note in rows
    }


def told(entry: Entry) -> tuple[str, str, bool]:
    dtypes = [dtype_text(dtype) for dtype in entry.dtypes]
    shapes = " or ".join(map(shape_text, entry.shapes)).replace("window ", "")
    return (" or ".join([", ".join(dtypes[:-1])] * (len(dtypes) > 1) + dtypes[-1:]), shapes, entry.required)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_document_has_every_tensor(kind: str) -> None:
    entries = {entry.name: told(entry) for entry in ENTRIES[kind] if not entry.name.startswith("extra_")}
    entries["scale"] = (*entries["scale"][:2], True)  # as a tensor or as metadata
    assert table(kind) == entries


def test_extra_scope_has_the_entries_of_the_window() -> None:
    names = {entry.name for entry in ENTRIES["decode"]}
    extra = {name for name in names if name.startswith("extra_")}
    assert extra == {name.replace("window_", "extra_") for name in names if name.startswith("window_")}
    assert all(f"`{name}`" in DOCUMENT for name in extra)


def test_document_has_every_metadata_key() -> None:
    section = DOCUMENT.split("Metadata, all strings")[1].split("**Page bytes.**")[0]
    for key, values in METADATA.items():
        (line,) = [line for line in section.splitlines() if f"`{key}`" in line]
        assert all(f"`{value}`" in line for value in values or ())
