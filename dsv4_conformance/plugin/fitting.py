"""Do two journals belong to one run? Their headers are compared field by field; what differs is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import Header

Field = tuple[str, Callable[[Header], Any]]

COMMON: tuple[Field, ...] = (
    ("version of dsv4-conformance", lambda h: h.version),
    ("commit of dsv4-conformance", lambda h: h.environment.commit),
    ("state of the checkout (modified)", lambda h: h.environment.modified),
    ("profile", lambda h: h.profile),
    ("seed", lambda h: h.seed),
    ("device", lambda h: h.device),
    ("implementation", lambda h: h.implementation.requested),
    ("adapter's name", lambda h: h.implementation.identity.get("name")),
    ("adapter's version", lambda h: h.implementation.identity.get("version")),
    ("adapter's identity", lambda h: h.implementation.identity),
    ("adapter's declarations", lambda h: h.implementation.surfaces),
    ("package versions", lambda h: h.environment.packages),
    ("waivers", lambda h: [waiver.model_dump() for waiver in h.waivers]),
    ("plan of all shards", lambda h: h.shard.plan_hash if h.shard else h.plan_hash),
    ("number of shards", lambda h: h.shard.count if h.shard else 1),
    ("durations that balance the shards", lambda h: h.shard.durations if h.shard else ""),
)
"""What has to be equal for results to add up, the most telling first."""

SAME_RUN: tuple[Field, ...] = (
    *COMMON,
    ("shard", lambda h: h.shard.index if h.shard else 1),
    ("plan", lambda h: sorted((entry.nodeid, entry.case_id) for entry in h.plan)),
    ("GPUs", lambda h: sorted({gpu.name for gpu in h.environment.gpus})),
)
"""What has to be equal for a run to go on where another one ended."""


def refuse_unless_equal(fields: tuple[Field, ...], one: Header, other: Header, what: str, path: Path) -> None:
    """Raise BadInput if a field differs. ``what``: what cannot be done with the journal ``path`` of ``one`` then."""
    for name, field in fields:
        then, now = field(one), field(other)
        if then != now:
            told = f"it differs in {name}{_values(then, now)}"
            raise BadInput(f"The journal {path} cannot be {what}: {told}.")


def _values(then: Any, now: Any) -> str:
    """The two values, where they are short or have one difference that can be named."""
    if isinstance(then, dict) and isinstance(now, dict):
        key = next(key for key in sorted({*then, *now}) if then.get(key) != now.get(key))
        return f", at {key}{_values(then.get(key), now.get(key))}"
    if isinstance(then, list) and isinstance(now, list) and len(then) != len(now):
        return f" ({len(then)} entries there, {len(now)} here)"
    there, here = (str(value) or "none" for value in (then, now))
    return f" ({there} there, {here} here)" if len(there) + len(here) < 200 else ""
