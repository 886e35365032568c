"""Right dumps are right, changed outputs are wrong where they were changed, and conventions are honoured."""

import math
from pathlib import Path

import pytest
import torch

from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.judge.dump import load
from dsv4_conformance.judge.judging import Judgement, judge
from tests.judge.dumps import Tensors, decode_call, inputs, prefill_call, right, write


def judged(tmp_path: Path, tensors: Tensors, **metadata: str) -> Judgement:
    return judge(load(write(tmp_path, tensors, **metadata)))


@pytest.mark.parametrize("changes", [{}, {"sink": "special", "lonely": True}, {"sink": "none"}, {"data": "needle"}])
def test_what_the_builtin_decode_computes_is_right(changes: dict[str, object], tmp_path: Path) -> None:
    call = decode_call(**changes)
    out, lse = Builtin("cpu").decode(call)
    assert judged(tmp_path, inputs(call) | {"out": out, "lse": lse}).right


@pytest.mark.parametrize("changes", [{}, {"sink": "special", "lonely": True}, {"sink": "none"}])
def test_what_the_builtin_prefill_computes_is_right(changes: dict[str, object], tmp_path: Path) -> None:
    call = prefill_call(**changes)
    out, top, lse = Builtin("cpu").prefill(call)
    assert top is not None
    assert judged(tmp_path, inputs(call) | {"out": out, "lse": lse, "max_logits": top}).right


def test_one_element_off_is_found(tmp_path: Path) -> None:
    tensors = right(decode_call())
    tensors["out"][1, 1, 6, 300] += 0.25
    found = judged(tmp_path, tensors)
    assert found.wrong.nonzero().tolist() == [[3, 6]]
    assert found.worst_output(3, 6) == "out"
    assert float(found.error["out"][3, 6]) == pytest.approx(0.25, abs=0.01)


def test_lse_is_optional_and_judged_where_given(tmp_path: Path) -> None:
    tensors = right(decode_call())
    tensors["lse"][2, 4, 1] += 1e-3
    assert judged(tmp_path, tensors).wrong.nonzero().tolist() == [[5, 4]]
    del tensors["lse"]
    assert judged(tmp_path, tensors).right


def test_lse_in_base_2(tmp_path: Path) -> None:
    tensors = right(decode_call())
    tensors["lse"] /= math.log(2)
    assert judged(tmp_path, tensors, lse_base="2").right
    assert not judged(tmp_path, tensors, lse_base="e").right


def test_convention_of_lonely_rows(tmp_path: Path) -> None:
    tensors = right(decode_call(lonely=True))
    assert tensors["lse"][2].isposinf().all()
    assert judged(tmp_path, tensors).right
    assert judged(tmp_path, tensors, lonely_lse="-inf").wrong.any(1).nonzero()[:, 0].tolist() == [4, 5]
    tensors["lse"][2] = -torch.inf
    assert judged(tmp_path, tensors, lonely_lse="-inf").right
    assert not judged(tmp_path, tensors).right


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_special_values_are_wrong_whatever_the_budget(value: float, tmp_path: Path) -> None:
    tensors = right(decode_call())
    tensors["out"][0, 1, 2, 0] = value
    found = judged(tmp_path, tensors)
    assert found.wrong.nonzero().tolist() == [[1, 2]]
    assert found.worst[1, 2] == torch.inf


def test_chunks_do_not_matter(tmp_path: Path) -> None:
    tensors = right(decode_call(sink="special", lonely=True))
    tensors["out"][1, 1, 6, 300] += 0.25
    tensors["out"][2, 0, 3, 1] = torch.nan
    dump = load(write(tmp_path, tensors))
    whole, parts = judge(dump), judge(dump, max_bytes=1)
    assert whole.wrong.nonzero().tolist() == parts.wrong.nonzero().tolist() == [[3, 6], [4, 3]]
    for name in whole.ratio:
        torch.testing.assert_close(parts.budget[name], whole.budget[name], rtol=0.1, atol=0)
        torch.testing.assert_close(parts.error[name], whole.error[name], rtol=1e-9, atol=1e-12, equal_nan=True)


def test_chosen_rows_and_heads(tmp_path: Path) -> None:
    tensors = right(decode_call())
    tensors["out"][1, 1, 6, 300] += 0.25
    dump = load(write(tmp_path, tensors))
    assert judge(dump, rows=torch.tensor([0, 1, 2, 4, 5])).right
    assert judge(dump, heads=torch.tensor([0, 7])).right
    found = judge(dump, torch.tensor([1, 3]), torch.tensor([6, 7]))
    assert found.wrong.tolist() == [[False, False], [True, False]]


def test_row_subset_is_named_by_its_numbers(tmp_path: Path) -> None:
    tensors = right(decode_call())
    subset: Tensors = {}
    for name, tensor in tensors.items():
        per_row = name in ("q", "out", "lse") or name.endswith(("indices", "topk_length"))
        subset[name] = tensor[1:].contiguous() if per_row else tensor
    dump = load(write(tmp_path, subset | {"row_numbers": torch.tensor([7, 9])}))
    assert judge(dump).right
    assert dump.row_name(3) == "row 3 (b 9, query 1)"
