"""Texts from a journal made fit to be shown: nothing in them can steer a terminal, a table, a page or a parser.

Names, case ids and reasons are written by adapters and engines. Whatever they hold is shown as characters.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from dsv4_conformance.texts import clean

ID_LENGTH = 160
"""Characters of a name or an id that a report shows."""
TEXT_LENGTH = 4000
"""Characters of a reason that a report shows."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\uffff\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]|~#!])")


def visible(text: str) -> str:
    """``text`` with control characters, invisible ones and those that turn the direction of writing spelled out, as in
    ``\\x1b``. Newlines and tabs stay."""
    return _UNSEEN.sub(_spelled, clean(text).replace("\r\n", "\n"))


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str, limit: int = TEXT_LENGTH) -> str:
    """``text`` as one visible line of at most about ``limit`` characters, with a note of how many there were."""
    if len(text) > limit:
        return f"{' '.join(visible(text[:limit]).split())}… ({len(text):,} characters)"
    return " ".join(visible(text).split())


def block(text: str, limit: int = TEXT_LENGTH) -> str:
    """Like ``line``, with its line breaks."""
    cut = visible(text[:limit])
    return f"{cut}… ({len(text):,} characters)" if len(text) > limit else cut


def name(text: str) -> str:
    """A name or an id as one line."""
    return line(text, ID_LENGTH)


def markdown(text: str, limit: int = TEXT_LENGTH) -> str:
    """``text`` as one line of Markdown that shows it as it is: no markup, no HTML, no end of a table's cell."""
    plain = line(text, limit)
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", escaped).replace("@", "&#64;")  # nobody is mentioned


def code(text: str, limit: int = TEXT_LENGTH) -> str:
    """``text`` as inline code of Markdown that can stand in a table."""
    plain = line(text, limit).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    space = " " if plain[:1] == "`" or plain[-1:] == "`" else ""
    return f"{fence}{space}{plain}{space}{fence}"


def xml(text: str, limit: int = TEXT_LENGTH) -> str:
    """``text`` for an element or an attribute of XML 1.0."""
    return _entities(block(text, limit))


def _entities(text: str) -> str:
    """Markup, quotes and line breaks as entities."""
    return escape(text, {'"': "&quot;", "'": "&apos;", "\n": "&#10;", "\t": "&#9;"})
