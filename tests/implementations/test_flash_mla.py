"""The FlashMLA adapter against a stand-in for the wheel: its interface and refusals, the built-in's arithmetic."""

import importlib.util
import math
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.flash_mla import FlashMLA

SCALE = 0.05


class FakeWheel(ModuleType):
    """Refuses what the kernels refuse; plans its schedule at the first call with an object, as the wheel does."""

    def __init__(self) -> None:
        super().__init__("flash_mla")
        self.legacy = True
        self.calls: list[dict[str, Any]] = []

    def has_legacy(self) -> bool:
        return self.legacy

    def get_mla_metadata(self) -> tuple[dict[str, bool], None]:
        return {}, None

    def flash_mla_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: None,
        cache_seqlens: None,
        head_dim_v: int,
        tile_scheduler_metadata: dict[str, bool],
        num_splits: None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        is_fp8_kvcache: bool | None = None,
        indices: Tensor | None = None,
        attn_sink: Tensor | None = None,
        extra_k_cache: Tensor | None = None,
        extra_indices_in_kvcache: Tensor | None = None,
        topk_length: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        use_legacy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        assert not tile_scheduler_metadata, "planned for another call's lengths"
        tile_scheduler_metadata["planned"] = True
        assert use_legacy and not causal and head_dim_v == 512 and softmax_scale is not None and indices is not None
        assert block_table is cache_seqlens is num_splits is None
        assert (extra_k_cache is None) == (extra_indices_in_kvcache is None)
        self._check(q.shape[2], indices.shape[2], 64, attn_sink)
        window = KVScope(k_cache, indices, topk_length)
        extra = None
        if extra_k_cache is not None and extra_indices_in_kvcache is not None:
            extra = KVScope(extra_k_cache, extra_indices_in_kvcache, extra_topk_length)
        return Builtin("cpu").decode(DecodeCall(q, window, extra, attn_sink, softmax_scale))

    def flash_mla_sparse_fwd(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        sm_scale: float,
        d_v: int = 512,
        attn_sink: Tensor | None = None,
        topk_length: Tensor | None = None,
        use_legacy: bool = False,
        return_log2_lse: bool | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        assert use_legacy and d_v == 512
        self._check(q.shape[1], indices.shape[2], 128, attn_sink)
        done = Builtin("cpu").prefill(PrefillCall(q, kv, indices, topk_length, attn_sink, sm_scale))
        assert done.max_logits is not None
        if return_log2_lse is False:
            return done.out, None, None
        unit = math.log2(math.e) if return_log2_lse else 1.0
        return done.out, done.max_logits * unit, done.lse * unit

    def _check(self, heads: int, width: int, multiple: int, sink: Tensor | None) -> None:
        assert heads in (64, 128) and width % multiple == 0
        assert sink is None or (sink.shape == (heads,) and sink.is_contiguous())


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> FakeWheel:
    fake = FakeWheel()
    monkeypatch.setitem(sys.modules, "flash_mla", fake)
    return fake


def make_scope(page_size: int, topk: int, seed: int) -> KVScope:
    generator = torch.Generator().manual_seed(seed)
    page_bytes = -(-584 * page_size // 576) * 576
    pages = torch.zeros(40 // page_size + 1, page_bytes, dtype=torch.uint8)[:, : 584 * page_size]
    view = pages.view(len(pages), page_size, 1, 584)
    Builtin("cpu").pack(torch.randn(40, 512, generator=generator).bfloat16(), torch.arange(40), view)
    lengths = torch.randint(1, topk, (2,), generator=generator).int()
    return KVScope(view, torch.randint(-1, 40, (2, 1, topk), generator=generator).int(), lengths)


# Kills: heads padded in front, the wrong heads kept, a scope or length dropped or swapped, the sink left short, a scale
# that stays at its default, a shared schedule, the newer kernels.
@pytest.mark.parametrize("heads", [1, 8, 64, 65, 128])
@pytest.mark.parametrize("with_sink", [True, False])
@pytest.mark.parametrize("with_extra", [True, False])
def test_decode_passes_everything_on(wheel: FakeWheel, heads: int, with_sink: bool, with_extra: bool) -> None:
    q = torch.randn(2, 1, heads, 512, generator=torch.Generator().manual_seed(heads)).bfloat16()
    sink = torch.linspace(-2, 4, heads) if with_sink else None
    call = DecodeCall(q, make_scope(16, 64, 1), make_scope(2, 128, 2) if with_extra else None, sink, SCALE)
    adapter = FlashMLA("cpu")
    expected = Builtin("cpu").decode(call)
    for _ in range(2):
        out, lse = adapter.decode(call)
        assert (out.shape, lse.shape) == (q.shape, (2, heads, 1))
        assert torch.allclose(out.float(), expected.out.float(), rtol=2**-7, atol=1e-3)
        assert torch.allclose(lse, expected.lse, atol=1e-5)


# Kills: statistics in base 2 or withheld, padded heads kept.
@pytest.mark.parametrize("heads", [3, 64, 100])
@pytest.mark.parametrize("with_sink", [True, False])
def test_prefill_passes_everything_on(wheel: FakeWheel, heads: int, with_sink: bool) -> None:
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(4, heads, 512, generator=generator).bfloat16()
    kv = torch.randn(30, 1, 512, generator=generator).bfloat16()
    indices = torch.randint(-1, 32, (4, 1, 128), generator=generator).int()
    sink = torch.linspace(-2, 4, heads) if with_sink else None
    call = PrefillCall(q, kv, indices, torch.tensor([5, 128, 0, 70], dtype=torch.int32), sink, SCALE)
    result, expected = FlashMLA("cpu").prefill(call), Builtin("cpu").prefill(call)
    assert result.max_logits is not None and expected.max_logits is not None
    assert torch.allclose(result.out.float(), expected.out.float(), rtol=2**-7, atol=1e-3)
    assert torch.allclose(result.max_logits, expected.max_logits, atol=1e-5)
    assert torch.allclose(result.lse, expected.lse, atol=1e-5)


def test_its_declarations_hold_and_name_what_it_does_to_heads() -> None:
    assert check_declarations("flash_mla", FlashMLA) is FlashMLA
    assert any("pads" in note for note in FlashMLA.identity.notes)
    assert FlashMLA.devices == ("cuda",)


def test_missing_wheel_is_one_sentence_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'dsv4-conformance\[flash-mla\]'"):
        FlashMLA.check_available()


# Kills: taking any module of that name for the wheel; upstream's has the same name and no kernels for this cache.
def test_a_module_from_another_distribution_is_refused(wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    def version(name: str) -> str:
        if installed and name == "sgl-flash-mla":
            return "1.0.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    installed = False
    with pytest.raises(BadInput, match="comes from something else"):
        FlashMLA.check_available()
    installed = True
    FlashMLA.check_available()


def test_a_build_without_the_needed_kernels_is_refused(wheel: FakeWheel) -> None:
    wheel.legacy = False
    with pytest.raises(BadInput, match="584-byte cache"):
        FlashMLA("cuda")


def test_a_library_that_does_not_load_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    with pytest.raises(BadInput, match="cannot load its kernels"):
        FlashMLA("cuda")
