"""Public scores of DeepSeek-V4: sanity anchors with protocol and source. Never a gate reference.

No two of them share prompt, shots, token limit, temperature and grader, and none comes with records per question. They
answer one question only: is a score of about the size that others see?
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4_conformance.errors import BadInput

FAR = 0.02
"""A score this far outside the span of the anchors is worth a word: the span itself is of protocols, not of quality."""


class Anchor(BaseModel):
    """One published score, as a share of right answers. ``protocol``: how it was taken; ``source``: an address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    model: str
    stack: str
    score: float = Field(gt=0, le=1)
    protocol: str
    source: str = Field(pattern=r"^https://\S+$")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    about: str
    anchors: list[Anchor]


def load(folder: Path) -> list[Anchor]:
    """The anchors of a golden folder; none where the file is missing. Raises BadInput if it is malformed."""
    path = folder / "accuracy" / "anchors.json"
    try:
        return _File.model_validate(json.loads(path.read_text(encoding="utf-8"))).anchors
    except FileNotFoundError:
        return []
    except (OSError, ValueError, ValidationError) as error:
        raise BadInput(
            f"{path} cannot be used ({str(error).splitlines()[0]}); restore it from version control."
        ) from None


def remark(folder: Path, task: str, score: float) -> str:
    """A word about a score that no published one is near; "" where there is nothing to say."""
    known = [anchor.score for anchor in load(folder) if anchor.task == task]
    if not known or min(known) - FAR <= score <= max(known) + FAR:
        return ""
    return (
        f"For orientation only: published {task} scores of DeepSeek-V4 lie between {100 * min(known):.1f} and "
        f"{100 * max(known):.1f} %, by various protocols; this one is {100 * score:.1f} %."
    )
