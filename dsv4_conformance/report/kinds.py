"""How a status looks: six kinds, each with a shape of its own, and a letter where a kind has several statuses.

Nothing is told by colour alone.
"""

from __future__ import annotations

from markupsafe import Markup

from dsv4_conformance.status import Status

KINDS: dict[str, tuple[Status, ...]] = {
    "bad": (
        Status.FAIL,
        Status.CRASH,
        Status.TIMEOUT,
        Status.OUT_OF_MEMORY,
        Status.STALE_WAIVER,
        Status.UNSUPPORTED_REQUIRED,
        Status.HARNESS_ERROR,
    ),
    "open": (Status.INCONCLUSIVE, Status.INVALID, Status.NOT_RUN, Status.QUARANTINED),
    "warn": (Status.WARN,),
    "waived": (Status.WAIVED,),
    "good": (Status.PASS,),
    "absent": (Status.NOT_APPLICABLE,),
}
"""Kind -> its statuses; in the order in which a bar shows them."""
LETTERS = {
    Status.FAIL: "F",
    Status.CRASH: "C",
    Status.TIMEOUT: "T",
    Status.OUT_OF_MEMORY: "M",
    Status.STALE_WAIVER: "S",
    Status.UNSUPPORTED_REQUIRED: "U",
    Status.HARNESS_ERROR: "H",
    Status.INCONCLUSIVE: "?",
    Status.INVALID: "!",
    Status.NOT_RUN: "N",
    Status.QUARANTINED: "Q",
    Status.WARN: "W",
    Status.WAIVED: "w",
}
MEANINGS = {
    Status.PASS: "compared, and holds",
    Status.WARN: "a SHOULD is not met: slower or larger than need be, never wrong",
    Status.FAIL: "compared, and wrong; or the adapter raised, or broke its own declaration",
    Status.INCONCLUSIVE: "accuracy: compared, and neither a pass nor a failure can be told",
    Status.INVALID: "accuracy: not comparable with the golden",
    Status.WAIVED: "a known failure with a valid waiver",
    Status.STALE_WAIVER: "passes, and has a waiver still",
    Status.NOT_APPLICABLE: "the adapter declares that it does not offer this",
    Status.UNSUPPORTED_REQUIRED: "the profile demands a surface that the adapter does not offer",
    Status.NOT_RUN: "planned, and no result",
    Status.QUARANTINED: "set aside by a waiver",
    Status.CRASH: "the process died, or its CUDA context did",
    Status.TIMEOUT: "did not end in time",
    Status.OUT_OF_MEMORY: "host or device ran out of memory",
    Status.HARNESS_ERROR: "the suite is at fault",
}
_SHAPES = {
    "bad": '<rect x="1" y="1" width="12" height="12" rx="1.5"/>',
    "open": '<path d="M7 .2 13.8 7 7 13.8.2 7z"/>',
    "warn": '<path d="M7 .8 13.6 13H.4z"/>',
    "waived": '<circle cx="7" cy="7" r="5.6"/>',
    "good": '<circle cx="7" cy="7" r="3.6"/>',
    "absent": '<path d="M3 7h8"/>',
}
_BASELINES = {"warn": 11.6, "open": 9.9}


def kind_of(status: Status) -> str:
    """Which of KINDS a status is."""
    return next(kind for kind, statuses in KINDS.items() if status in statuses)


def symbols() -> Markup:
    """One SVG symbol per status, to be used as ``#s-STATUS``."""
    parts = []
    for status in Status:
        kind = kind_of(status)
        letter = LETTERS.get(status, "")
        y = _BASELINES.get(kind, 10.4)
        text = f'<text x="7" y="{y}" text-anchor="middle">{letter}</text>' if letter else ""
        parts.append(
            f'<symbol id="s-{status}" viewBox="0 0 14 14"><g class="g-{kind}">{_SHAPES[kind]}{text}</g></symbol>'
        )
    return Markup(f'<svg class="defs" aria-hidden="true" width="0" height="0">{"".join(parts)}</svg>')
