"""Badges: one SVG per run that says what it qualifies for, by word and shape as well as by colour."""

from __future__ import annotations

import re
import unicodedata

from dsv4_conformance.report.escaping import line, xml
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered, device, implementation
from dsv4_conformance.report.judging import Verdict

COLOURS = {"good": "#2b7a70", "bad": "#b5311c", "open": "#71479a"}
SIGNS = {"good": "●", "bad": "■", "open": "◆"}
LONGEST = 72
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}">
<title>{label}</title>
<rect width="{width}" height="20" rx="3" fill="#33373e"/>
<path d="M{left} 0h{inner}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{inner}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="7" y="14" textLength="{one}">{name}</text><text x="{at}" y="14" textLength="{two}">{word}</text>
</g>
</svg>
"""


def badges(gathered: Gathered) -> dict[str, str]:
    """File name -> SVG."""
    found: dict[str, str] = {}
    for run, verdict in zip(gathered.runs, gathered.verdicts, strict=True):
        found[f"{run.mark}-{slug(implementation(run.header))}.svg"] = badge(run, verdict)
    return found


def badge(run: Run, verdict: Verdict) -> str:
    """The badge of one run: implementation, device, verdict, profile, cases checked."""
    name = line(f"{implementation(run.header)} · {device(run.header.environment, run.header.device)}", LONGEST)
    word = line(f"{SIGNS[verdict.tone]} {verdict.word.lower()} {run.header.profile}, {run.checked:,} checked", LONGEST)
    one, two = _width(name), _width(word)
    left = one + 14
    return _SVG.format(
        width=left + two + 14,
        left=left,
        inner=two + 11,
        at=left + 7,
        one=one,
        two=two,
        colour=COLOURS[verdict.tone],
        name=xml(name),
        word=xml(word),
        label=xml(f"{name}: {word}"),
    )


def slug(text: str) -> str:
    """``text`` as part of a file name."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-zA-Z0-9._]+", "-", plain).strip("-.")[:40] or "run"


def _width(text: str) -> int:
    return round(sum(4.2 if sign in "iIl.,:;|' " else 9 if sign in "mwMW" else 6.8 for sign in text))
