"""From the words of an option to its value; every refusal is one sentence."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path

from dsv4_conformance.errors import BadInput

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""Tools of compute-sanitizer."""
LONGEST_S = 7 * 24 * 3600.0


def read_seed(text: str | None) -> int:
    """The seed that ``text`` names, 0 for None. Raises BadInput unless it is a whole number below 2**63."""
    if text is None:
        return 0
    if not text.strip().isdecimal() or len(text) > 100 or int(text) >= 2**63:
        raise BadInput(f"The seed {text[:100]!r} is no whole number from 0 to 2**63 - 1; 0 is the published stream.")
    return int(text)


def read_number(option: str, text: str | None, default: float, largest: float) -> float:
    """A number above 0, ``default`` for None. Raises BadInput for anything else."""
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= largest:
        raise BadInput(f"The value {text[:100]!r} of {option} is no number above 0 and up to {largest:g}.")
    return value


def read_shard(text: str | None) -> tuple[int, int] | None:
    """(I, N) of "I/N", 1 <= I <= N, None for None. Raises BadInput for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text.strip())
    shard = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= shard[0] <= shard[1]:
        raise BadInput(f"The shard {text[:100]!r} is no part of a whole; the second of four is --dsv4-shard 2/4.")
    return shard


def read_sanitizer(text: str | None) -> str | None:
    """A tool of compute-sanitizer, None for None. Raises BadInput for an unknown one."""
    if text is not None and text not in SANITIZERS:
        raise BadInput(f"compute-sanitizer has no tool {text[:100]!r}; give one of {', '.join(SANITIZERS)}.")
    return text


def read_surfaces(names: Sequence[str] | None) -> tuple[str, ...]:
    """Each surface once. Raises BadInput for one that does not exist."""
    if not names:
        return ()
    # In other projects the plugin costs nothing; the registry imports pydantic.
    from dsv4_conformance.spec.requirements import SURFACES

    for name in names:
        if name not in SURFACES:
            near = difflib.get_close_matches(name, SURFACES, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise BadInput(f"There is no surface {name[:100]!r}{meant}; the surfaces are {', '.join(SURFACES)}.")
    return tuple(dict.fromkeys(names))


def read_path(folder: Path, option: str, text: str | None) -> Path | None:
    """A path, absolute as seen from ``folder``, None for None. Raises BadInput if it is empty or nothing is there."""
    if text is None:
        return None
    path = folder / Path(text).expanduser()
    if not text.strip() or not path.exists():
        raise BadInput(f"The value {text[:300]!r} of {option} names nothing that exists.")
    return path
