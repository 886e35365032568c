"""A dump that cannot be used is refused in one sentence that names what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.judge.command import refusal
from tests.judge.dumps import Tensors, decode_call, prefill_call, right, write

Change = Callable[[Tensors], object]


def drop(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def add(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


DECODE: dict[str, tuple[Change, str]] = {
    "no out": (drop("out"), "no tensor out, which a decode dump needs"),
    "no q": (drop("q"), "no tensor q"),
    "no lists": (drop("window_indices"), "no tensor window_indices"),
    "no scale": (drop("scale"), "no scale; add the call's softmax scale"),
    "scale 0": (add("scale", torch.tensor(0.0)), "scale is 0.0, which is no softmax scale"),
    "float32 q": (put("q", torch.Tensor.float), "q is float32 (3, 2, 8, 512); it has to be bfloat16"),
    "flat q": (put("q", lambda q: q.flatten(0, 1)), "(6, 8, 512); it has to be bfloat16 (b, s_q, h_q, 512)"),
    "head dim 576": (put("q", lambda q: torch.cat((q, q[..., :64]), -1)), "q is bfloat16 (3, 2, 8, 576)"),
    "half heads out": (put("out", lambda out: out[:, :, :4]), "so h_q would be 4, but q has h_q 8"),
    "lse as (b, s_q, h_q)": (put("lse", lambda lse: lse.transpose(1, 2)), "float32 (3, 2, 8), so h_q would be 2"),
    "lengths per query": (put("window_topk_length", lambda n: n.repeat(2)), "so b would be 6, but q has b 3"),
    "misspelt": (rename("window_topk_length", "window_topk_lengths"), "did you mean window_topk_length?"),
    "max_logits": (add("max_logits", torch.zeros(6, 8)), "a decode dump has no tensor called 'max_logits'"),
    "no cache": (drop("window_pages"), "neither of window_pages and window_kv"),
    "two caches": (add("window_kv", torch.zeros(4, 512).bfloat16()), "both window_pages and window_kv"),
    "half an extra scope": (drop("extra_indices"), "but no extra_indices; a scope is given whole"),
    "no page size": (drop("window_page_size"), "window_page_size is missing"),
    "wrong page size": (add("window_page_size", torch.tensor(256)), "but a page of 256 tokens has 149504"),
    "page stride": (put("window_pages", lambda p: torch.cat((p, p), 1)), "save that many bytes from the start"),
    "empty call": (put("out", lambda out: out[:, :0]), "so s_q would be 0"),
    "page id twice": (
        lambda t: t.update(window_page_ids=torch.zeros(len(t["window_pages"]), dtype=torch.int64)),
        "window_page_ids are not distinct page numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODE)
def test_bad_decode_dump(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = DECODE[name]
    tensors = right(decode_call())
    change(tensors)
    assert sentence in refusal(capsys, write(tmp_path, tensors))


PREFILL: dict[str, tuple[Change, str]] = {
    "no kv": (drop("kv"), "no tensor kv, which a prefill dump needs"),
    "kv of two heads": (put("kv", lambda kv: kv.repeat(1, 2, 1)), "(s_kv, 512) or (s_kv, 1, 512)"),
    "lse per head first": (put("lse", lambda lse: lse.T), "so s_q would be 8, but q has s_q 5"),
    "float indices": (
        put("indices", torch.Tensor.float),
        "indices is float32 (5, 1, 128); it has to be int32 or int64",
    ),
}


@pytest.mark.parametrize("name", PREFILL)
def test_bad_prefill_dump(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = PREFILL[name]
    tensors = right(prefill_call())
    change(tensors)
    assert sentence in refusal(capsys, write(tmp_path, tensors))


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"kind": "extend"}, "metadata kind is 'extend'; it may be 'decode' or 'prefill'"),
        ({"lse_base": "10"}, "metadata lse_base is '10'; it may be 'e' or '2'"),
        ({"lonely_lse": "inf"}, "metadata lonely_lse is 'inf'"),
        ({"scale": "512**-0.5"}, "metadata scale is '512**-0.5', which is not a number"),
        ({"scale": "0.0625"}, "scale is 0.0441942 as a tensor and 0.0625 in the metadata"),
        ({"window_page_size": "256"}, "window_page_size is 64 as a tensor and 256 in the metadata"),
    ],
)
def test_bad_metadata(
    metadata: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refusal(capsys, write(tmp_path, right(decode_call()), **metadata))


@pytest.mark.parametrize("size", ["nan", "inf", "-inf", "64.5", "-64", "0", "1e300"])
@pytest.mark.parametrize("name", ["window_page_size", "extra_page_size"])
def test_page_size_is_no_count(name: str, size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors.pop(name, None)
    told = refusal(capsys, write(tmp_path, tensors, **{name: size}))
    assert f"{name} is " in told and "has to be a positive whole number" in told


def test_dump_has_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the name of the dump is empty" in refusal(capsys, "")


def test_kind_cannot_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"q": torch.zeros(1, 1, 512).bfloat16()})
    assert "neither window_indices (a decode call) nor indices" in refusal(capsys, path)


def test_file_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.safetensors is not there" in refusal(capsys, tmp_path / "none.safetensors")
    assert "is a folder" in refusal(capsys, tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a pickle", b"\xff" * 64])
def test_file_is_something_else(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "call.pt"
    path.write_bytes(content)
    assert "call.pt is not a whole safetensors file" in refusal(capsys, path)


def test_file_was_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, right(decode_call()))
    path.write_bytes(path.read_bytes()[:-1])
    assert "is not a whole safetensors file" in refusal(capsys, path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--row", "6"], "--row 6 is not in the dump, which has rows 0 to 5"),
        (["--head", "0-8"], "--head 0-8 is not in the dump, which has heads 0 to 7"),
        (["--head", "5-3"], "--head 5-3 is not in the dump"),
        (["--row", "all"], "--row 'all' names no row"),
    ],
)
def test_bad_option(words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refusal(capsys, write(tmp_path, right(decode_call())), *words)
