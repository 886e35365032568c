"""What an adapter declares that it cannot do is not asked of it, and what is left out is never a pass."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.compressor_case import IndexerCase
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of
from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention, StateConvention
from dsv4_conformance.runner.declared import DROWNING, check_declared, need_padded_rows, need_paths
from dsv4_conformance.runner.indexing import fitted, judge_keys, led, need_pages
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.properties import judge_schedules
from dsv4_conformance.runner.subject import Subject

CPU = torch.device("cpu")
CASE = LayerCase("AttentionLayer", 0, "p0:3")


def declaring(indexer: StateConvention | None = None, base: type[Builtin] = Builtin, **declared: Any) -> Subject:
    class Adapter(base):  # type: ignore[valid-type, misc]
        surfaces: ClassVar[Any] = {
            "AttentionLayer": replace(LayerConvention(), **declared),
            "Indexer": indexer or StateConvention(),
        }

    return Subject(Adapter("cpu"), CPU, "INV-42")


# Kills: a limit that is not looked at, one token more or less, limits that hold for steps they do not concern.
@pytest.mark.parametrize(
    ("declared", "allowed", "refused"),
    [
        ({"lookback": 2}, "p0:9 v0:3 k0:10 p1:3 k1:1", "p0:9 v0:3 k0:10 d0 k0:8"),
        ({"lookback": 0}, "p0:9 v0:3 k0:12 r0 p0:1", "p0:9 k0:8"),
        ({"forks": "at the end"}, "p0:256 f0>1:256 d0+1 r0", "p0:257 f0>1:256"),
        ({"forks": "none"}, "p0:300 p1:3 d0+1 r1", "p0:256 f0>1:256"),
        ({"lockstep": True}, "x p0:9+1:4 d1+0~2 v0:3+1:3 r0 r1 p2:1+0:5 d0+2", "p0:9+1:4 d0"),
        ({"lockstep": True}, "p0:3 p0:5 d0", "p0:9+1:4 p0:2+1:3"),
        ({"lockstep": True}, "p0:3 r0 p1:5 d1", "p0:3 p1:3"),
        ({"lockstep": True}, "p1:3+0:3", "p0:9+1:4 r0 d1"),
        ({"lockstep": True}, "p1:3+0:3 r0 r1 p1:3 d1", "p0:9+1:4 r0 p0:3+1:3"),
    ],
)
def test_schedules_beyond_the_declaration_are_not_applicable(
    declared: dict[str, Any], allowed: str, refused: str
) -> None:
    check_declared(declaring(**declared), CASE.with_(schedule=allowed))
    with pytest.raises(NotApplicable, match="tokens"):
        check_declared(declaring(**declared), CASE.with_(schedule=refused))
    check_declared(declaring(), CASE.with_(schedule=refused))


# Kills: a path asked of an adapter that has none, its cases lost, a test of two paths that passes on one.
def test_an_adapter_without_a_choice_of_path_is_asked_for_none() -> None:
    asked = []

    class OnePath(Builtin):
        def open_layer(self, spec: Any) -> Any:
            layer: Any = super().open_layer(spec)
            right = layer.step

            def step(segments: Any, mode: str, padded_rows: int, path: str) -> Any:
                asked.append((path, padded_rows))
                return right(segments, mode=mode, padded_rows=padded_rows, path=path)

            layer.step = step
            return layer

    with pytest.raises(NotApplicable, match="path sparse is not among"):
        check_declared(declaring(paths=("paged",)), CASE.with_(path="sparse"))
    for declared in ({"paths": ()}, {"padded_rows": False}):
        LayerRun(declaring(base=OnePath, **declared), CASE.with_(path="sparse", schedule="p0:3~2")).run()
    assert asked == [("auto", 2), ("sparse", 0)]
    with pytest.raises(NotApplicable, match="no paged path"):
        need_paths(declaring(paths=("sparse",)), "sparse", "paged")
    with pytest.raises(NotApplicable, match="rows of nobody"):
        need_padded_rows(declaring(padded_rows=False))
    need_paths(declaring(), "sparse", "paged")
    need_padded_rows(declaring())


# Kills: sinks of -inf or finite ones changed, +inf handed to an adapter that declares none, one that hides nothing.
def test_sinks_of_infinity_are_replaced_by_ones_that_drown_the_keys() -> None:
    given = spec_of(CASE, CPU).weights.attn_sink
    assert given.isposinf().any() and given.isneginf().any()
    assert LayerRun(declaring(), CASE).spec.weights.attn_sink.equal(given)
    run = LayerRun(declaring(infinite_sinks=False), CASE).run()
    assert run.spec.weights.attn_sink.equal(given.masked_fill(given.isposinf(), DROWNING))
    assert run.output(0)[0][:, given.isposinf()].abs().max() < 1e-15


# Kills: quantised cases led all the same, keys taken as rotated that are not, missing pages that pass.
def test_indexers_without_fp8_rotation_or_pages_are_judged_by_what_they_have() -> None:
    class Unrotated(Builtin):
        def open_indexer(self, *given: Any) -> Any:
            from dsv4_conformance.oracle.indexer import hadamard

            session: Any = super().open_indexer(*given)
            right = session.keys
            session.keys = lambda sequence: hadamard(right(sequence)).float()
            return session

    case = IndexerCase("Indexer", "p0:9")
    plain = declaring(StateConvention(quantised=(False,), hadamard=False, paged=False), base=Unrotated)
    session = led(plain, case)
    judge_keys(plain, session, session.finish()[0])
    with pytest.raises(NotApplicable, match="quantised True"):
        led(plain, case.with_(quantised=True))
    assert fitted(plain, case.with_(quantised=True)) == case
    assert fitted(declaring(), case.with_(quantised=True)).quantised
    with pytest.raises(NotApplicable, match="no pages"):
        need_pages(plain)
    need_pages(declaring())


# Kills: one drawn schedule outside the declaration that ends the property, a property that passes on none.
def test_drawn_schedules_outside_the_declaration_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = " "

    def judge(_subject: Subject, case: LayerCase) -> None:
        if beyond in case.schedule:
            raise NotApplicable("not this one.")

    monkeypatch.setattr("dsv4_conformance.runner.properties.judge_schedule", judge)
    case, subject = PropertyCase("AttentionLayer", CASE.with_(schedule=""), 12, 20), declaring()
    judge_schedules(subject, case)
    metrics = subject.record()["metrics"]
    assert 0 < metrics["outside"] < metrics["schedules"]
    beyond = ""
    with pytest.raises(NotApplicable, match="not this one"):
        judge_schedules(subject, case)
