"""Layer cases led through their schedules: what is sent, what is kept, when rows are judged and by what they fail."""

from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of, tokens, weights_root
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.errors import ConformanceFailure, ContractViolation, NotApplicable
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.runner.layer_run import LayerRun, unset_memory_is_nan
from tests.miniatures.base import Miniature
from tests.runner.recording import CASE, CPU, Recording, subject


def run(schedule: str, **changes: Any) -> LayerRun:
    return LayerRun(subject(), CASE.with_(schedule=schedule, **changes)).run()


# Kills: steps in another order, lengths or padding lost, the path given to decode, a mode that no layer knows.
def test_steps_are_sent_as_the_schedule_says() -> None:
    done = run("p0:256+2:1~3 x d2+0~1 v0:3 k0:258 f0>1:256 i r0 d1", path="paged")
    sent = [
        (name, ([(s, len(x)) for s, x in given[0]], *given[1:]) if name == "step" else given)
        for name, given in Recording.calls
    ]
    assert sent == [
        ("step", ([(0, 256), (2, 1)], "prefill", 3, "paged")),
        ("poison", ()),
        ("step", ([(2, 1), (0, 1)], "decode", 1, "auto")),
        ("step", ([(0, 3)], "verify", 0, "auto")),
        ("truncate", (0, 258)),
        ("fork", (0, 1, 256)),
        ("step", ([], "prefill", 0, "auto")),
        ("release", (0,)),
        ("step", ([(1, 1)], "decode", 0, "auto")),
    ]
    assert {number: len(stream.tokens) for number, stream in done.streams.items()} == {2: 2, 1: 257}
    assert done.paths == ["paged"] * 5 and done.subject.record()["checked"]


# Kills: a rejected or released position that is written again with the row that stood there, which hides old state.
def test_what_is_written_again_is_not_what_stood_there() -> None:
    run("p0:5 v0:3 k0:6 p0:3 r0 p0:7")
    sent = [given[0][0][1] for name, given in Recording.calls if name == "step"]
    root, spec = weights_root(CASE), spec_of(CASE, CPU)
    first = tokens(root, 0, 0, 9, spec.geometry.hidden_size, CPU)
    assert torch.equal(torch.cat(sent[:2]), first[:8])
    assert not (sent[2] == first[6:9]).all(1).any() and not (sent[3] == first[:7]).all(1).any()
    assert not (sent[3][6:7] == sent[2][:1]).all()


# Kills: a target of a fork that goes on with its own prefix instead of the source's, or with the source's next tokens.
def test_a_forked_stream_begins_with_its_source() -> None:
    done = run("p0:257 f0>1:256 p1:2+0:1")
    one, other = done.x(0), done.x(1)
    assert torch.equal(one[:256], other[:256]) and not (one[256:] == other[256:]).all(1).any()
    assert len(one) == len(other) == 258


# Kills: a changed token that is sent at another place, to another sequence, or not judged.
def test_a_changed_token_is_sent_and_judged() -> None:
    row = torch.full((256,), 0.5)
    done = LayerRun(subject(), CASE.with_(schedule="p0:3+1:3 d0"), changed={(0, 3): row, (1, 1): row}).run()
    (first, _), (second, _) = (given for name, given in Recording.calls if name == "step" for given in [(given[0], 0)])
    assert torch.equal(second[0][1][0], row) and torch.equal(first[1][1][1], row)
    assert [(x == row).all(1).nonzero().flatten().tolist() for _, x in first] == [[], [1]]
    assert torch.equal(done.x(0)[3], row) and torch.equal(done.x(1)[1], row)


# Kills: rows that are never judged, judged before the steps that could destroy them, or not at the end of their life.
@pytest.mark.parametrize("end", ["", " r0", " v0:2 k0:6"])
def test_rows_are_judged_late_but_always(end: str) -> None:
    case = CASE.with_(schedule="p0:5" + end, quantised=True)
    led = LayerRun(subject(), case)
    for step in steps(case.schedule):
        if step.kind in ("release", "keep"):
            led.session.unwrap().caches.window.buffer.fill_(0)
            with pytest.raises(ConformanceFailure, match="stored window row 0"):
                led.do(step)
            return
        led.do(step)
        assert not led.subject.record()["checked"]
    led.session.unwrap().caches.window.buffer.fill_(0)
    with pytest.raises(ConformanceFailure, match="stored window row 0, element 0: 0 where"):
        led.judge()


