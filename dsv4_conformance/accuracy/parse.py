"""Reading the final answer out of a reply, and how far from the asked form it stood.

Only the reply's text is read, never the reasoning. A fall-back level says which rule found the answer: 0 is the form
the prompt asks for. A growing share of fall-backs is the first sign of a template or prompt that broke.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

VERSION = "1"
"""Goes into the fingerprint; to be raised whenever any text could now be read otherwise."""

LONGEST = 40
"""Characters of a number; what is longer is no answer to a question of these sets."""

# An optional sign and currency sign, digits with thousands separators or without, a fraction.
_NUMBER = re.compile(r"(?<![\w.])([-−–]?)\s?(?:\\?\$)?\s?([-−]?)(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(\.\d+)?")
_ANSWER_IS = re.compile(r"\banswer\b[^.\n]{0,40}?(?:\bis\b|:|=)\s*", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*")
_WRAPPERS = re.compile(r"\\(?:text|mathrm|mathbf|boldsymbol|textbf)\s*\{([^{}]*)\}")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"[{}]")
_SPACING = re.compile(r"\\[,;!: ]|~|\{,\}")


@dataclass(frozen=True)
class Parsed:
    """``answer``: a plain number where it is one, else as written, None where there is none; ``fallback``: the rule."""

    answer: str | None
    fallback: int


NONE = Parsed(None, -1)


def gsm8k(text: str) -> Parsed:
    """Level 0: the last ``#### number``; 1: the last ``\\boxed{}``; 2: "the answer is"; 3: the last number of all."""
    if (start := text.rfind("####")) >= 0:
        words = _SPACING.sub("", text[start + 4 :].split("\n", 1)[0])
        match = _NUMBER.search(words)
        if match and not any(map(str.isalnum, words[: match.start()])) and (found := first_number(words)) is not None:
            return Parsed(found, 0)
    if (content := last_boxed(text)) is not None and (found := last_number(content)) is not None:
        return Parsed(found, 1)
    if (found := _after_answer_is(text)) is not None:
        return Parsed(found, 2)
    return Parsed(found, 3) if (found := last_number(text)) is not None else NONE


def aime(text: str) -> Parsed:
    """Level 0: the last ``\\boxed{integer}``; 1: its only number; 2: "the answer is"; 3: bold; 4: the last line's end.

    A last box with anything else in it is an answer, given as written, and wrong.
    """
    if (content := last_boxed(text)) is not None:
        plain = _plain(content)
        whole = plain.replace(" ", "").replace("−", "-")
        if re.fullmatch(r"-?\d{1,3}(,\d{3})+", whole):
            whole = whole.replace(",", "")
        if re.fullmatch(rf"-?\d{{1,{LONGEST}}}", whole):
            return Parsed(normal(whole), 0)
        bare = plain.removesuffix("^\\circ").removesuffix("^{\\circ}")
        numbers = _numbers(bare)
        return Parsed(numbers[0], 1) if len(numbers) == 1 and "\\" not in bare else Parsed(plain[:LONGEST], 0)
    if (found := _after_answer_is(text)) is not None:
        return Parsed(found, 2)
    bold = [number for match in _BOLD.findall(text) if len(number := _numbers(match)) == 1]
    if bold:
        return Parsed(bold[-1][0], 3)
    lines = text.strip().splitlines()
    if lines and (match := re.search(r"(?<![\w.])\$?(\d{1,3})\$?\.?$", lines[-1].strip())):
        return Parsed(normal(match[1]), 4)
    return NONE


def last_boxed(text: str) -> str | None:
    """Content of the last complete, non-empty ``\\boxed{...}`` or ``\\fbox{...}``, braces balanced."""
    boxes = [match.end() - 1 for match in _BOX.finditer(text)]
    if not boxes:
        return None
    closing = _closing_braces(text)  # all at once: a reply may open thousands of boxes and close none
    for opening in reversed(boxes):
        content = text[opening + 1 : closing.get(opening, opening)]
        if content.strip():
            return content
    return None


def first_number(text: str) -> str | None:
    """The first number in ``text``, in normal form."""
    numbers = _numbers(text)
    return numbers[0] if numbers else None


def last_number(text: str) -> str | None:
    """The last number in ``text``, in normal form."""
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def normal(number: str) -> str:
    """A decimal number without superfluous zeros: "070" and "70.0" are "70", "-0" is "0"."""
    value = Decimal(number)
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    digits = digits.lstrip("0") or "0"
    if digits.startswith("."):
        digits = f"0{digits}"
    return digits if digits == "0" else sign + digits


def _numbers(text: str) -> list[str]:
    text = _SPACING.sub("", text)
    found = []
    for outer, inner, digits, fraction in _NUMBER.findall(text):
        if len(digits) <= LONGEST:
            found.append(normal(("-" if outer or inner else "") + digits.replace(",", "") + fraction[:LONGEST]))
    return found


def _after_answer_is(text: str) -> str | None:
    last = None
    for last in _ANSWER_IS.finditer(text):  # noqa: B007 - the last match is wanted
        pass
    return None if last is None else first_number(text[last.end() : last.end() + 60].split("\n", 1)[0])


def _plain(content: str) -> str:
    """A box's content without dollar signs, spacing and text wrappers."""
    previous = None
    while previous != content:
        previous, content = content, _WRAPPERS.sub(r"\1", content)
    return _SPACING.sub("", content).replace("\\$", "").replace("$", "").strip(" .\n\t")


def _closing_braces(text: str) -> dict[int, int]:
    """Place of each opening brace that is closed -> place of the brace that closes it."""
    found: dict[int, int] = {}
    open_braces: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif open_braces:
            found[open_braces.pop()] = match.start()
    return found
