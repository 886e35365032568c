"""Kernels of an installed SGLang behind adapters of their own: the unified cache, and FlashMLA through the wrapper."""

import sys
from types import ModuleType

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.faults.trial import plan, trial
from dsv4_conformance.implementations import sglang_release
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.sglang_flashmla import WRAPPER, SGLangFlashMLA
from tests.implementations.test_flash_mla import SCALE, FakeWheel, make_scope

OLDEST = sglang_release.version() == "0.5.13.post1"


# What is wrong is docs/findings.md's; the test fails once that changes.
@pytest.mark.parametrize("name", ["sglang_unified_decode", "sglang_unified_prefill"])
def test_kernels_of_the_unified_cache_pass_the_suites(name: str) -> None:
    adapter = load(name)
    if OLDEST:
        with pytest.raises(BadInput, match=r"finds no sparse_attn_v4_paged_\w+ in sglang 0\.5\.13\.post1"):
            adapter.check_available()
        return
    adapter.check_available()
    assert len(plan("interpreted", ("SparsePrefill",))) > 35
    wrong = {failure.requirement for failure in trial(adapter, ("SparsePrefill",), "interpreted")}
    assert wrong == {"INV-154"}


# Kills: an adapter that goes past the released wrapper, keywords that it does not take, statistics left in base 2.
def test_flash_mla_is_called_through_the_release_s_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    if not sglang_release.exists(WRAPPER):
        with pytest.raises(BadInput, match=f"finds no {WRAPPER}"):
            SGLangFlashMLA.check_available()
        return
    wheel, interface = FakeWheel(), ModuleType("flash_mla.flash_mla_interface")
    wheel.__path__ = []
    wheel.fused_norm_rope_attn_rope_cast = None  # type: ignore[attr-defined]
    interface.FlashMLASchedMeta = Plan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_mla", wheel)
    monkeypatch.setitem(sys.modules, "flash_mla.flash_mla_interface", interface)
    monkeypatch.setattr(wheel, "get_mla_metadata", lambda: (Plan(), None))
    taken = wheel.flash_mla_with_kvcache
    more = ("kv_format", "descale_q", "descale_k")
    monkeypatch.setattr(
        wheel,
        "flash_mla_with_kvcache",
        lambda **given: taken(**{name: value for name, value in given.items() if name not in more}),
    )
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(2, 1, 40, 512, generator=generator).bfloat16()
    call = DecodeCall(q, make_scope(16, 64, 1), make_scope(2, 128, 2), torch.linspace(-2, 4, 40), SCALE)
    adapter, builtin = SGLangFlashMLA("cpu"), Builtin("cpu")
    assert sys.modules[WRAPPER].flash_mla is wheel
    (out, lse), expected = adapter.decode(call), builtin.decode(call)
    assert torch.allclose(out.float(), expected.out.float(), rtol=2**-7, atol=1e-3)
    assert torch.allclose(lse, expected.lse, atol=1e-5)
    kv = torch.randn(30, 1, 512, generator=generator).bfloat16()
    indices = torch.randint(-1, 32, (2, 1, 128), generator=generator).int()
    prefill = PrefillCall(q[:, 0], kv, indices, torch.tensor([5, 128], dtype=torch.int32), None, SCALE)
    result, right = adapter.prefill(prefill), builtin.prefill(prefill)
    assert result.max_logits is not None and right.max_logits is not None
    assert torch.allclose(result.max_logits, right.max_logits, atol=1e-5)
    assert torch.allclose(result.lse, right.lse, atol=1e-5)


class Plan(dict[str, bool]):
    """The wheel's plan, which the wrapper tells from tensors by its class."""
