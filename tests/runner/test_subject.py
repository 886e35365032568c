"""What a test holds: judging, relations, bits, arguments, and the record for the journal; and the worker's session."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.errors import BadInput, ConformanceFailure, ContractViolation
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.execute import Outputs
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.stream import judge_stream
from dsv4_conformance.runner.subject import Subject
from tests import miniatures

CASE = AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(70, 33, 64))
PREFILL = AttentionCase("SparsePrefill", 1, 3, 8, ScopeShape(70, 33))
CPU = torch.device("cpu")


def subject(adapter: type[Builtin] = Builtin) -> Subject:
    return Subject(adapter("cpu"), CPU, "INV-01")


# Kills: a record that says "checked" where nothing was compared.
def test_nothing_is_checked_until_something_is_compared() -> None:
    s = subject()
    s.run(s.build(CASE))
    record = s.record()
    assert record["checked"] is False and record["calls"] == 1 and record["margins"] == {} and record["margin"] == {}
    s.expect(True, "fine")
    assert s.record()["checked"] is True


# Kills: metrics, budgets or margins missing from the journal; the published rule as a verdict; values JSON cannot hold.
def test_a_judged_case_leaves_a_full_record() -> None:
    s = subject()
    s.judge(s.build(PREFILL))
    s.note(extra=1)
    record = s.record()
    assert record["checked"] and record["status_hint"] == "PASS" and record["calls"] == 1
    for output in ("out", "lse", "max_logits"):
        assert 0 <= record["metrics"][f"{output}_ratio"] <= 1 and record["budget"][output] > 0
    assert record["metrics"]["published_rule_passes"] in (True, False) and record["metrics"]["extra"] == 1
    assert set(record["budget"]["derivation"]) == {"out", "lse"}
    assert record["margins"]["zeros"]["out"] > 3
    assert record["margin"]["out"] == min(m["out"] for m in record["margins"].values() if "out" in m)
    json.dumps(record)


# Kills: the last verdict in place of the worst, margins of the last call in place of the first.
def test_the_worst_verdict_of_several_calls_is_kept() -> None:
    s = subject()
    call = s.build(CASE)
    s.judge(call)
    first, truth = s.record(), s.truth(call)
    wide = replace(truth.budgets, out=truth.budgets.out * 100, lse=truth.budgets.lse * 100)
    s.judge(call, replace(truth, budgets=wide))
    assert s.record()["metrics"] == first["metrics"] and s.record()["budget"] == first["budget"]
    narrow = replace(truth.budgets, lse=truth.budgets.lse / 1.001)
    s.judge(call, replace(truth, budgets=narrow))
    assert s.record()["metrics"]["lse_ratio"] == pytest.approx(first["metrics"]["lse_ratio"] * 1.001)
    s.judge(replace(call, sink=None))
    assert s.record()["margins"] == first["margins"] and "sink_dropped" in first["margins"]


# Kills: failures without output, place or mistake; expectations that are explained by a mistake of another call.
def test_a_wrong_answer_fails_with_its_place_and_its_mistake() -> None:
    s = subject(miniatures.SinkDropped)
    call = s.build(CASE)
    with pytest.raises(ConformanceFailure, match=r"^out: .*at query row \d, head \d+; the row is .*: sink_dropped "):
        s.judge(call)
    with pytest.raises(ConformanceFailure) as told:
        s.judge(call, s.truth(call))
    assert "sink_dropped" not in str(told.value)
    assert s.record()["checked"] is True


# Kills: heads compared that were not asked for.
def test_only_the_asked_heads_are_compared() -> None:
    s = subject()
    call = s.build(CASE)
    truth = s.truth(call)
    wrong = replace(truth, answer=replace(truth.answer, out=truth.answer.out + (torch.arange(8) == 7)[:, None]))
    s.judge(call, wrong, heads=slice(0, 7))
    with pytest.raises(ConformanceFailure, match="head 7"):
        s.judge(call, wrong)


def outputs(out: float = 1.0, lse: float = 2.0, top: float | None = 3.0) -> Outputs:
    return Outputs(
        torch.full((2, 4, 512), out, dtype=torch.bfloat16),
        torch.full((2, 4), lse),
        None if top is None else torch.full((2, 4), top),
    )


# Kills: bits compared as values, an output left out, a place that does not help.
def test_bits_must_agree_in_every_output() -> None:
    s = subject()
    s.same_bits(outputs(math.nan, math.inf), outputs(math.nan, math.inf), "between two runs")
    s.same_bits(outputs(top=None), outputs(), "between two runs")
    for other, said in (
        (outputs(out=-1.0), r"out differs in 4096 elements, first at \[0, 0, 0\], between two runs\."),
        (outputs(lse=2.5), "lse differs in 8 elements"),
        (outputs(top=3.5), "max_logits differs in 8 elements"),
    ):
        with pytest.raises(ConformanceFailure, match=said):
            s.same_bits(outputs(), other, "between two runs")
    with pytest.raises(ConformanceFailure, match="lse differs"):
        s.same_bits(outputs(lse=0.0), outputs(lse=-0.0), "between two runs")
    one, other = outputs(), outputs()
    other.lse[1, 3] = 0.0
    s.same_bits(one, other, "there", heads=slice(0, 3))
    with pytest.raises(ConformanceFailure, match=r"lse differs in 1 elements, first at \[1, 1\]"):
        s.same_bits(one, other, "there", heads=torch.tensor([0, 3]))


class Asked(Builtin):
    """Writes into whatever it is asked about."""

    def padded_heads(self, n_heads: int, tp: int) -> int:
        raise KeyError("no such head\ncount")

    def pack(self, tokens: Any, slots: Any, pages: Any) -> None:
        tokens.mul_(2)


# Kills: arguments that may change although nobody allowed it, an allowance for the wrong one, multi-line reasons.
def test_asking_watches_the_arguments() -> None:
    s = subject(Asked)
    three = [torch.ones(3), torch.zeros(1), torch.zeros(1)]
    with pytest.raises(ContractViolation, match=r"builtin\.pack changed its input argument 0"):
        s.ask("pack", *three, writes=(2,))
    s.ask("pack", *three, writes=(0,))
    with pytest.raises(ConformanceFailure, match=r"^builtin\.padded_heads raised KeyError: 'no such head"):
        s.ask("padded_heads", 64, 2)
    assert s.record()["calls"] == 3


# Kills: shapes and dtypes that are looked at one without the other.
def test_promised_forms() -> None:
    s = subject()
    good = torch.zeros(2, 3)
    assert s.promised("unpack", good, (2, 3), torch.float32) is good
    for bad in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64), None):
        with pytest.raises(ContractViolation, match=r"^builtin\.unpack returned"):
            s.promised("unpack", bad, (2, 3), torch.float32)


# Kills: a subject that carries over what another case left, an instance per case, tracebacks from constructors.
def test_a_session_keeps_one_adapter_and_gives_fresh_subjects() -> None:
    session = Session(Builtin, "cpu")
    planned = PlannedCase("INV-02-0", "INV-02", CASE.surface, CASE)
    one, other = session.subject(planned), session.subject(planned)
    assert one is not other and one.implementation is other.implementation and one.requirement == "INV-02"

    class Broken(Builtin):
        def __init__(self, device: str) -> None:
            raise ImportError("libfoo.so is missing\nmore")

    with pytest.raises(BadInput) as told:
        Session(Broken, "cpu")
    assert str(told.value) == (
        "Adapter 'builtin' raised ImportError: libfoo.so is missing more, when it was constructed; mend its __init__."
    )

    class Refuses(Builtin):
        def __init__(self, device: str) -> None:
            raise BadInput("install libfoo.")

    with pytest.raises(BadInput, match=r"^install libfoo\.$"):
        Session(Refuses, "cpu")


# Kills: a stream that judges otherwise than a subject does, loses the last case, or stops at a broken one.
def test_a_stream_judges_as_a_subject_does() -> None:
    cases = [CASE, CASE.with_(seed=1), PREFILL, PREFILL.with_(seed=1)]
    judged = list(judge_stream(Builtin("cpu"), CPU, cases, margins=True))
    assert [j.case for j in judged] == cases and all(not j.failures() for j in judged)
    for case, found in zip(cases, judged, strict=True):
        s = subject()
        s.judge(build(case, "cpu"))
        metrics = s.record()["metrics"]
        assert {v.output: v.ratio for v in found.verdicts} == {
            v.output: metrics[f"{v.output}_ratio"] for v in found.verdicts
        }
        assert found.margins == s.record()["margins"]
    wrong = list(judge_stream(miniatures.Zeros("cpu"), CPU, cases))
    assert all(j.failures() and j.margins == {} for j in wrong)
    broken = list(judge_stream(miniatures.DeclaresEveryHeadCount("cpu"), CPU, [CASE, CASE.with_(h_q=1), CASE]))
    assert [bool(j.broken) for j in broken] == [False, True, False]
    assert "raised ValueError" in broken[1].failures()[0]


# Kills: a state tensor whose shape, error or record is not looked at; nothing compared that counts as checked.
def test_a_state_tensor_is_judged_and_recorded() -> None:
    s = subject()
    want = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    s.close("entries", torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.float64))
    assert s.record()["checked"] is False
    s.close("entries", want.float() + 1e-5, want)
    s.close("entries", want.float(), want)
    record = s.record()
    assert record["checked"] and 0.4 < record["metrics"]["entries_ratio"] < 0.6
    assert record["metrics"]["entries_error"] == pytest.approx(1e-5, rel=0.02)
    assert record["budget"]["entries"] == pytest.approx(2e-5) and set(record["budget"]["derivation"]) == {"entries"}
    with pytest.raises(ConformanceFailure, match=r"entries: error .* at row 0, element 1\."):
        s.close("entries", want.float() + torch.tensor([[0, 1.0]]), want)
    with pytest.raises(ConformanceFailure, match=r"entries is \(1, 1\) where \(1, 2\) is right"):
        s.close("entries", want[:, :1], want)
    with pytest.raises(ConformanceFailure, match="NoneType"):
        s.close("entries", None, want)
