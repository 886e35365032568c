"""Judging a layer's rows stage by stage: each stage by what the layer itself made of the one before (spec §20)."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.numerics.layer import judge_rows, judge_selection, stored_rows
from dsv4_conformance.oracle import layer as oracle
from dsv4_conformance.oracle import layer_stages
from dsv4_conformance.oracle.rounding import cache_row
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import LayerSpec, Precision
from tests.mla.layers import make_spec, new, tokens

LENGTH = 60


def subject() -> Subject:
    return Subject(Builtin("cpu"), torch.device("cpu"), "INV-42")


def returned(spec: LayerSpec, x: Tensor) -> tuple[Any, Any]:
    """A right layer after x, and what it returned."""
    layer = AttentionLayer(spec, "cpu")
    out = layer.step(new((0, x)), path="paged")
    return layer, SimpleNamespace(positions=torch.arange(len(x)), **out._asdict())


def verdict(spec: LayerSpec, layer: Any, rows: Any, x: Tensor) -> str:
    """What judge_rows says, or nothing."""
    try:
        judge_rows(subject(), spec, layer, 0, x, rows)
    except ConformanceFailure as failure:
        return str(failure)
    return ""


# Kills: a budget that right rows break, a stage that is not judged, one judged by another stage's fault; a mistake of
# one stage that the later ones hide because they read the layer's own tensors.
@pytest.mark.parametrize(("precision", "quantised"), [("float32", False), ("float32", True), ("bfloat16", True)])
@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_each_stage_is_judged_by_itself(ratio: int, precision: Precision, quantised: bool) -> None:
    spec, x = make_spec(ratio, precision, quantised), tokens({0: 9, 4: LENGTH, 128: 130}[ratio])
    layer, rows = returned(spec, x)
    assert verdict(spec, layer, rows, x) == ""
    for name in ("q", "o", "out"):
        wrong = getattr(rows, name).clone()
        wrong[7] *= 1.1
        said = verdict(spec, layer, SimpleNamespace(**{**vars(rows), name: wrong}), x)
        assert said.startswith(f"{name}: error"), (name, said)
    if ratio == 4:
        wrong = rows.selected.clone()
        wrong[50, 3] = wrong[50, 4]
        said = verdict(spec, layer, SimpleNamespace(**{**vars(rows), "selected": wrong}), x)
        assert said == "selection: row 50 names 1 entries more than once (1 of 60 rows are wrong)."


# Kills: a stage that is judged from the oracle's own tensors where the layer's are shown, or the other way round.
@pytest.mark.parametrize(
    ("precision", "quantised", "own"),
    [
        ("float32", False, {"selected"}),
        ("float32", True, {"selected", "window_rows", "compressed_rows"}),
        ("bfloat16", True, {"selected", "window_rows", "compressed_rows", "q"}),
    ],
)
def test_the_oracle_reads_what_the_layer_stored(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, quantised: bool, own: set[str]
) -> None:
    spec, x = make_spec(4, precision, quantised), tokens(9)
    layer, rows = returned(spec, x)
    attended, projected = oracle.layer_output, layer_stages.output
    read: list[set[str]] = []
    outputs: list[Tensor] = []

    def attend(*given: Any, **named: Any) -> Any:
        read.append(set(named) - {"rounding"})
        return attended(*given, **named)

    def project(where: LayerSpec, o: Tensor, *rest: Any) -> Tensor:
        outputs.append(o)
        return projected(where, o, *rest)

    monkeypatch.setattr(oracle, "layer_output", attend)
    monkeypatch.setattr(layer_stages, "output", project)
    assert verdict(spec, layer, rows, x) == ""
    assert read == [own] * (2 if precision == "bfloat16" else 1)
    if precision == "bfloat16":
        assert all(torch.equal(o, rows.o.to(torch.float64)) for o in outputs[-2:])


# Kills: rows that need q or a selection; a selection of the oracle's where the layer shows its own; a shape that is not
# looked at.
def test_what_is_not_shown_is_what_the_definition_gives() -> None:
    spec, x = make_spec(4), tokens(LENGTH)
    layer, rows = returned(spec, x)
    assert verdict(spec, layer, SimpleNamespace(**{**vars(rows), "q": None, "selected": None}), x) == ""
    few = SimpleNamespace(**{**vars(rows), "o": rows.o[:, :3]})
    assert verdict(spec, layer, few, x) == "o is (60, 3, 512) where (60, 4, 512) is right (C4 layer)."
    # Scores that tie: the layer may choose either entry, and is then judged by the one it chose.
    tied = replace(spec, weights=replace(spec.weights, indexer=_deaf(spec)))
    layer, rows = returned(tied, x)
    other = layer_with_selection(tied, x, rows.selected.flip(1))
    assert verdict(tied, layer, other, x) == ""


def _deaf(spec: LayerSpec) -> Any:
    """An indexer whose scores are all 0."""
    indexer = spec.weights.indexer
    assert indexer is not None
    return replace(indexer, weights_proj=torch.zeros_like(indexer.weights_proj))


def layer_with_selection(spec: LayerSpec, x: Tensor, _: Tensor) -> Any:
    """What the layer returns if it takes the last visible entries instead of the first ones."""
    positions = torch.arange(len(x))
    seen = (positions + 1) // 4
    place = torch.arange(spec.geometry.index_topk)
    chosen = torch.where(place < seen.clamp(max=8)[:, None], seen[:, None] - 1 - place, -1)
    answer = oracle.layer_output(spec, x, positions, selected=chosen)
    return SimpleNamespace(positions=positions, o=answer.o, out=answer.out, q=answer.q, selected=chosen.int())


class Stores:
    """A session that shows given rows."""

    def __init__(self, window: Tensor, compressed: Tensor) -> None:
        self.window, self.compressed = window, compressed

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        return self.window[positions]

    def compressed_rows(self, sequence: int) -> Tensor:
        return self.compressed


def exact_rows(spec: LayerSpec, x: Tensor) -> tuple[Tensor, Tensor]:
    bare = replace(spec, quantised=False)
    return layer_stages.window_keys(bare, x, torch.arange(len(x))), layer_stages.compressed_entries(bare, x)


# Kills: room for two roundings; room in the rope dims, which are not quantised; a row or entry that is missing.
@pytest.mark.parametrize(
    ("precision", "quantised", "nope", "rope"),
    [("bfloat16", False, 2**-9, 2**-9), ("float32", True, 2**-4, 2**-9), ("bfloat16", True, 2**-4, 2**-9)],
)
def test_stored_rows_may_be_rounded_once(precision: Precision, quantised: bool, nope: float, rope: float) -> None:
    spec, x = make_spec(4, precision, quantised), tokens(12)
    window, entries = exact_rows(spec, x)
    where = torch.arange(512) < 448
    room = torch.where(where, nope, rope)
    held, kept = (cache_row(rows) if quantised else rows for rows in (window, entries))
    for sign in (1, -1):
        near = Stores(window * (1 + sign * room), entries * (1 + sign * room)) if not quantised else Stores(held, kept)
        found = stored_rows(spec, near, 0, x)
        assert found["window_rows"].dtype == torch.float64 and torch.equal(found["compressed_rows"], near.compressed)
    for element in (5, 500):
        far, right = held.clone(), torch.argmax(window[:, element].abs())
        # To bf16, the room is two roundings wide: one before it, of the arithmetic.
        beyond = 1 + float(room[element]) * (1.5 if room[element] > 2**-8 else 2.5)
        far[right, element] = window[right, element] * beyond
        with pytest.raises(ConformanceFailure, match=f"stored window row {int(right)}, element {element}: .* 1 of 12"):
            stored_rows(spec, Stores(far, kept), 0, x)
    moved = entries.roll(1, 0)
    with pytest.raises(ConformanceFailure, match=r"stored compressed entry 0, element .* 3 of 3 are wrong"):
        stored_rows(spec, Stores(held, moved), 0, x)
    with pytest.raises(ConformanceFailure, match=r"stored compressed entry: shape \(2, 512\) where \(3, 512\)"):
        stored_rows(spec, Stores(held, kept[:2]), 0, x)
    nothing = held.clone()
    nothing[3, 3] = torch.nan
    with pytest.raises(ConformanceFailure, match="stored window row 3, element 3: nan"):
        stored_rows(spec, Stores(nothing, kept), 0, x)
    if quantised:
        with pytest.raises(ConformanceFailure, match="stored window rows hold values that an fp8 page cannot hold"):
            stored_rows(spec, Stores(window, kept), 0, x)


# Kills: room for a layer that stores exact rows: its budget is that of the whole layer.
def test_rows_of_an_exact_layer_are_not_looked_at() -> None:
    spec, x = make_spec(4), tokens(12)
    _, rows = returned(spec, x)
    assert verdict(spec, Stores(torch.zeros(12, 512), torch.zeros(3, 512)), rows, x) == ""


# Kills: a band as wide as the scores, none where fp8 keys move scores, scores read where all entries fit.
@pytest.mark.parametrize(("precision", "quantised"), [("float32", False), ("float32", True), ("bfloat16", True)])
def test_selections_are_top_entries_up_to_noise(precision: Precision, quantised: bool) -> None:
    spec, x = make_spec(4, precision, quantised), tokens(LENGTH)
    positions = torch.arange(LENGTH)
    chosen = oracle.selection(replace(spec, quantised=False), x, positions).int()
    judge_selection(spec, x, positions, chosen)
    scores = oracle.selection_scores(replace(spec, quantised=False), x, positions)
    visible = torch.arange(15) < ((positions + 1) // 4)[:, None]
    ranked = scores.masked_fill(~visible, -torch.inf).argsort(1, descending=True)
    worst = chosen.clone()
    worst[59, 0] = ranked[59, 14]
    if int(ranked[59, 0]) not in chosen[59, 1:].tolist():
        worst[59, 1] = ranked[59, 0]
    with pytest.raises(ConformanceFailure, match="selection: row 59 names"):
        judge_selection(spec, x, positions, worst)
    short = chosen.clone()
    short[20, 2] = -1
    with pytest.raises(ConformanceFailure, match="selection: row 20 names 4 entries instead of 5"):
        judge_selection(spec, x, positions, short)


# Kills: scores, which cost most of a judgement, made for rows that see no more than they may choose.
def test_scores_are_made_where_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, x = make_spec(4), tokens(35)

    def forbidden(*_: Any) -> None:
        raise AssertionError("scores were made")

    monkeypatch.setattr(oracle, "selection_scores", forbidden)
    chosen = torch.where(torch.arange(8) < ((torch.arange(35) + 1) // 4)[:, None], torch.arange(8), -1)
    judge_selection(spec, x, torch.arange(35), chosen.int())
    with pytest.raises(AssertionError, match="scores were made"):
        judge_selection(spec, tokens(36), torch.arange(36), torch.cat((chosen, chosen[-1:])).int())
