"""Times two ways of doing one thing in alternate rounds, and what the device can do at best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

import torch

from dsv4_conformance.errors import Inconclusive
from dsv4_conformance.numerics.timing import Ratio, ratio_of
from dsv4_conformance.runner.subject import Subject

ROUNDS = 31
ROUND_MS = 4.0
"""Time of one round at least: far above the clock's resolution, and above the start of a kernel."""
MOST_CALLS = 200
WARM_UP = 2
COPIED = {"cpu": 1 << 26, "cuda": 1 << 31}
"""Bytes of the copy that measures the ceiling of memory: far more than any cache holds."""
SQUARE = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Timed:
    """Median milliseconds of a call of each way, and the ratio of the first to the second."""

    ours: float
    other: float
    ratio: Ratio


@dataclass(frozen=True)
class Ceilings:
    """Measured in this process: bytes per second, read and written, of a copy, and FLOP/s of a bf16 matmul."""

    bandwidth: float
    flops: float


def side_by_side(
    ours: Callable[[], Any], other: Callable[[], Any], device: torch.device, rounds: int = ROUNDS, calls: int = 0
) -> Timed:
    """Time both ways, ``rounds`` times in turn. Raises what they raise.

    ``calls`` per round are the same for both, so that neither is timed at another temperature: by default as many as
    the faster one needs for a round.
    """
    for way in (ours, other):
        for _ in range(WARM_UP):
            way()
    if not calls:
        once = min(milliseconds(way, device, 3) for way in (ours, other))
        calls = int(min(MOST_CALLS, max(1.0, ROUND_MS / max(once, 1e-6))))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = ((0, ours), (1, other)) if number % 2 == 0 else ((1, other), (0, ours))
        for place, way in order:
            times[place].append(milliseconds(way, device, calls))
    return Timed(median(times[0]), median(times[1]), ratio_of(*times))


def milliseconds(run: Callable[[], Any], device: torch.device, calls: int) -> float:
    """Mean milliseconds of ``calls`` calls, by the device's own clock where it has one."""
    if device.type != "cuda":
        start = perf_counter()
        for _ in range(calls):
            run()
        return (perf_counter() - start) * 1e3 / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


@cache
def ceilings(device: torch.device) -> Ceilings:
    """What a copy and a matmul reach on this device, here and now: the best of some rounds."""
    source = torch.zeros(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = SQUARE[device.type]
    a, b = (torch.ones(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = torch.empty_like(a)
    copying = min(milliseconds(lambda: target.copy_(source), device, 3) for _ in range(5))
    multiplying = min(milliseconds(lambda: torch.matmul(a, b, out=product), device, 3) for _ in range(5))
    return Ceilings(2 * source.numel() / copying * 1e3, 2 * side**3 / multiplying * 1e3)


def at_most(subject: Subject, timed: Timed, limit: float, ours: str, other: str) -> None:
    """Fail (a SHOULD: warn) if ``ours`` takes more than ``limit`` times as long as ``other``.

    Raises Inconclusive where the measurement cannot tell. Both sentences name what was measured.
    """
    told(subject, timed, limit)
    where = timed.ratio.against(limit)
    said = f"{ours} takes {timed.ratio.text()} times as long as {other} ({timed.ours:.3g} and {timed.other:.3g} ms)"
    if where == "open":
        raise Inconclusive(f"{said}, with a spread of {timed.ratio.spread:.0%}: too noisy to compare with {limit}.")
    subject.expect(where == "within", f"{said}; at most {limit} is asked.")


def told(subject: Subject, timed: Timed, limit: float) -> None:
    """Put a comparison into the case's metrics."""
    subject.note(
        relative_time=timed.ratio.median,
        relative_time_low=timed.ratio.low,
        relative_time_high=timed.ratio.high,
        relative_time_limit=limit,
        spread=timed.ratio.spread,
        ours_ms=timed.ours,
        other_ms=timed.other,
        rounds=timed.ratio.rounds,
    )
