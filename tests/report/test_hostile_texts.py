"""Whatever an adapter, a case or an error is called: no output is broken by it, and none runs it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsv4_conformance.report import escaping
from dsv4_conformance.report.faults import of_journals
from dsv4_conformance.report.gathering import gather
from dsv4_conformance.report.overview import verdict_lines
from dsv4_conformance.report.writing import files, write
from tests.report import made
from tests.report.malice import HUGE, STRINGS, journal

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
STRUCTURE = {"script": 2, "style": 1, "img": 0, "iframe": 0, "object": 0, "embed": 0, "link": 0, "base": 0, "form": 0}


class Page(HTMLParser):
    """Counts elements, and keeps attributes that could run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.bad: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            harmless = (value or "").startswith(("#", "https://", "http://"))
            link = name in ("href", "src", "xlink:href", "action") and not harmless
            if link or name.startswith("on") or name in ("style", "srcdoc"):
                self.bad.append((name, value))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report per string, and one of all of them side by side."""
    made = {}
    for number, text in enumerate((*STRINGS, HUGE)):
        folder = tmp_path_factory.mktemp("hostile")
        gathered = gather([journal(folder / "j.jsonl", text)])
        write(folder / "out", files(gathered, of_journals(gathered)))
        (folder / "out/terminal.txt").write_text("\n".join(verdict_lines(gathered)))
        made[text[:40] or str(number)] = folder / "out"
    folder = tmp_path_factory.mktemp("hostile")
    gathered = gather([journal(folder / f"{number}.jsonl", text) for number, text in enumerate(STRINGS)])
    write(folder / "out", files(gathered, of_journals(gathered)))
    made["all"] = folder / "out"
    return made


# Kills: |safe in a template; text put into <script> as it is; a link to javascript:.
def test_the_page_has_its_own_elements_only(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        text = (folder / "report.html").read_text()
        page = Page()
        page.feed(text)
        assert {tag: page.tags.count(tag) for tag in STRUCTURE} == STRUCTURE, name
        assert not page.bad, name
        assert not CONTROL.search(text.replace("\n", "")), name
        assert len(text) < 1_500_000, name


# Kills: JSON that ends its script element, or is not JSON any more.
def test_the_pages_data_is_json(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        found = re.search(
            r'<script type="application/json" id="data">(.*?)</script>', (folder / "report.html").read_text()
        )
        assert found is not None, name
        data = json.loads(found[1])
        assert "<" not in found[1], name
        assert sum(len(row[5]) for row in data["cases"]) == 2 * len(data["runs"]), name


# Kills: an unescaped quote, "]]>" or control character in JUnit; a forged case.
def test_junit_is_xml_with_every_case_once(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        tree = ElementTree.parse(folder / "junit.xml").getroot()
        suites = tree.findall("testsuite")
        assert [len(suite.findall("testcase")) for suite in suites] == [2] * len(suites), name
        assert all(suite.get("tests") == "2" and suite.get("failures") == "1" for suite in suites), name
        assert not CONTROL.search((folder / "junit.xml").read_text().replace("\n", "")), name


def test_ctrf_is_json_with_every_case_once(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        told = json.loads((folder / "ctrf.json").read_text())["results"]
        runs = len(told["extra"]["dsv4"])
        assert len(told["tests"]) == told["summary"]["tests"] == 2 * runs, name
        assert told["summary"]["failed"] == told["summary"]["passed"] == runs, name


def test_badges_are_svg_without_scripts(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        made = sorted((folder / "badges").iterdir())
        assert made, name
        for path in made:
            tree = ElementTree.parse(path).getroot()
            assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= {
                "svg",
                "title",
                "rect",
                "path",
                "g",
                "text",
            }
            assert path.stat().st_size < 4000 and re.fullmatch(r"[A-Z]-[\w.-]+\.svg", path.name), name


# Kills: HTML or a table's end in Markdown.
def test_markdown_has_no_html_and_whole_tables(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        text = (folder / "report.md").read_text()
        outside = re.sub(r"(`+).+?\1", "", text)
        assert "<" not in outside and not re.search(r"(?<!\\)\]\(", outside), name
        assert not CONTROL.search(text.replace("\n", "")), name
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            columns = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(columns) == 1, name


def test_the_terminal_is_not_steered(reports: dict[str, Path]) -> None:
    for name, folder in reports.items():
        if (folder / "terminal.txt").exists():
            told = (folder / "terminal.txt").read_text()
            assert not CONTROL.search(told.replace("\n", "")) and len(told) < 20_000, name


def test_escaping_keeps_what_was_said() -> None:
    assert escaping.visible("a\x1b[31m\u202eb\x00\ud800") == "a\\x1b[31m\\u202eb\\x00\\ud800"
    assert escaping.line(" one\n two ") == "one two"
    assert escaping.line("x" * 5000).endswith("… (5,000 characters)")
    assert escaping.markdown("a|b <i> *c* `d` &") == "a\\|b &lt;i&gt; \\*c\\* \\`d\\` &amp;"
    assert escaping.code("a `b` c") == "``a `b` c``" and escaping.code("`a`") == "`` `a` ``"


# Kills: a reason that clears the screen of whoever runs the suites, or that is HTML in `summary`.
def test_summaries_of_runs_are_not_steered(tmp_path: Path) -> None:
    from dsv4_conformance.plugin.journal import read_journal
    from dsv4_conformance.report.markdown import markdown
    from dsv4_conformance.report.terminal import write_summary

    class Reporter:
        def __init__(self) -> None:
            self.lines: list[str] = []
            self.config = self

        def get_verbosity(self) -> int:
            return 1

        def write_line(self, text: str, **_: object) -> None:
            self.lines.append(text)

        def write_sep(self, *_: object, **__: object) -> None:
            pass

    path = made.write(
        tmp_path / "j.jsonl",
        [made.result("INV-01-00000001", "FAIL", reason=text) for text in STRINGS[:1]]  # type: ignore[arg-type]
        + [made.result(f"INV-02-{n:08x}", "CRASH", reason=text) for n, text in enumerate(STRINGS)],  # type: ignore[arg-type]
        problems=STRINGS,
    )
    journal = read_journal(path)
    reporter = Reporter()
    write_summary(reporter, journal, path)  # type: ignore[arg-type]
    for told in (*reporter.lines, markdown(journal)):
        assert not CONTROL.search(told.replace("\n", "")), told
    assert len(reporter.lines) > 2 * len(STRINGS)
    assert "<" not in re.sub(r"(`+).+?\1", "", markdown(journal))