# Kills: outputs that a later write of the implementation changes, those of a rejected draft kept for the position.
def test_outputs_are_copied_and_found_by_position() -> None:
    kept: list[torch.Tensor] = []

    def keep(out: torch.Tensor) -> torch.Tensor:
        kept.append(out)
        return out

    Recording.changed = {"out": keep}
    try:
        led = LayerRun(subject(), CASE.with_(schedule="p0:3+1:2 v0:2 k0:4 d0")).run()
    finally:
        Recording.changed = {}
    o, out = led.output(0)
    assert o.shape == (5, 8, 512) and out.shape == (5, 256)
    assert torch.equal(out, torch.stack([*kept[0][:3], kept[1][0], kept[2][0]]))
    for tensor in kept:
        tensor.zero_()
    assert bool(led.output(0, range(1, 3))[1].any()) and led.output(1)[1].shape == (2, 256)


# Kills: a shape that is not looked at, padding rows that are returned, a result without a field.
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"o": lambda o: o[:, :7]}, r"step returned o as \(3, 7, 512\); the surface promises \(3, 8, 512\)"),
        ({"out": lambda out: torch.cat((out, out[:1]))}, r"returned out as \(4, 256\)"),
        ({"out": lambda out: None}, "returned out as NoneType"),
    ],
)
def test_results_of_another_shape_break_the_contract(changed: dict[str, Any], said: str) -> None:
    Recording.changed = changed
    try:
        with pytest.raises(ContractViolation, match=said):
            run("p0:3~2")
    finally:
        Recording.changed = {}


# Kills: wrong rows that pass where q or selections are not shown; q of another step taken for missing.
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_adapter_need_not_show_queries_and_selections(precision: Any) -> None:
    hidden: dict[str, Any] = {"q": lambda q: None, "selected": lambda s: None}
    for more, fails in (({}, False), ({"out": lambda out: out * 1.5}, True)):
        Recording.changed = hidden | more
        try:
            if fails:
                with pytest.raises(ConformanceFailure, match="out: error"):
                    run("p0:30", ratio=4, precision=precision)
            else:
                run("p0:30", ratio=4, precision=precision)
        finally:
            Recording.changed = {}


# Kills: a graph for each step, captured rows that are those of the batch, prefill sent to a decode graph.
def test_decode_steps_are_replays_if_asked() -> None:
    led = LayerRun(subject(), CASE.with_(schedule="p0:3+1:1 d0 d0+1")).run(graph_rows=5)
    assert [given for name, given in Recording.calls if name == "capture"] == [(5,)]
    assert [given[1] for name, given in Recording.calls if name == "step"] == ["prefill"]
    assert set(led.graphs) == {5} and led.graphs[5].unwrap().metadata.seq_lens.tolist() == [5, 2, 0, 0, 0]


# Kills: a case that is run although the adapter declares that it cannot.
@pytest.mark.parametrize(
    ("declared", "case"),
    [
        ({"ratios": (4, 128)}, CASE),
        ({"tp": (1,)}, CASE.with_(tp=2)),
        ({"paths": ("paged",)}, CASE.with_(path="sparse")),
    ],
)
def test_cases_outside_the_declaration_do_not_apply(declared: dict[str, Any], case: LayerCase) -> None:
    convention = replace(LayerConvention(), **declared)

    class Narrow(Miniature):
        surfaces: ClassVar[Any] = {**Builtin.surfaces, "AttentionLayer": convention}

    with pytest.raises(NotApplicable):
        LayerRun(subject(Narrow), case)
    LayerRun(subject(Narrow), case.with_(ratio=4, precision="bfloat16", quantised=True, tp=1, path="auto"))


# Kills: cases that an engine of one flavour skips.
def test_an_engine_of_one_flavour_is_run_in_that_flavour() -> None:
    class Served(Miniature):
        surfaces: ClassVar[Any] = {
            **Builtin.surfaces,
            "AttentionLayer": LayerConvention(precisions=("bfloat16",), quantised=(True,)),
        }

    run = LayerRun(subject(Served), CASE.with_(precision="float32", quantised=False))
    assert (run.case.precision, run.case.quantised, run.spec.precision, run.spec.quantised) == (
        *("bfloat16", True),
        *("bfloat16", True),
    )
    assert not run.exact


