"""FlashMLA through SGLang's wrapper, without either: a few files and a stand-in for the wheel.

tests/engines/test_sglang.py drives the released wrapper over the same stand-in.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import flash_mla, sglang_engine
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.sglang_flashmla import WRAPPER, SGLangFlashMLA
from tests.implementations.test_flash_mla import SCALE, FakeWheel, make_scope

FILE = "/".join(WRAPPER.split(".")[1:]) + ".py"
TEXT = """
import flash_mla

def get_mla_metadata():
    return flash_mla.get_mla_metadata()

def flash_mla_with_kvcache(**given):
    return flash_mla.flash_mla_with_kvcache(**given)

def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *, use_legacy=True):
    return flash_mla.flash_mla_sparse_fwd(
        q, kv, indices, sm_scale, d_v, attn_sink, topk_length, use_legacy=use_legacy, return_log2_lse=True
    )
"""


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> FakeWheel:
    fake = FakeWheel()
    monkeypatch.setitem(sys.modules, "flash_mla", fake)
    monkeypatch.setattr(sglang_engine, "load", lambda device: None)
    return fake


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], None]]:
    """Puts a package sglang on the path, with a wrapper of this text, or with none."""

    def make(text: str | None) -> None:
        root = tmp_path / "sglang"
        path = root / FILE
        path.parent.mkdir(parents=True)
        for folder in (root, *(root / part for part in ("kernels", "kernels/ops", "kernels/ops/attention"))):
            (folder / "__init__.py").write_text("")
        (root / "version.py").write_text("__version__ = '0.5.22'\n")
        if text is not None:
            path.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


def test_it_has_a_name_and_declarations_that_hold() -> None:
    assert load("sglang_flashmla") is SGLangFlashMLA
    assert check_declarations("sglang_flashmla", SGLangFlashMLA) is SGLangFlashMLA
    assert SGLangFlashMLA.identity.name == "sglang_flashmla" and SGLangFlashMLA.devices == ("cuda",)
    assert set(SGLangFlashMLA.surfaces) == {"SparseDecode", "SparsePrefill", "DecodePlan"}


def test_what_is_missing_is_told_in_one_sentence(
    release: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dsv4_conformance.implementations.sglang_release.folder", lambda: None)
        with pytest.raises(BadInput, match=r"needs the package sglang, which is not there; install a release .*\.$"):
            SGLangFlashMLA.check_available()
    release(None)
    with pytest.raises(BadInput, match=r"in sglang 0\.5\.22, whose FlashMLA is part of sgl-kernel; install a release"):
        SGLangFlashMLA.check_available()


# Kills: a sglang that has the wrapper taken for one that has the kernels too.
def test_the_wheel_is_asked_for_as_well(release: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch) -> None:
    release(TEXT)
    asked: list[str] = []
    monkeypatch.setattr(flash_mla.FlashMLA, "check_available", classmethod(lambda cls: asked.append(cls.__name__)))
    SGLangFlashMLA.check_available()
    assert asked == ["FlashMLA"]


def answers_like_the_builtin(adapter: SGLangFlashMLA, heads: int) -> None:
    """Assert that decode and prefill give what the built-in implementation gives, statistics in natural units."""
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(2, 1, heads, 512, generator=generator).bfloat16()
    call = DecodeCall(q, make_scope(16, 64, 1), make_scope(2, 128, 2), torch.linspace(-2, 4, heads), SCALE)
    (out, lse), expected = adapter.decode(call), Builtin("cpu").decode(call)
    assert torch.allclose(out.float(), expected.out.float(), rtol=2**-7, atol=1e-3)
    assert torch.allclose(lse, expected.lse, atol=1e-5)
    kv = torch.randn(30, 1, 512, generator=generator).bfloat16()
    indices = torch.randint(-1, 32, (2, 1, 128), generator=generator).int()
    prefill = PrefillCall(q[:, 0], kv, indices, torch.tensor([5, 128], dtype=torch.int32), None, SCALE)
    result, right = adapter.prefill(prefill), Builtin("cpu").prefill(prefill)
    assert result.max_logits is not None and right.max_logits is not None
    assert torch.allclose(result.max_logits, right.max_logits, atol=1e-5)
    assert torch.allclose(result.lse, right.lse, atol=1e-5)
    assert torch.allclose(result.out.float(), right.out.float(), rtol=2**-7, atol=1e-3)


# Kills: calls that go past the wrapper, statistics left in base 2.
def test_calls_go_through_the_wrapper_and_statistics_are_natural(
    release: Callable[[str | None], None], wheel: FakeWheel
) -> None:
    release(TEXT.replace("return flash_mla.flash_mla_with", "flash_mla.seen = True; return flash_mla.flash_mla_with"))
    answers_like_the_builtin(SGLangFlashMLA("cpu"), 24)
    assert getattr(wheel, "seen", False)
