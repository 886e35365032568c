"""Links between the project's documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "golden/**/*.md", "suites/**/*.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(markdown: str) -> str:
    """The document without its fenced blocks and inline code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL))


def anchors(markdown: str) -> set[str]:
    """The ids that headings get: lower case, spaces to hyphens, other punctuation gone."""
    headings = re.findall(r"^#+ (.+?) *$", re.sub(r"^```.*?^```$", "", markdown, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path) -> list[str]:
    """Relative links of a document whose file or heading does not exist."""
    found = []
    for link in LINK.findall(prose(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert not broken(document)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two` §3.1: three\n")
    document = tmp_path / "a.md"
    document.write_text("[x](b.md#one-two-31-three) [x](#a) [y](c.md) [z](b.md#four) `[n](n.md)` [w](https://w)\n# A\n")
    assert broken(document) == ["c.md", "b.md#four"]
