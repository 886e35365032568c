"""Which kernels a layer gets, the head counts they take, and what FlashMLA is called with (spec §10, §11, §15)."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla import backend
from dsv4_conformance.mla.backend import ExactKernels, FlashKernels, Listed, TorchKernels, kernels_for, masked
from dsv4_conformance.mla.kernels import exact, flash_mla
from dsv4_conformance.mla.pools import KVPool

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def engine(legacy: bool = True, **more: Any) -> Any:
    return SimpleNamespace(has_legacy=lambda: legacy, **more)


# Kills: FlashMLA on a card that it is not built for, no way to do without it, float32 sent to bf16 kernels.
@pytest.mark.parametrize(
    ("device", "major", "precision", "name", "there", "chosen"),
    [
        (CPU, 0, "float32", "auto", True, "exact"),
        (CUDA, 9, "float32", "auto", True, "exact"),
        (CPU, 0, "bfloat16", "auto", True, "torch"),
        (CUDA, 9, "bfloat16", "auto", True, "flash_mla"),
        (CUDA, 10, "bfloat16", "auto", True, "flash_mla"),
        (CUDA, 8, "bfloat16", "auto", True, "torch"),
        (CUDA, 12, "bfloat16", "auto", True, "torch"),
        (CUDA, 9, "bfloat16", "auto", False, "torch"),
        (CUDA, 9, "bfloat16", "torch", True, "torch"),
        (CUDA, 9, "bfloat16", "flash_mla", True, "flash_mla"),
    ],
)
def test_kernels_follow_device_precision_and_name(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    major: int,
    precision: str,
    name: str,
    there: bool,
    chosen: str,
) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", engine() if there else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where: (major, 0))
    assert kernels_for(device, precision, name).name == chosen


# Kills: a forced engine that silently becomes another one; sentences without the remedy.
def test_flash_mla_that_is_forced_and_cannot_serve_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where: (9, 0))
    with pytest.raises(BadInput, match="sm_90 and sm_100 only, not on cpu; open the layer with torch kernels"):
        kernels_for(CPU, "bfloat16", "flash_mla")
    with pytest.raises(BadInput, match=r"FlashMLA cannot be loaded \(.*flash_mla.*\); install it with `pip install"):
        kernels_for(CUDA, "bfloat16", "flash_mla")
    monkeypatch.setitem(sys.modules, "flash_mla", engine(legacy=False))
    with pytest.raises(BadInput, match="lacks the kernels for the 584-byte cache; install"):
        kernels_for(CUDA, "bfloat16", "flash_mla")


# Kills: spec §15's count where no kernel takes it (8 heads at tp 1), the larger kernel for few heads.
@pytest.mark.parametrize(
    ("n_heads", "tp", "padded"),
    [(8, 1, 64), (64, 1, 64), (65, 1, 128), (128, 1, 128), (64, 8, 64), (128, 2, 64), (128, 16, 64)],
)
def test_flash_mla_takes_64_or_128_heads(n_heads: int, tp: int, padded: int) -> None:
    kernels = object.__new__(FlashKernels)
    assert kernels.heads(n_heads, tp) == padded
    own = n_heads if tp == 1 else padded
    assert TorchKernels().heads(n_heads, tp) == ExactKernels().heads(n_heads, tp) == own


@pytest.mark.parametrize(("n_heads", "tp"), [(129, 1), (512, 2)])
def test_more_heads_than_any_kernel_takes_are_refused(n_heads: int, tp: int) -> None:
    with pytest.raises(BadInput, match=f"{n_heads // tp} heads per rank exceed the 128 .* use a larger tp"):
        object.__new__(FlashKernels).heads(n_heads, tp)


def listed(size: int, slots: list[list[int]], lengths: list[int], seed: int) -> Listed:
    pool = KVPool(3, size, True, torch.bfloat16, "cpu")
    rows = torch.randn(2 * size, 512, generator=torch.Generator().manual_seed(seed))
    pool.store(rows, torch.arange(size, 3 * size))
    return Listed(pool, torch.tensor(slots, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32))


WINDOW = listed(4, [[5, 9, 4, -1], [4, 4, 7, 8], [5, 6, 6, 4]], [3, 2, 0], 1)
EXTRA = listed(2, [[3, -1], [2, 5], [4, 4]], [1, 2, 1], 2)
Q = torch.randn(3, 8, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
SINK = torch.tensor([0.5, -torch.inf, torch.inf, 1.0, 2.0, 0.0, -1.0, 3.0])


# Kills: a scope, a length, a hole or the sink that one of the two kernel sets overlooks; the scale left out.
@pytest.mark.parametrize("extra", [None, EXTRA])
def test_kernel_sets_agree(extra: Listed | None) -> None:
    one, other = TorchKernels(), ExactKernels()
    a = one.paged(Q, WINDOW, extra, SINK, 0.05, None).float()
    b = other.paged(Q.float(), WINDOW, extra, SINK, 0.05, None)
    torch.testing.assert_close(a, b, rtol=0, atol=0.03)
    assert not b[:, 2].any() and bool(b[1, 0].any()) and bool((b[2] != 0).any()) is (extra is not None)
    rows = torch.randn(10, 1, 512, generator=torch.Generator().manual_seed(4)).bfloat16()
    for lengths in (WINDOW.lengths, None):
        a = one.rows(Q, rows, WINDOW.slots, lengths, SINK, 0.05).float()
        b = other.rows(Q.float(), rows.float(), WINDOW.slots, lengths, SINK, 0.05)
        torch.testing.assert_close(a, b, rtol=0, atol=0.03)
        assert bool(b[2].any()) is (lengths is None)


# Kills: pieces that lose or repeat rows, in either way; a piece of no rows where one row exceeds the scratch.
@pytest.mark.parametrize("scratch", [1, 2 * 6 * 512 * 4])
def test_scratch_bounds_change_nothing(monkeypatch: pytest.MonkeyPatch, scratch: int) -> None:
    kernels, rows = ExactKernels(), torch.randn(10, 1, 512)

    def run() -> tuple[Tensor, Tensor]:
        return (
            kernels.paged(Q.float(), WINDOW, EXTRA, SINK, 0.05, None),
            kernels.rows(Q.float(), rows, WINDOW.slots, None, SINK, 0.05),
        )

    whole = run()
    monkeypatch.setattr(exact, "SCRATCH_BYTES", scratch)
    for a, b in zip(run(), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


# Kills: <= for <, holes made slots, a copy of lists that have no lengths.
def test_lists_end_at_their_length() -> None:
    assert masked(WINDOW.slots, WINDOW.lengths).tolist() == [[5, 9, 4, -1], [4, 4, -1, -1], [-1] * 4]
    assert masked(WINDOW.slots, None) is WINDOW.slots


# Kills: a plan that is used again, lists of two dims where FlashMLA takes three, scopes or sinks in each other's place.
def test_flash_mla_is_called_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def decode(**given: Any) -> tuple[Tensor, Tensor]:
        calls.append(given)
        return given["q"] * 2, torch.zeros(1)

    def prefill(**given: Any) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(given)
        return given["q"] * 3, torch.zeros(1), torch.zeros(1)

    flash = engine(
        flash_mla_with_kvcache=decode,
        flash_mla_sparse_fwd=prefill,
        get_mla_metadata=lambda: ([len(calls)], None),
    )
    monkeypatch.setitem(sys.modules, "flash_mla", flash)
    kernels = FlashKernels()
    plan = kernels.plan()
    assert plan == [0]
    assert torch.equal(kernels.paged(Q, WINDOW, EXTRA, SINK, 0.25, plan), Q * 2)
    assert torch.equal(kernels.paged(Q, WINDOW, None, SINK, 0.25, kernels.plan()), Q * 2)
    rows = torch.zeros(10, 1, 512)
    assert torch.equal(kernels.rows(Q, rows, WINDOW.slots, WINDOW.lengths, SINK, 0.25), Q * 3)
    both, window, prefilled = calls
    for call in (both, window):
        assert call["q"].shape == (3, 1, 8, 512) and call["indices"].shape == (3, 1, 4)
        assert call["k_cache"] is WINDOW.pool.pages and call["topk_length"] is WINDOW.lengths
        assert call["attn_sink"] is SINK and call["softmax_scale"] == 0.25 and call["head_dim_v"] == 512
        assert call["is_fp8_kvcache"] is True and call["use_legacy"] is True
    assert both["tile_scheduler_metadata"] is plan and window["tile_scheduler_metadata"] == [1]
    assert both["extra_k_cache"] is EXTRA.pool.pages and both["extra_topk_length"] is EXTRA.lengths
    assert both["extra_indices_in_kvcache"].equal(EXTRA.slots[:, None])
    assert [window[f"extra_{n}"] for n in ("k_cache", "topk_length", "indices_in_kvcache")] == [None] * 3
    assert prefilled["kv"] is rows and prefilled["indices"].equal(WINDOW.slots[:, None])
    assert prefilled["topk_length"] is WINDOW.lengths and prefilled["attn_sink"] is SINK
    assert prefilled["sm_scale"] == 0.25 and prefilled["d_v"] == 512
    assert flash_mla.HEADS == (64, 128) and backend.FlashKernels.name == "flash_mla"
