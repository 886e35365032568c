"""Remedies in the words of pytest: sentences that name options of the command line, told to somebody who has others."""

from __future__ import annotations

import re

_SAID = (
    (re.compile(r" \(pytest: [^)]*\)"), ""),
    (re.compile(r", or run with --no-thinking"), ", or judge against a golden without thinking, with --dsv4-golden"),
    (re.compile(r", or run with --thinking"), ", or judge against a golden with thinking, with --dsv4-golden"),
    (re.compile(r", or allow it with --unverified-data"), ""),
    (re.compile(r": switch the cache off, and leave --seed out"), ": switch the cache off"),
    (re.compile(r" with --repeats \d+: it asks"), ": it asks"),
    (re.compile(r"--golden NAME"), "--dsv4-golden FILE"),
    (re.compile(r"run the same command again: it asks"), "run again with --dsv4-answers and its folder: it asks"),
    (re.compile(r"--results\b"), "--dsv4-answers"),
    (re.compile(r"--folder\b"), "--dsv4-golden"),
    (re.compile(r"--(endpoint|model|weights|note|golden|same-build)\b"), r"--dsv4-\1"),
)
"""Patterns and what stands for them, in this order. pytest asks as the golden was asked, and has no option for that."""
_COMMAND = re.compile(r"`[^`]*`|dsv4-conformance (?:accuracy|golden) [^.;)]*|accuracy run [^.;)]*")
"""A command of the command line, whose options are its own."""


def in_pytest(told: str) -> str:
    """The sentence with pytest's options in the place of those of ``accuracy run``; whole commands stay as they are."""
    done, at = [], 0
    for command in _COMMAND.finditer(told):
        done += [_said(told[at : command.start()]), command[0]]
        at = command.end()
    return "".join([*done, _said(told[at:])])


def _said(text: str) -> str:
    for pattern, words in _SAID:
        text = pattern.sub(words, text)
    return text
