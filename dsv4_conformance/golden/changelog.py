"""golden/CHANGELOG.md: why each golden file is what it is. Newest entry first; one line per file that changed."""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from dsv4_conformance.errors import BadInput

NAME = "CHANGELOG.md"
SHORT = 12
NEW, REMOVED = "new", "removed"

_LINE = re.compile(r"^- `(?P<path>[^`\n]+)`: (?P<old>\w+) -> (?P<new>\w+)$", re.MULTILINE)
_FIRST_ENTRY = re.compile(r"^## ", re.MULTILINE)
_PREAMBLE = """\
# Changelog of the goldens

Every file that [MANIFEST.json](MANIFEST.json) lists, with the first twelve hex digits of its SHA-256 before and after
each change; the newest entry stands first. `dsv4-conformance golden tensors --write` and `golden record` add them.

"""


def read(folder: Path) -> str:
    """The changelog's text; the preamble alone where there is none yet. Raises BadInput if it cannot be read."""
    path = folder / NAME
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _PREAMBLE
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}); restore it from version control.") from None


def history(text: str) -> dict[str, list[tuple[str, str]]]:
    """Per file the (old, new) short hashes of its entries, newest first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for match in _LINE.finditer(text):
        found.setdefault(match["path"], []).append((match["old"], match["new"]))
    return found


def newest(text: str) -> dict[str, str]:
    """Per file the short hash that its newest entry ends in; a removed file is left out."""
    return {path: entries[0][1] for path, entries in history(text).items() if entries[0][1] != REMOVED}


def with_entry(text: str, date: str, reason: str, changes: Mapping[str, tuple[str, str]], *, note: str = "") -> str:
    """The text with one more entry on top: ``changes`` maps a file to its short hashes (old, new); ``note`` follows."""
    lines = [f"- `{path}`: {old} -> {new}" for path, (old, new) in sorted(changes.items())]
    lines += ["", *textwrap.wrap(note, 118, break_long_words=False, break_on_hyphens=False)] if note else []
    entry = "\n".join([f"## {date}: {' '.join(reason.split())}", "", *lines, "", ""])
    first = _FIRST_ENTRY.search(text)
    at = first.start() if first else len(text)
    return (text[:at] + entry + text[at:]).rstrip("\n") + "\n"
