"""Numbers in few words, and read from few words."""

from __future__ import annotations

from collections.abc import Iterable

from dsv4_conformance.errors import BadInput


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7; numbers are sorted first."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_spans(texts: Iterable[str], count: int, what: str) -> list[int]:
    """Numbers below ``count`` named by ``3``, ``0-7`` or ``1,5-6``, sorted. Raises BadInput for anything else."""
    found: set[int] = set()
    for word in (word.strip() for text in texts for word in text.split(",")):
        first, dash, last = word.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise BadInput(f"--{what} {word!r} names no {what}; write a number or a range such as 0-7.")
        chosen = range(int(first), int(last or first) + 1)
        if not chosen or chosen[-1] >= count:
            raise BadInput(f"--{what} {word} is not in the dump, which has {what}s 0 to {count - 1}.")
        found.update(chosen)
    return sorted(found)
