"""The performance suite under a clock that adapters set: what is slow warns, what is noisy is inconclusive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import get_profile, load_profiles
from dsv4_conformance.cases.timing_case import TimingCase
from dsv4_conformance.cli.suite_functions import SuiteFunction
from dsv4_conformance.errors import ConformanceFailure, Inconclusive, NotApplicable
from dsv4_conformance.implementations.api import DecodeCall, DecodeResult, Implementation, PrefillCall, PrefillResult
from dsv4_conformance.runner import timed_calls, timing
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import LayerSpec
from tests.miniatures.base import Miniature, declaring
from tests.miniatures.state import ExtentFromCapacity
from tests.suites.runs import functions, planned

DEVICE = torch.device("cpu")
TIMED = {f.spec.requirement: f for f in functions() if f.spec.family.startswith("timed_")}


class Clocked(Miniature):
    """Right, and each call takes as long as ``cost`` says: 64 heads and 128 keys are one unit."""

    surfaces = declaring()
    now: ClassVar[float] = 0.0

    def cost(self, heads: int, width: int, length: int) -> float:
        """A kernel that honours the length, and pays a little for width and for being called at all."""
        return 0.05 + heads / 64 * length / 128 + 0.0005 * width

    def decode(self, call: DecodeCall) -> DecodeResult:
        assert call.extra is not None and call.extra.topk_length is not None
        Clocked.now += self.cost(call.q.shape[2], call.extra.indices.shape[-1], int(call.extra.topk_length.amax()))
        return super().decode(call)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        assert call.topk_length is not None
        Clocked.now += self.cost(call.q.shape[1], call.indices.shape[-1], int(call.topk_length.amax()))
        return super().prefill(call)


class IgnoresTheLength(Clocked):
    def cost(self, heads: int, width: int, length: int) -> float:
        return super().cost(heads, width, width)


class HeadsPastSixtyFourAreFree(Clocked):
    def cost(self, heads: int, width: int, length: int) -> float:
        return super().cost(64, width, length) * (1.3 if heads == 64 else 1.0)


class Noisy(Clocked):
    beat: ClassVar[int] = 0

    def cost(self, heads: int, width: int, length: int) -> float:
        Noisy.beat += 1
        return super().cost(heads, width, length) * (1.0, 1.9, 0.6)[Noisy.beat % 3]


class _Costly:
    """A session whose ``priced`` methods take as long as they say."""

    def __init__(self, session: Any, **priced: float) -> None:
        self._session, self._priced = session, priced

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)

        def priced(*given: Any, **named: Any) -> Any:
            Clocked.now += self._priced.get(named.get("path", name), self._priced.get(name, 0.0))
            result = found(*given, **named)
            return _Costly(result, **self._priced) if name == "capture" else result

        return priced


class SlowReplays(Clocked):
    prices: ClassVar[dict[str, float]] = {"step": 1.0, "replay": 1.1, "sparse": 1.2, "paged": 1.0}

    def open_layer(self, spec: LayerSpec) -> Any:
        return _Costly(super().open_layer(spec), **self.prices)


class QuickReplays(SlowReplays):
    prices: ClassVar[dict[str, float]] = {"step": 1.0, "replay": 0.2, "sparse": 0.9, "paged": 1.0}


def _milliseconds(run: Callable[[], Any], device: torch.device, calls: int) -> float:
    before = Clocked.now
    run()
    return Clocked.now - before + 1e-9  # what has no price takes no time, and nobody divides by that


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "milliseconds", _milliseconds)
    for function in TIMED.values():
        space = function.function.__globals__
        monkeypatch.setitem(space, "side_by_side", partial(timing.side_by_side, rounds=9, calls=1))
        monkeypatch.setitem(space, "milliseconds", _milliseconds)
        monkeypatch.setitem(space, "ROUNDS", 9)


def run(adapter: type[Implementation], requirement: str, case: TimingCase) -> dict[str, Any]:
    subject = Subject(adapter("cpu"), DEVICE, requirement)
    TIMED[requirement].function(subject, case)
    record = subject.record()
    assert record["checked"]
    metrics: dict[str, Any] = record["metrics"]
    return metrics


DECODE, PREFILL = (TimingCase(surface, 2, keys=128) for surface in ("SparseDecode", "SparsePrefill"))


@pytest.mark.parametrize("case", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_half_the_length_at_half_the_time_passes(case: TimingCase) -> None:
    metrics = run(Clocked, "INV-161", case)
    assert metrics["relative_time"] == pytest.approx((0.05 + 0.5 + 0.064) / (0.05 + 1 + 0.064))
    assert metrics["relative_time_limit"] == 0.7 and metrics["rounds"] == 9
    with pytest.raises(ConformanceFailure, match=r"topk_length 64 takes 1 .* as long as 128 .*at most 0\.7 is asked"):
        run(IgnoresTheLength, "INV-161", case)


@pytest.mark.parametrize("case", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_wide_lists_are_to_cost_little(case: TimingCase) -> None:
    with pytest.raises(ConformanceFailure, match=r"a list eight times as wide takes 1\.4"):
        run(Clocked, "INV-162", case)  # 0.0005 a column is too much for a list of 128
    with pytest.raises(ConformanceFailure, match="a list eight times as wide takes 7"):
        run(IgnoresTheLength, "INV-162", case)


def test_heads_that_are_free_warn() -> None:
    assert run(Clocked, "INV-160", DECODE)["relative_time"] < 0.6
    with pytest.raises(ConformanceFailure, match=r"decode with 64 heads takes 1\.3"):
        run(HeadsPastSixtyFourAreFree, "INV-160", DECODE)


def test_noise_is_no_verdict() -> None:
    with pytest.raises(Inconclusive, match=r"too noisy to compare with 0\.7"):
        run(Noisy, "INV-161", DECODE)


def test_head_counts_that_are_not_declared_are_not_asked() -> None:
    class Narrow(Clocked):
        surfaces = declaring(h_q=(64,))

    with pytest.raises(NotApplicable, match="declares h_q 64, and 128 is asked"):
        run(Narrow, "INV-160", DECODE)


@pytest.fixture
def tiny_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(subject: Subject, case: TimingCase, schedule: str, capacity: int) -> LayerRun:
        shape = LayerCase("AttentionLayer", case.ratio, schedule, precision="bfloat16", quantised=True, sinks="finite")
        return LayerRun(subject, shape.with_(capacity=-(-capacity // 256) * 256))

    monkeypatch.setattr(timed_calls, "_layer", layer)


@pytest.mark.usefixtures("tiny_layers")
@pytest.mark.parametrize(
    ("requirement", "case", "said"),
    [
        ("INV-165", TimingCase("AttentionLayer", 2, tokens=5, ratio=0), r"a replayed decode step takes 1\.1 "),
        ("INV-166", TimingCase("AttentionLayer", 2, tokens=256, ratio=0), r"a chunk by sparse prefill takes 1\.2 "),
    ],
    ids=["replays", "paths"],
)
def test_layers_whose_fast_ways_are_slow_warn(requirement: str, case: TimingCase, said: str) -> None:
    assert run(QuickReplays, requirement, case)["relative_time"] < 1
    with pytest.raises(ConformanceFailure, match=said):
        run(SlowReplays, requirement, case)


def test_gathers_that_are_sized_by_capacity_warn() -> None:
    case = TimingCase("SparsePrefillChunkCache", 2, tokens=300)
    assert run(Clocked, "INV-163", case)["gathered_rows"] == 2 * 75
    with pytest.raises(ConformanceFailure, match=r"524288 rows are gathered .* 256 are live"):
        run(ExtentFromCapacity, "INV-163", case)


def test_share_of_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    def best(share: float) -> Callable[[torch.device], timing.Ceilings]:
        # One call needs 4 x 512 FLOP for each of 2 x 256 keys and 64 heads, and takes 1.114 ms by the clock.
        return lambda device: timing.Ceilings(1e30, 4 * 512 * 2 * 256 * 64 / (1.114e-3 * share))

    space = TIMED["INV-164"].function.__globals__
    monkeypatch.setitem(space, "ceilings", best(0.26))
    metrics = run(Clocked, "INV-164", DECODE)
    assert metrics["roofline_share"] == pytest.approx(0.26) and metrics["flop"] == 4 * 512 * 2 * 256 * 64
    monkeypatch.setitem(space, "ceilings", best(0.24))
    with pytest.raises(ConformanceFailure, match=r"arithmetic at its measured ceiling .* 24% of the roofline"):
        run(Clocked, "INV-164", DECODE)


def test_bytes_of_a_call_are_those_of_its_distinct_keys() -> None:
    subject = Subject(Clocked("cpu"), DEVICE, "INV-164")
    call = timed_calls.attention_call(subject, DECODE)
    flop, moved = timed_calls.work(call)
    assert moved == 2 * 256 * 584 + 2 * 2 * 64 * 512 * 2
    assert timed_calls.work(timed_calls.with_length(call, 64))[1] == 2 * 192 * 584 + 2 * 2 * 64 * 512 * 2
    assert timed_calls.work(timed_calls.widened(call, 3)) == (flop, moved)
    prefill = timed_calls.attention_call(subject, PREFILL)
    assert isinstance(prefill, PrefillCall)
    distinct = len(set(prefill.indices.flatten().tolist()))
    assert timed_calls.work(prefill)[1] == distinct * 1024 + 2 * 2 * 64 * 512 * 2


@pytest.mark.parametrize("function", TIMED.values(), ids=list(TIMED))
def test_only_the_profile_for_it_compares_times(function: SuiteFunction) -> None:
    for name, profile in load_profiles().items():
        assert bool(profile.cases_for(function.spec.requirement, function.spec.family)) is (name == "performance")
    assert planned(function, "performance")
    assert get_profile("performance").timed
