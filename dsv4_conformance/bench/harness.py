"""How many cases per second the harness judges in one process: generation, kernel, oracle and verdict together."""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from dsv4_conformance.bench.grids import EVERY
from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.runner.stream import judge_stream
from dsv4_conformance.runner.subject import Subject

STAGES = ("build", "run", "oracle", "verdict", "margins")


@dataclass
class Rate:
    """``cases`` judged in ``seconds``; ``failures``: sentences; ``stage_ms``: mean of synchronised stages on a sample.

    ``elements``: key values stored per case, mean; ``flops`` and ``bytes_``: what the float64 oracle must at least do
    and move per case, mean (two products over the listed keys; each listed key read once and its float64 form written
    once and read twice).
    """

    cases: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    stage_ms: dict[str, float] = field(default_factory=dict)
    elements: float = 0.0
    flops: float = 0.0
    bytes_: float = 0.0

    @property
    def per_second(self) -> float:
        """Cases per second."""
        return self.cases / self.seconds


def _sync(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def work(case: AttentionCase) -> tuple[int, int, int]:
    """Stored key values, float64 operations and bytes of one case (see Rate)."""
    scopes = [case.window] + ([case.extra] if case.extra is not None else [])
    listed = sum(s.topk for s in scopes) * case.b * case.s_q
    stored = sum(s.slots for s in scopes) * case.b * 512
    return stored, 4 * listed * case.h_q * 512, listed * (584 + 3 * 8 * 512)


def measure(
    implementation: Implementation, device: torch.device, cases: Iterable[AttentionCase], margins: bool
) -> Rate:
    """Judge every case once; then take the stage breakdown on every EVERY-th of them.

    ``margins``: whether discrimination margins are part of the timed work, as they are in the suites. Warm-up (the
    largest case of each head count, which also sizes the allocator's pool) is not timed.
    """
    listed = list(cases)
    rate = Rate()
    largest = {case.h_q: case for case in sorted(listed, key=lambda case: work(case)[1])}
    for _ in judge_stream(implementation, device, largest.values(), margins):
        pass
    started = _sync(device)
    for judged in judge_stream(implementation, device, listed, margins):
        rate.failures += [f"{judged.case.label()}: {sentence}" for sentence in judged.failures()]
        rate.cases += 1
    rate.seconds = _sync(device) - started
    totals = [sum(column) for column in zip(*(work(case) for case in listed), strict=True)]
    rate.elements, rate.flops, rate.bytes_ = (total / len(listed) for total in totals)
    sample = listed[::EVERY]
    times = [_stages(implementation, device, case) for case in sample]
    rate.stage_ms = {n: 1e3 * sum(t[n] for t in times) / len(times) for n in STAGES}
    return rate


def _stages(implementation: Implementation, device: torch.device, case: AttentionCase) -> dict[str, float]:
    subject = Subject(implementation, device, "INV-01")
    marks = [_sync(device)]
    call = build(case, device)
    marks.append(_sync(device))
    outputs = subject.run(call)
    marks.append(_sync(device))
    truth = subject.truth(call)
    marks.append(_sync(device))
    with contextlib.suppress(ConformanceFailure):  # the timed pass has recorded it
        subject.compare(call, outputs, truth)
    marks.append(_sync(device))
    subject.mutants_of(call, truth)
    marks.append(_sync(device))
    return {name: marks[i + 1] - marks[i] for i, name in enumerate(STAGES)}


def ceilings(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a large copy (read + written) and float64 operations per second of a large product."""
    count = 1 << 28 if device.type == "cuda" else 1 << 24
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    size = 8192 if device.type == "cuda" else 1024
    a = torch.rand(size, size, dtype=torch.float64, device=device)

    def seconds(work: object) -> float:
        assert callable(work)
        work()
        started = _sync(device)
        for _ in range(5):
            work()
        return (_sync(device) - started) / 5

    return 8 * count / seconds(lambda: target.copy_(source)), 2 * size**3 / seconds(lambda: a @ a)
