"""Captured steps against eager ones, on static buffers where there is no CUDA (spec §14, §15)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla import cuda_graph
from dsv4_conformance.mla.cuda_graph import DecodeGraph, Piece, PrefillGraph
from dsv4_conformance.mla.heads import LocalSink
from dsv4_conformance.mla.layer import AttentionLayer
from tests.mla.layers import FLAVOURS, close, make_spec, new, open_layer, same, snapshot, tokens

RATIOS = (0, 4, 128)


# Kills: bounds or page tables of the capture, rows of another chunk, rows beyond the batch left from the step before,
# a path that is not the one asked for, results that the next replay overwrites.
@pytest.mark.parametrize(
    ("ratio", "quantised", "path"),
    [
        (0, False, "sparse"),
        (0, True, "paged"),
        (4, False, "sparse"),
        (4, False, "paged"),
        (4, True, "paged"),
        (128, False, "paged"),
        (128, True, "sparse"),
    ],
)
def test_replayed_prefills_equal_eager_ones(ratio: int, quantised: bool, path: str) -> None:
    eager, layer = (open_layer(ratio, quantised=quantised) for _ in range(2))
    graph = PrefillGraph(layer, 22)
    batches = ({0: 10}, {0: 3, 1: 9}, {1: 1}, {2: 17, 0: 2}, {0: 1, 1: 2, 2: 1})  # 17: more than a ring of C4
    for one in (eager, layer) if ratio == 128 else ():
        one.step(new((0, tokens(122))))
    kept: list[tuple[Any, list[Tensor]]] = []
    for place, batch in enumerate(batches):
        layer.poison()
        segments = new(*((sequence, tokens(n, seed=9 * place + sequence)) for sequence, n in batch.items()))
        want, got = eager.step(segments, path=path), graph.replay(segments, path)
        assert got.path == path and len(got.o) == sum(batch.values())
        close(got, want, 1e-5 if not quantised else 3e-3)
        assert got.q is not None and want.q is not None
        torch.testing.assert_close(got.q, want.q, rtol=0, atol=1e-5)
        if ratio == 4 and not quantised:
            assert got.selected is not None and want.selected is not None
            assert got.selected.sort(1).values.equal(want.selected.sort(1).values)
        kept.append((got, [part.clone() for part in got[:4] if part is not None]))
    for got, parts in kept:
        assert all(torch.equal(a, b) for a, b in zip((x for x in got[:4] if x is not None), parts, strict=True))


# Kills: static rows of a batch that is gone, lengths of the capture, results that the next replay overwrites.
@pytest.mark.parametrize(
    ("ratio", "precision", "quantised"),
    [(0, "float32", True), (128, "float32", False), *((4, *flavour) for flavour in FLAVOURS)],
)
def test_replayed_decodes_equal_eager_ones(ratio: int, precision: Any, quantised: bool) -> None:
    eager, layer = (open_layer(ratio, precision, quantised) for _ in range(2))
    graph = DecodeGraph(layer, 4)
    start = new((0, tokens(126 if ratio == 128 else 18)), (1, tokens(38, seed=1)))
    for one in (eager, layer):
        one.step(start)
    kept = []
    for place, batch in enumerate([(0, 1), (1,), (2, 0, 1), (1, 0), (2,)]):
        layer.poison()
        segments = new(*((sequence, tokens(1, seed=9 * place + sequence)) for sequence in batch))
        want, got = eager.step(segments, "decode"), graph.replay(segments)
        close(got, want, 1e-5 if precision == "float32" else 2e-2)
        kept.append((got.out, got.out.clone(), got.selected, None if got.selected is None else got.selected.clone()))
    for out, then, selected, chosen in kept:
        assert torch.equal(out, then) and (selected is None or chosen is None or torch.equal(selected, chosen))
    held = graph.metadata.seq_lens.clone()
    graph.replay_only()
    assert torch.equal(graph.metadata.seq_lens, held) and held.tolist() == [2, 0, 0, 0]


# Kills: tokens taken before the batch is known to fit, a decode of several tokens, prefill modes in a decode graph.
@pytest.mark.parametrize(
    ("mode", "batch", "said"),
    [
        ("decode", [(0, 1), (1, 1), (2, 1)], "3 tokens do not fit into a graph of 2 rows; capture a larger one"),
        ("decode", [(0, 2)], "sequence 0 decodes 2 tokens"),
        ("decode", [(0, 1), (0, 1)], r"sequences \[0, 0\] of one step are not distinct"),
        ("prefill", [(0, 2), (1, 1)], "3 tokens do not fit into a graph of 2 rows"),
        ("prefill", [(0, 0)], "sequence 0 is given 0 tokens"),
        ("prefill", [(3, 1), (4, 1)], r"sequences \[3, 4\] need 2 state rows and 1 are free"),
    ],
)
def test_a_replay_that_is_refused_changes_nothing(mode: str, batch: list[tuple[int, int]], said: str) -> None:
    layer = open_layer(4)
    layer.step(new((0, tokens(5)), (1, tokens(3))))
    graph = layer.capture(2, mode)
    before = snapshot(layer)
    with pytest.raises(BadInput, match=said):
        graph.replay(new(*((sequence, tokens(n)) for sequence, n in batch)))
    assert same(before, snapshot(layer))


@pytest.mark.parametrize("kind", [DecodeGraph, PrefillGraph])
def test_a_step_without_rows_is_not_captured(kind: Any) -> None:
    with pytest.raises(BadInput, match="a step of 0 rows cannot be captured"):
        kind(open_layer(0), 0)


# Kills: a path word that a replay takes for another.
def test_a_prefill_replay_refuses_an_unknown_path() -> None:
    layer = open_layer(0)
    graph, before = PrefillGraph(layer, 3), snapshot(layer)
    with pytest.raises(BadInput, match="path is 'dense'"):
        graph.replay(new((0, tokens(1))), "dense")
    assert same(before, snapshot(layer))


# Kills: a tensor that captured kernels hold and addresses leaves out, lists of the eager attention counted among them.
@pytest.mark.parametrize("ratio", RATIOS)
def test_addresses_name_what_captured_kernels_hold(ratio: int) -> None:
    layer = open_layer(ratio, tp=2, rank=1)
    decode, prefill = layer.capture(3), layer.capture(9, "prefill")
    for graph in (decode, prefill):
        held = graph.addresses()
        assert {"x", "sink", "rope table", "metadata.state_rows", "metadata.raw_out_loc", "cache.window"} <= set(held)
        assert held["sink"] == layer.sink().data_ptr() and held["rope table"] == layer.table.data_ptr()
        assert {name for name in held if name.startswith("cache.")} == {f"cache.{n}" for n in layer.caches.storage()}
        first = dict(held)
        graph.replay(new((0, tokens(1))))
        layer.load_sink(tokens(4)[:, 0])
        graph.replay(new((0, tokens(1)), (1, tokens(1))))
        assert graph.addresses() == first
    assert {"metadata.page_table", "metadata.swa_page_indices"} <= set(decode.addresses())
    only = set(prefill.addresses()) - set(decode.addresses())
    assert only == {"bounds", "o"} and "metadata.swa_page_indices" not in prefill.addresses()


# Kills: an update that reaches captured kernels only if load_sink was called, or only at the step after the next one.
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_replay_brings_the_sink_up_to_date_first(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    layer = open_layer(0, tp=2, rank=1)
    graph = layer.capture(2, mode)
    local, seen = layer.local_sink._local, []
    layer.attn_sink.fill_(3.0)

    def run(piece: Piece) -> tuple[Tensor, ...]:
        seen.append(local[:2].tolist())
        return piece.results

    monkeypatch.setattr(Piece, "run", run)
    graph.replay(new((0, tokens(1))))
    assert seen[0] == [3.0, 3.0]


# Kills: a slice that is read inside the capture, where nothing runs, and is taken for up to date.
def test_the_sink_is_read_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Begins(Exception):
        """The capture begins."""

    def capture(*_: Any) -> None:
        raise Begins

    monkeypatch.setattr(cuda_graph, "Piece", capture)
    for kind in (DecodeGraph, PrefillGraph):
        layer = open_layer(0, tp=2, rank=1)
        with pytest.raises(Begins):
            kind(layer, 2)
        assert layer.local_sink._local[:2].equal(layer.attn_sink[2:])


class _OnCuda(Tensor):
    """A CPU tensor that says that it lies on a GPU."""

    is_cuda = True


# Kills: a sink first read inside a capture, where copies are recorded and not made, taken for up to date afterwards.
def test_a_first_forward_inside_a_capture_leaves_the_sink_to_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.arange(8.0).as_subclass(_OnCuda)
    local, capturing = LocalSink(parameter, 1, 2), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    storage = local.get()
    storage.zero_()  # what the recorded copy has not done yet
    assert local.get()[:4].tolist() == [4, 5, 6, 7]
    storage.zero_()
    capturing[0] = False
    assert local.get()[:4].tolist() == [4, 5, 6, 7] and local.get().data_ptr() == storage.data_ptr()
    storage.zero_()
    assert not local.get().any()  # up to date: nothing is copied any more


# Kills: a captured step that attends through the workspace, whose address a longer batch changes.
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_no_captured_piece_uses_the_workspace(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    layer = open_layer(4)
    layer.attention.workspace._device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    graph = layer.capture(4, mode)
    assert layer.attention.workspace.rows == 0
    eager: AbstractContextManager[Any] = nullcontext()
    if mode == "prefill":  # its attention is eager, and so is what it uses
        eager = pytest.raises(RuntimeError, match="asked for during graph capture; run the step eagerly")
    with eager:
        graph.replay(new((0, tokens(1))))


# Kills: scores for the entries that are live at capture, a step whose shapes follow from its batch.
def test_a_captured_step_has_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, widths = open_layer(4), []
    assert layer.caches.indexer is not None
    right = layer.caches.indexer.scores_paged

    def scored(iq: Tensor, w: Tensor, pool: Any, table: Tensor, entries: int) -> Tensor:
        widths.append((len(iq), entries))
        return right(iq, w, pool, table, entries)

    monkeypatch.setattr(layer.caches.indexer, "scores_paged", scored)
    layer.step(new((0, tokens(20))))
    for mode, batch in (("decode", new((0, tokens(1)))), ("prefill", new((0, tokens(3)), (1, tokens(2))))):
        widths.clear()
        graph = layer.capture(6, mode)
        graph.replay(batch)
        assert set(widths) == {(6, 128)}


# Kills: results of a run that lie elsewhere than those of the capture.
def test_a_piece_rewrites_its_results_in_place() -> None:
    x = torch.zeros(2)
    piece = Piece(lambda: (x + 1,), torch.device("cpu"))
    (first,) = piece.results
    x += 5
    assert piece.run()[0] is first and first.tolist() == [6, 6]


# Kills: a mode that capture does not know taken for prefill.
def test_capture_takes_decode_and_prefill() -> None:
    layer = AttentionLayer(make_spec(0), "cpu")
    assert isinstance(layer.capture(1), DecodeGraph) and isinstance(layer.capture(1, "prefill"), PrefillGraph)
    with pytest.raises(BadInput, match="verify steps are not captured; use decode or prefill"):
        layer.capture(1, "verify")
