"""The shipped registry is sound, and the lint notices each way in which it could not be."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.implementations.api import SURFACE_METHODS
from dsv4_conformance.spec.requirements import SURFACES, Registry, Requirement, lint, load_registry, read_registry
from dsv4_conformance.suite import ENDPOINT

EXPECTED = [
    *range(1, 20),
    *range(20, 38),
    *range(40, 56),
    *range(60, 66),
    *range(70, 83),
    90,
    92,
    93,
    94,
    *range(100, 104),
    *range(110, 124),
    *range(130, 135),
    *range(140, 156),
    *range(160, 167),
]


def entry(**changes: Any) -> Requirement:
    sound = {
        "id": "INV-01",
        "level": "MUST",
        "title": "A title",
        "text": "It MUST hold.",
        "surfaces": ["SparseDecode"],
        "exactness": "E",
        "source": ["spec §8"],
        "bugs": [{"url": "https://github.com/a/b/pull/1", "engine": "A", "summary": "It did not."}],
    }
    return Requirement.model_validate(sound | changes)


def problems(*entries: Requirement, tested: tuple[str, ...] = ("INV-01",)) -> list[str]:
    return lint(Registry(entries), tested)


def test_shipped_registry_is_sound() -> None:
    registry = load_registry()
    assert lint(registry, registry.ids) == []


def test_shipped_ids_are_complete_and_in_order() -> None:
    assert list(load_registry().ids) == [f"INV-{n:02d}" for n in EXPECTED]


def test_levels_and_surfaces_of_the_special_ones() -> None:
    registry = load_registry()
    should = {
        "INV-52",
        "INV-74",
        "INV-94",
        "INV-102",
        "INV-117",
        "INV-121",
        "INV-142",
        "INV-148",
        *(f"INV-{n}" for n in range(160, 167)),
    }
    assert {r.id for r in registry if r.level == "SHOULD"} == should
    assert registry.get("INV-54").surfaces == ["HeadLayout", "AttentionLayer"]
    assert {surface for r in registry for surface in r.surfaces} == {*SURFACE_METHODS, ENDPOINT}
    assert [r.id for r in registry.of_surface("SlotMapping")] == ["INV-65", "INV-100", "INV-101"]


def test_bugs_are_told_once_per_requirement_and_in_one_line() -> None:
    for requirement in load_registry():
        urls = [bug.url for bug in requirement.bugs]
        assert len(urls) == len(set(urls)), requirement.id
        assert all("\n" not in bug.summary and bug.summary.endswith(".") for bug in requirement.bugs), requirement.id


def test_unknown_ids_get_the_nearest() -> None:
    for wanted, near in (("INV-5", "INV-05, INV-04, INV-06"), ("inv-99", "INV-100, INV-101, INV-102")):
        with pytest.raises(BadInput, match=f"There is no requirement '{wanted}'; the nearest ids are {near}\\.$"):
            load_registry().get(wanted)
    with pytest.raises(
        BadInput, match=r"There is no requirement 'sinks'; the nearest ids are INV-\d+(, INV-\d+){2}\.$"
    ):
        load_registry().get("sinks")


def test_loading_does_not_import_torch() -> None:
    program = (
        "import sys; from dsv4_conformance.spec.requirements import load_registry; "
        "load_registry(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_sound_entry_has_no_problems() -> None:
    assert problems(entry()) == []
    assert problems(entry(level="SHOULD", text="It SHOULD hold.")) == []


BROKEN: dict[str, tuple[Callable[[], list[str]], str]] = {
    "duplicate": (lambda: problems(entry(), entry()), "INV-01 is defined 2 times."),
    "untested": (lambda: problems(entry(), tested=()), "INV-01 has no test."),
    "dangling": (
        lambda: problems(entry(), tested=("INV-01", "INV-77")),
        "INV-77 is named by a test but defined nowhere.",
    ),
    "no title": (lambda: problems(entry(title=" ")), "INV-01: title is empty."),
    "no text": (lambda: problems(entry(text="")), "INV-01: text is empty."),
    "no word": (
        lambda: problems(entry(text="It holds.")),
        "INV-01: text says neither MUST nor SHOULD, but the level is MUST.",
    ),
    "other word": (
        lambda: problems(entry(text="It SHOULD hold.")),
        "INV-01: text says SHOULD, but the level is MUST.",
    ),
    "both words": (
        lambda: problems(entry(level="SHOULD", text="It MUST or SHOULD hold.")),
        "INV-01: text says MUST and SHOULD, but the level is SHOULD.",
    ),
    "word within a word": (
        lambda: problems(entry(text="MUSTARD.")),
        "INV-01: text says neither MUST nor SHOULD, but the level is MUST.",
    ),
    "no surface": (lambda: problems(entry(surfaces=[])), "INV-01: surfaces is empty."),
    "unknown surface": (
        lambda: problems(entry(surfaces=["Decode"])),
        f"INV-01: surface 'Decode' is not one of {', '.join(SURFACES)}.",
    ),
    "no source": (lambda: problems(entry(source=[])), "INV-01: source is empty."),
    "empty source": (lambda: problems(entry(source=[""])), "INV-01: source is empty."),
    "no engine": (
        lambda: problems(entry(bugs=[{"url": "https://a.b/c", "engine": "", "summary": "x"}])),
        "INV-01: bug https://a.b/c lacks an engine or a summary.",
    ),
}


@pytest.mark.parametrize(("found", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_lint_notices(found: Callable[[], list[str]], expected: str) -> None:
    assert expected in found()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "github.com/a/b",
        "http://github.com/a/b",
        "https://",
        "https://github.com",
        "https://github.com/",
        "<https://a.b/c>",
        "https://a.b/c d",
    ],
)
def test_lint_notices_bad_addresses(url: str) -> None:
    bug = {"url": url, "engine": "A", "summary": "x"}
    assert problems(entry(bugs=[bug])) == [f"INV-01: bug url {url!r} is not an https address of a page."]


SOUND = """
[[requirement]]
id = "INV-10"
level = "MUST"
title = "t"
text = "It MUST hold."
surfaces = ["SparseDecode"]
exactness = "E"
source = ["spec §8"]
bugs = []
"""


def test_files_are_merged_in_the_order_of_ids_and_duplicates_survive_to_the_lint(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SOUND)
    (tmp_path / "b.toml").write_text(SOUND + SOUND.replace("INV-10", "INV-100") + SOUND.replace("INV-10", "INV-09"))
    (tmp_path / "notes.md").write_text("not read")
    registry = read_registry(tmp_path)
    assert registry.ids == ("INV-09", "INV-10", "INV-10", "INV-100")
    assert lint(registry, registry.ids) == ["INV-10 is defined 2 times."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[requirement", "broken.toml is not valid TOML"),
        (SOUND.replace("MUST", "MAY", 1), r"broken.toml, requirement.0.level: "),
        (SOUND.replace('"INV-10"', '"INV10"'), r"broken.toml, requirement.0.id: "),
        (SOUND.replace('"E"', '"F"'), r"broken.toml, requirement.0.exactness: "),
        (SOUND.replace('title = "t"\n', ""), r"broken.toml, requirement.0.title: Field required"),
        (SOUND + 'colour = "red"\n', r"broken.toml, requirement.0.colour: Extra inputs"),
        ("[[requirements]]\n", r"broken.toml, requirement: Field required"),
    ],
)
def test_a_broken_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text(content)
    with pytest.raises(HarnessError, match=message):
        read_registry(tmp_path)
