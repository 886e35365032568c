"""Kernels of an installed SGLang behind adapters of their own: the unified cache, and FlashMLA through the wrapper."""

import sys
from types import ModuleType

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.faults.trial import plan, trial
from dsv4_conformance.implementations import sglang_release
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.sglang_flashmla import WRAPPER, SGLangFlashMLA
from tests.implementations.test_flash_mla import FakeWheel
from tests.implementations.test_sglang_flashmla import answers_like_the_builtin

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
    adapter = SGLangFlashMLA("cpu")
    assert sys.modules[WRAPPER].flash_mla is wheel
    answers_like_the_builtin(adapter, 40)


class Plan(dict[str, bool]):
    """The wheel's plan, which the wrapper tells from tensors by its class."""
