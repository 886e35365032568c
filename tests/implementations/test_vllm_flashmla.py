"""The adapter of vLLM's FlashMLA build without its library: sentences, padding, and what the operators are given."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import vllm_flashmla
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.vllm_flashmla import OPERATORS, VARIABLE, VllmFlashMLA


def test_it_has_a_name_and_declarations_that_hold() -> None:
    assert load("vllm_flashmla") is VllmFlashMLA
    assert check_declarations("vllm_flashmla", VllmFlashMLA) is VllmFlashMLA


def test_what_is_missing_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(vllm_flashmla, "DISTRIBUTION", "no-such-vllm")
    with pytest.raises(BadInput, match=r"and no vllm is installed; install vllm 0\.33\.0, or unzip .* to that file\.$"):
        VllmFlashMLA.check_available()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lost.so"))
    with pytest.raises(BadInput, match=rf"{VARIABLE} names .*lost\.so, which is no file; install vllm"):
        VllmFlashMLA.check_available()
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "broken.so"))
    VllmFlashMLA.check_available()
    with pytest.raises(BadInput, match=r"cannot load .*broken\.so \(.*\); install vllm"):
        VllmFlashMLA("cuda")


# Kills: a version that is the same for every library file.
def test_a_library_file_is_told_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "_flashmla_C.abi3.so"
    file.write_bytes(b"one build")
    monkeypatch.setenv(VARIABLE, str(file))
    assert vllm_flashmla._version() == f"sha256:{hashlib.sha256(b'one build').hexdigest()[:12]}"
    file.unlink()
    assert vllm_flashmla._version() == "not readable"


class Fake:
    """Operators that keep what they are given; out is q, lse and max_logits number the heads."""

    def __init__(self) -> None:
        self.given: dict[str, dict[str, Any]] = {}

    def operator(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            given = self.given[name] = dict(zip(OPERATORS[name], arguments, strict=True))
            q = given["q"]
            heads = torch.arange(q.shape[-2], dtype=torch.float32)
            if name == "sparse_decode_fwd":
                return q, heads[None, :, None].expand(q.shape[0], -1, q.shape[1]), None, None
            return q, heads.expand(q.shape[0], -1), -heads.expand(q.shape[0], -1)

        schema = SimpleNamespace(arguments=[SimpleNamespace(name=argument) for argument in OPERATORS[name]])
        call.default = SimpleNamespace(_schema=schema)  # type: ignore[attr-defined]
        return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    found = Fake()
    ops = SimpleNamespace(**{name: found.operator(name) for name in OPERATORS})
    monkeypatch.setattr(torch, "ops", SimpleNamespace(load_library=lambda path: None, _flashmla_C=ops))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return found


# Kills: scopes that change places, a scale of the wrong argument, padded heads that come back, a sink padded with 0.
def test_decode_gives_the_operator_its_arguments_in_order(fake: Fake) -> None:
    q = torch.randn(2, 1, 5, 512).bfloat16()
    window, extra = (
        KVScope(torch.zeros(n, 64, 1, 584, dtype=torch.uint8), torch.full((2, 1, 64), n), torch.tensor([n, n]))
        for n in (3, 4)
    )
    result = VllmFlashMLA("cpu").decode(DecodeCall(q, window, extra, torch.zeros(5), 0.25))
    given = fake.given["sparse_decode_fwd"]
    assert (given["kv"] is window.pages, given["extra_kv"] is extra.pages, given["sm_scale"]) == (True, True, 0.25)
    assert given["indices"] is window.indices and given["extra_indices"] is extra.indices
    assert given["topk_length"] is window.topk_length and given["extra_topk_length"] is extra.topk_length
    assert given["q"].shape[2] == 64 and given["attn_sink"][5:].isneginf().all() and len(given["attn_sink"]) == 64
    assert given["tile_scheduler_metadata"] is None and given["enable_batch_invariant"] is False
    assert torch.equal(result.out, q) and result.lse.shape == (2, 5, 1)
    VllmFlashMLA("cpu").decode(DecodeCall(q, window, None, None, 0.25))
    assert [fake.given["sparse_decode_fwd"][n] for n in ("extra_kv", "extra_indices", "attn_sink")] == [None] * 3


# Kills: lse and max_logits that change places; heads padded further than the kernel needs.
def test_prefill_gives_the_operator_its_arguments_in_order(fake: Fake) -> None:
    q, kv = torch.randn(3, 12, 512).bfloat16(), torch.randn(7, 1, 512).bfloat16()
    indices, lengths = torch.zeros(3, 1, 128, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
    result = VllmFlashMLA("cpu").prefill(PrefillCall(q, kv, indices, lengths, torch.ones(12), 0.5))
    given = fake.given["sparse_prefill_fwd"]
    assert given["q"].shape[1] == 16 and given["attn_sink"].tolist()[11:13] == [1.0, -torch.inf]
    assert given["kv"] is kv and given["indices"] is indices and given["topk_length"] is lengths
    assert (given["sm_scale"], given["d_v"], given["out_"]) == (0.5, 512, None)
    assert torch.equal(result.out, q) and result.max_logits is not None
    assert result.max_logits[0, 3] == 3 and result.lse[0, 3] == -3 and result.lse.shape == (3, 12)


# Kills: sinks that padding hides, lists that end the process.
def test_what_the_kernels_could_not_tell_is_refused(fake: Fake) -> None:
    q, kv = torch.randn(3, 12, 512).bfloat16(), torch.randn(7, 1, 512).bfloat16()
    lists, adapter = torch.zeros(3, 1, 128, dtype=torch.int32), VllmFlashMLA("cpu")
    with pytest.raises(BadInput, match=r"sinks are \(11,\) and the queries have 12 heads"):
        adapter.prefill(PrefillCall(q, kv, lists, None, torch.ones(11), 0.5))
    with pytest.raises(BadInput, match="lists are 64 wide; pad them with -1 to a multiple of 128"):
        adapter.prefill(PrefillCall(q, kv, lists[..., :64], None, None, 0.5))
    scope = KVScope(torch.zeros(2, 64, 1, 584, dtype=torch.uint8), lists[..., :32], None)
    with pytest.raises(BadInput, match="lists are 32 wide"):
        adapter.decode(DecodeCall(q[:, None], scope, None, None, 0.5))


def test_a_build_with_other_arguments_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = torch.ops._flashmla_C.sparse_prefill_fwd
    operator.default._schema.arguments.pop()
    with pytest.raises(BadInput, match=r"gives sparse_prefill_fwd q, .*; in .* it takes q, .*topk_length; install"):
        VllmFlashMLA("cpu")
    monkeypatch.delattr(torch.ops._flashmla_C, "sparse_prefill_fwd")
    with pytest.raises(BadInput, match="it does not exist; install"):
        VllmFlashMLA("cpu")
