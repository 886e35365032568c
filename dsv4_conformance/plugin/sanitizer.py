"""Findings of compute-sanitizer, charged to cases by where its log stood when each case began."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dsv4_conformance.plugin.outcome import Outcome
from dsv4_conformance.status import Status

LOGS = "DSV4_SANITIZER_LOGS"
"""Variable with the folder of logs; it is set in a run under the tool."""
LOG = "DSV4_SANITIZER_LOG"
"""Variable with the log of the tool that watches this process: the tool writes one for all processes it follows."""
PREFIX = "========= "
NOISE = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
    "LEAK SUMMARY",
    "Target application",
    "Launching",
    "Attaching",
    "Warning: ",
)
"""How lines begin that are no finding; a warning of racecheck is a hazard that cannot change a result."""
QUIET_S = 0.1
"""The tool writes from a process of its own: so long has its log to stay as it is to count as complete."""
PATIENCE_S = 5.0
SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """``what``: the headline. ``where``: the kernel and its line, "" if it names none. ``text``: all lines."""

    what: str
    where: str
    text: str

    @property
    def sentence(self) -> str:
        """Headline and place."""
        return f"{self.what} {self.where}".rstrip()


def findings(text: str) -> list[Finding]:
    """The findings in a log, or in a part of one that begins and ends between two of them."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        said = line[len(PREFIX) :]
        if said[:1].strip() and not said.startswith(NOISE):
            blocks.append([said])
        elif said[:1].strip():
            blocks.append([])
        elif blocks and blocks[-1]:
            blocks[-1].append(said.strip())
    return [_finding(block) for block in blocks if block]


def _finding(block: list[str]) -> Finding:
    where = next((line for line in block[1:] if line.startswith("at ")), "")
    return Finding(block[0].rstrip("."), where, "\n".join(block))


class Log:
    """The file of one tool."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Mark:
        """How long the file is now."""
        return Mark(self._path.name, _size(self._path))

    def since(self, mark: Mark) -> list[Finding]:
        """What has been found since ``mark`` was taken, once the tool has written it down."""
        deadline = time.monotonic() + PATIENCE_S
        before, since = self.mark(), time.monotonic()
        while time.monotonic() - since < QUIET_S and time.monotonic() < deadline:
            time.sleep(QUIET_S / 5)
            if (now := self.mark()) != before:
                before, since = now, time.monotonic()
        return findings(_text(self._path, mark.size))


class Mark(NamedTuple):
    """A place in a log: the file's name, and its length in bytes."""

    log: str
    size: int


def log_here() -> Log | None:
    """The log of the tool that watches this process, None if none does."""
    path = os.environ.get(LOG)
    return Log(Path(path)) if path else None


def charge(decided: Outcome, tool: str, found: list[Finding]) -> Outcome:
    """The outcome of a case in which ``tool`` found something: it failed, if it has not done so already."""
    if not found:
        return decided
    reason = " ".join(filter(None, [decided.reason, sentence(tool, found)]))
    passing = decided.status in (Status.PASS, Status.WARN, Status.NOT_APPLICABLE)
    return replace(decided, status=Status.FAIL if passing else decided.status, reason=reason)


def sentence(tool: str, found: list[Finding]) -> str:
    """All findings in short."""
    told = "; ".join(dict.fromkeys(finding.sentence for finding in found[:SHOWN]))
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{tool}: {told}{more}."


def record(tool: str, found: list[Finding]) -> dict[str, Any]:
    """For the journal."""
    return {"tool": tool, "count": len(found), "findings": [finding.text[:2000] for finding in found[:SHOWN]]}


def problems(tool: str, folder: Path, charged: int) -> list[str]:
    """What is wrong with a run under ``tool`` beyond its cases: findings of no case, or no sign of the tool at all."""
    logs = [_text(path, 0) for path in sorted(folder.glob("*.log"))]
    if not any(f"{PREFIX}COMPUTE-SANITIZER" in log for log in logs):
        return [f"{tool} has left no log in {folder}, so that nobody knows whether it watched; the run shows nothing."]
    rest = sum(len(findings(log)) for log in logs) - charged
    return [f"{rest} finding(s) of {tool} could be charged to no case; they are in {folder}."] if rest > 0 else []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
