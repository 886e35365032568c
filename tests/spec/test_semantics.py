"""docs/semantics.md has every section that code and requirements cite, and its tables say what the code says."""

import re
from pathlib import Path

from dsv4_conformance.spec.geometry import FLASH, PRO
from dsv4_conformance.spec.kv_layout import INDEX_KEY_FP4, INDEX_KEY_FP8, PageLayout, Ue8m0Floor
from dsv4_conformance.spec.requirements import load_registry

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "semantics.md").read_text()
CITATION = re.compile(r"[Ss]pec §(\d+(?:\.\d+)?(?:(?:, | and |-)(?:§)?\d+(?:\.\d+)?\b)*)")


def headings() -> set[str]:
    return set(re.findall(r"^#{2,3} §(\d+(?:\.\d+)?) ", DOCUMENT, re.MULTILINE))


def cited(text: str) -> set[str]:
    """Section numbers that a text cites as "spec §9.1", "spec §8, §10" or "spec §9.1-9.2"."""
    return {number for found in CITATION.findall(text) for number in re.findall(r"\d+(?:\.\d+)?", found)}


def section(number: str) -> str:
    """Text of a section, up to the next heading of the same depth or above."""
    depth = "###" if "." in number else "##"
    start = DOCUMENT.index(f"\n{depth} §{number} ")
    end = re.search(rf"\n#{{2,{len(depth)}}} ", DOCUMENT[start + 1 :])
    return DOCUMENT[start : start + 1 + end.start()] if end else DOCUMENT[start:]


def row(start: str, number: str) -> list[str]:
    """Cells of the one table row of a section that starts with ``start``."""
    (line,) = re.findall(rf"^\| {re.escape(start)} \|.*$", section(number), re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_citations_resolve() -> None:
    missing: dict[str, set[str]] = {}
    for folder in ("dsv4_conformance", "suites"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".toml") and (unknown := cited(path.read_text()) - headings()):
                missing[str(path.relative_to(ROOT))] = unknown
    assert not missing


def test_citation_reader() -> None:
    text = "(spec §9.1) Spec §8, §10. spec §13.5; spec §22, doubt 11; spec §9.1-9.2, spec §3 and §4; §99"
    assert cited(text) == {"9.1", "8", "10", "13.5", "22", "9.2", "3", "4"}


def test_doubts_that_requirements_cite_are_listed() -> None:
    listed = set(re.findall(r"^\| (\d+) \| ", section("22"), re.MULTILINE))
    wanted = {
        number
        for requirement in load_registry()
        for source in requirement.source
        if "doubt" in source
        for number in re.findall(r"\d+", source.split("doubt")[1])
    }
    assert wanted and wanted <= listed


def test_page_table() -> None:
    for size in (256, 64, 2):
        layout = PageLayout(size)
        assert row(str(size), "9.1")[2:] == [
            str(n) for n in (layout.scale_offset(0), layout.raw_bytes, layout.page_bytes)
        ]


def test_index_key_and_floor_tables() -> None:
    assert row("fp8 (default)", "9.3")[1:3] == [str(INDEX_KEY_FP8.key_bytes), str(INDEX_KEY_FP8.page_bytes)]
    assert row("fp4 (option)", "9.3")[1:3] == [str(INDEX_KEY_FP4.key_bytes), str(INDEX_KEY_FP4.page_bytes)]
    for floor in Ue8m0Floor:
        assert row(f"`{floor.value}`", "9.2")[2] == str(floor.min_byte)


def test_constants_table() -> None:
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "q_lora_rank", "max_position_embeddings"):
        assert row(name, "1")[1:] == [str(getattr(FLASH, name)), str(getattr(PRO, name))]
    assert row("index_topk", "1")[1:] == [f"**{FLASH.index_topk}**", f"**{PRO.index_topk}**"]


def test_every_requirement_is_in_the_overview() -> None:
    table = {file: ids for file, ids in re.findall(r"^\| (\w+\.toml) \| INV-([^|]*) \|", section("21"), re.MULTILINE)}
    folder = ROOT / "dsv4_conformance" / "spec" / "requirements"
    for path in folder.glob("*.toml"):
        written = {int(n) for n in re.findall(r'^id = "INV-(\d+)"', path.read_text(), re.MULTILINE)}
        told: set[int] = set()
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", table[path.name]):
            told |= set(range(int(first), int(last or first) + 1))
        assert told == written, path.name