def declaring(**changes: Any) -> type[Recording]:
    """The built-in layer with a narrower declaration."""

    class Narrow(Recording):
        surfaces: ClassVar[Any] = {**Builtin.surfaces, "AttentionLayer": LayerConvention(**changes)}

    return Narrow


# Kills: choices, rows of nobody and infinite sinks that an engine without them is given.
def test_an_engine_is_led_without_what_it_does_not_have() -> None:
    narrow = declaring(paths=(), padded_rows=False, infinite_sinks=False)
    led = LayerRun(subject(narrow), CASE.with_(schedule="p0:3~2 d0~1", path="sparse")).run()
    assert [given[2:] for name, given in Recording.calls if name == "step"] == [(0, "auto")] * 2
    assert not torch.isposinf(led.spec.weights.attn_sink).any()


# Kills: rows of both runs taken for alike, sequences of one run alone that are looked for in the other.
def test_rows_of_two_runs_are_compared() -> None:
    one = LayerRun(subject(), CASE.with_(schedule="p0:9+1:3")).run(judge=False)
    one.same_rows(LayerRun(subject(), CASE.with_(schedule="p0:9+2:3")).run(judge=False))
    other = LayerRun(subject(), CASE.with_(schedule="p0:9"), changed={(0, 8): torch.ones(256)}).run(judge=False)
    with pytest.raises(ConformanceFailure, match=r"o: error .* sequence 0"):
        one.same_rows(other)
    first, second = (LayerRun(subject(), CASE.with_(schedule="p0:9", quantised=True)) for _ in range(2))
    for led in (first, second):
        led.run(judge=False)
    second.streams[0].pending[0].o = 2 * second.streams[0].pending[0].o
    with pytest.raises(ConformanceFailure, match="o: error"):
        first.same_rows(second)
    assert first.subject.record()["checked"]


# Kills: rows that were rejected judged as if they were still held.
def test_rows_are_judged_late_without_those_that_were_rejected() -> None:
    LayerRun(subject(), CASE.with_(schedule="p0:5 v0:3 k0:6 d0")).run(judge=False).judge()


# Kills: a sink of another type or too few heads that a test goes on with.
@pytest.mark.parametrize("wrong", [torch.zeros(7), torch.zeros(8, dtype=torch.bfloat16), torch.zeros(8, 1), None])
def test_a_sink_has_a_float32_per_head(wrong: Any) -> None:
    led = LayerRun(subject(), CASE)
    assert led.sink().shape == (8,)
    led.session.unwrap().sink = lambda: wrong
    with pytest.raises(ContractViolation, match="the surface promises float32 of 8 heads or more"):
        led.sink()


# Kills: orders that are told for selections that were not shown, or that are listed by score.
@pytest.mark.parametrize(
    ("schedule", "shown", "ordered"), [("p0:30 d0", True, True), ("p0:272", True, False), ("p0:30", False, False)]
)
def test_whether_entries_are_listed_in_order_is_told(schedule: str, shown: bool, ordered: bool) -> None:
    Recording.changed = {} if shown else {"selected": lambda s: None}
    try:
        led = LayerRun(subject(), CASE.with_(schedule=schedule, ratio=4)).run(judge=False)
    finally:
        Recording.changed = {}
    assert led.ordered is ordered


# Kills: memory that is zeros as always, a switch that stays on after the block or after an error in it.
def test_unset_memory_is_nan_within_the_block_alone() -> None:
    switches: Any = import_module("torch.utils.deterministic")
    before = torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory
    with pytest.raises(ZeroDivisionError), unset_memory_is_nan():
        assert torch.empty(100).isnan().all() and torch.empty(3, dtype=torch.bfloat16).isnan().all()
        assert torch.empty_like(torch.zeros(9)).isnan().all() and torch.zeros(9).new_empty(9).isnan().all()
        raise ZeroDivisionError
    assert before == (torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory)
