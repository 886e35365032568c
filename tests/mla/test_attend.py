"""Ways to attend: pieces of long batches, lists, sinks and the chunk cache that layers share (spec §8 to §13)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.mla import attend
from dsv4_conformance.mla.backend import ExactKernels, Listed
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from tests.mla.layers import close, make_spec, new, open_layer, tokens


class Seen(ExactKernels):
    """Exact kernels that remember what they were called with."""

    name = "seen"

    def __init__(self) -> None:
        self.plans: list[object] = []
        self.calls: list[tuple[str, int, int, Tensor, object]] = []

    def plan(self) -> Any:
        self.plans.append(object())
        return self.plans[-1]

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        width = window.slots.shape[1] + (0 if extra is None else extra.slots.shape[1])
        for scope in (window, extra):
            if scope is not None:
                assert len(scope.slots) == len(scope.lengths) == len(q)
                assert int(scope.lengths.min()) >= 0 and int(scope.lengths.max()) <= scope.slots.shape[1]
                assert scope.slots.shape[1] % 64 == 0 or scope.pool.page_size == 64  # index_topk is 8 here
        self.calls.append(("paged", len(q), width, sink, plan))
        return super().paged(q, window, extra, sink, scale, plan)

    def rows(self, q: Tensor, rows: Tensor, indices: Tensor, *rest: Any) -> Tensor:
        self.calls.append(("rows", len(q), indices.shape[1], rest[1], None))
        return super().rows(q, rows, indices, *rest)


def seen(ratio: int, quantised: bool = False, **changes: Any) -> tuple[AttentionLayer, Seen]:
    kernels = Seen()
    return AttentionLayer(make_spec(ratio, quantised=quantised, **changes), "cpu", kernels=kernels), kernels


# Kills: a piece of the wrong lists or lengths, rows left over, one plan for pieces whose lengths differ.
@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("fewer", [17, 1, 0])
def test_long_batches_are_attended_to_in_pieces(monkeypatch: pytest.MonkeyPatch, ratio: int, fewer: int) -> None:
    rows = 130 if ratio == 128 else 40
    batch, limit = new((0, tokens(rows - 2)), (1, tokens(2))), rows - fewer
    whole = open_layer(ratio, quantised=True).step(batch, path="paged")
    layer, kernels = seen(ratio, quantised=True)
    monkeypatch.setattr(attend, "MAX_PAGED_ROWS", limit)
    close(layer.step(batch, path="paged"), whole)
    assert [n for _, n, *_ in kernels.calls] == [limit] + [fewer] * (fewer > 0)
    plans = [plan for *_, plan in kernels.calls]
    assert plans == kernels.plans and len(set(map(id, plans))) == len(plans)


class Silent(Seen):
    """Kernels that compute nothing."""

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        self.calls.append(("paged", len(q), window.slots.shape[1], sink, plan))
        return q


# Kills: a limit that FlashMLA's scheduler does not have, an extra piece at the limit.
@pytest.mark.parametrize(("rows", "pieces"), [(11673, [11673]), (11674, [11673, 1])])
def test_one_call_takes_11673_rows(rows: int, pieces: list[int]) -> None:
    kernels = Silent()
    layer = AttentionLayer(make_spec(0, quantised=True), "cpu", kernels=kernels)
    out = layer.attention.paged(torch.zeros(rows, 4, 512), layer.metadata([], rows))
    assert out.shape == (rows, 4, 512) and [n for _, n, *_ in kernels.calls] == pieces


# Kills: lists of a width that no kernel takes, lengths beyond it, a path that is given other sinks, a way that does not
# fit the rows.
@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_every_way_is_given_the_same_sink_and_widths_that_fit(ratio: int) -> None:
    for quantised, path, way in ((False, "paged", "rows"), (True, "paged", "paged"), (True, "sparse", "rows")):
        layer, kernels = seen(ratio, quantised, tp=2, rank=1)
        layer.step(new((0, tokens(40))), path=path, padded_rows=2)
        [(name, rows, width, sink, _)] = kernels.calls
        assert (name, rows) == (way, 42)
        assert sink is layer.sink() and sink[:2].equal(layer.attn_sink[2:])
        assert width % 128 == 0 if way == "rows" else width >= 128


# Kills: a kernel that is called without rows.
def test_no_rows_call_no_kernel() -> None:
    layer, kernels = seen(4)
    assert layer.step([]).o.shape == (0, 4, 512) and kernels.calls == []


# Kills: a chunk cache made for every layer, one that the next forward is given, lists of another ratio.
def test_layers_of_one_forward_share_its_chunk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SparsePrefillChunkCache] = []
    build = SparsePrefillChunkCache.build

    def counted(*given: Any) -> SparsePrefillChunkCache:
        made.append(build(*given))
        return made[-1]

    monkeypatch.setattr(SparsePrefillChunkCache, "build", counted)
    workspace = SparsePrefillWorkspace("cpu", torch.float32)
    layers = [AttentionLayer(make_spec(ratio), "cpu", workspace=workspace) for ratio in (0, 4, 128)]
    for batch in (new((0, tokens(130)), (1, tokens(9))), new((0, tokens(9)), (1, tokens(130)))):
        runs = [layer.take(batch, "prefill") for layer in layers]
        meta, x = layers[0].metadata(runs[0], 0), layers[0].rows_of(batch, 0)
        for layer in layers:
            q = layer.before(x, meta, 64, runs[0])
            got, paged = (layer.attention.attend(q, meta, path, runs[0]) for path in ("sparse", "paged"))
            torch.testing.assert_close(got, paged, rtol=0, atol=1e-5)
            assert meta.chunk_cache() is made[-1]
    assert len(made) == 2


# Kills: the capacity of the page table gathered, whatever the requests hold.
@pytest.mark.parametrize(("ratio", "rows"), [(0, 140), (4, 35 + 140), (128, 1 + 140)])
def test_the_workspace_holds_what_the_batch_holds(ratio: int, rows: int) -> None:
    for room in (256, 1024):
        layer = open_layer(ratio, max_tokens=room)
        layer.step(new((0, tokens(140))))
        assert layer.attention.workspace.rows == rows
    layer.step(new((0, tokens(1))))
    assert layer.attention.workspace.rows == rows


# Kills: a workspace that two attention calls write to at once.
def test_attention_within_attention_is_refused() -> None:
    layer = open_layer(0)
    with layer.attention.workspace.use(1), pytest.raises(RuntimeError, match="one after the other"):
        layer.step(new((0, tokens(3))))
