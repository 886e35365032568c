"""Text from outside made fit to be shown, stored as JSON and sent between processes: encodable, and never raising."""

from __future__ import annotations

SHOWN = 300
"""Characters of a foreign text that fit into a sentence."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """``number`` and its noun, as in "1 answer" and "1,319 answers"; ``plural`` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def clean(text: str) -> str:
    """``text`` as a plain str that UTF-8 can encode; lone surrogates are spelled out, as in ``\\udcff``."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """What ``error`` says, clean and stripped; "" if it says nothing or its ``__str__`` fails."""
    try:
        return clean(str(error)).strip()
    except Exception:  # __str__ is the adapter's code
        return ""


def summary_of(error: BaseException) -> str:
    """Type and text of ``error`` in one line of at most ``SHOWN`` characters of text."""
    said = " ".join(text_of(error).split()) or "no message"
    said = said if len(said) <= SHOWN else f"{said[:SHOWN].rstrip()}..."
    return f"{type(error).__name__}: {said}"
