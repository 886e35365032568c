"""One guarded call: declarations applied, results brought to one form, broken promises told in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.errors import BadInput, ConformanceFailure, ContractViolation, NotApplicable
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    Identity,
    Implementation,
    PrefillCall,
    PrefillResult,
)
from dsv4_conformance.oracle.attention import attention
from dsv4_conformance.runner.execute import fit, returned_outputs, run_guarded

CASE = AttentionCase("SparseDecode", 2, 3, 8, ScopeShape(70, 33, 64), ScopeShape(20, 5, 2), lonely=True)
DECODE = build(CASE, "cpu")
PREFILL = build(AttentionCase("SparsePrefill", 1, 3, 8, ScopeShape(70, 33), lonely=True), "cpu")
PLAIN = AttentionConvention(topk_multiple=1)


class Kernel(Implementation):
    """Returns what ``answer`` makes of the right results."""

    identity: ClassVar[Identity] = Identity("kernel", "1", "https://example.org")
    surfaces: ClassVar[Mapping[str, Convention]] = {"SparseDecode": PLAIN, "SparsePrefill": PLAIN}

    def answer(self, call: Any, result: Any) -> Any:
        return result

    def decode(self, call: DecodeCall) -> DecodeResult:
        right = attention(problem_of(call))
        lse = right.lse.float().view(*call.q.shape[:3]).transpose(1, 2)
        done: DecodeResult = self.answer(call, DecodeResult(right.out.bfloat16().view(call.q.shape), lse))
        return done

    def prefill(self, call: PrefillCall) -> PrefillResult:
        right = attention(problem_of(call))
        done: PrefillResult = self.answer(
            call, PrefillResult(right.out.bfloat16(), right.max_logits.float(), right.lse.float())
        )
        return done


def kernel(answer: Any = None, **declared: Any) -> Implementation:
    convention = replace(PLAIN, **declared)
    body: dict[str, Any] = {"surfaces": {"SparseDecode": convention, "SparsePrefill": convention}}
    if answer is not None:
        body["answer"] = answer
    made: Implementation = type("K", (Kernel,), body)("cpu")
    return made


# Kills: lse read as (b, s_q, h_q), rows in another order, outputs that alias the adapter's own tensors.
def test_outputs_are_copies_with_rows_first() -> None:
    kept: list[Any] = []

    def remember(self: Any, call: Any, result: Any) -> Any:
        kept.append(result)
        return result

    for call in (DECODE, PREFILL):
        right = attention(problem_of(call))
        outputs = run_guarded(kernel(remember), call)
        for tensor in kept.pop():
            tensor.fill_(7.0)
        assert torch.equal(outputs.out, right.out.bfloat16())
        assert torch.equal(outputs.lse, right.lse.float())
        if outputs.max_logits is not None:
            assert torch.equal(outputs.max_logits, right.max_logits.float())
    assert outputs.max_logits is not None
    assert outputs.heads(slice(2, 4)).lse.shape == (3, 2) and outputs.heads(torch.tensor([5])).out.shape == (3, 1, 512)


# Kills: conventions that are taken for granted, the wrong factor, infinities of rows with keys turned.
def test_declared_conventions_are_undone() -> None:
    right = run_guarded(kernel(), DECODE).lse

    def base_2(self: Any, call: Any, result: Any) -> Any:
        return result._replace(lse=result.lse / math.log(2))

    torch.testing.assert_close(run_guarded(kernel(base_2, lse_base="2"), DECODE).lse, right, rtol=1e-6, atol=0)

    def minus(self: Any, call: Any, result: Any) -> Any:
        return result._replace(lse=torch.where(result.lse.isinf(), -torch.inf, result.lse))

    assert torch.equal(run_guarded(kernel(minus, lonely_lse="-inf"), DECODE).lse, right)
    assert right[-1].isposinf().all()
    turned = run_guarded(kernel(lonely_lse="-inf"), DECODE).lse  # declared -inf, returned +inf
    assert turned[-1].isneginf().all() and torch.equal(turned[:-3], right[:-3])


# Kills: lists padded with 0, lengths that grow with the padding, calls changed in place.
def test_lists_are_widened_with_holes_to_the_declared_multiple() -> None:
    assert isinstance(DECODE, DecodeCall) and DECODE.extra is not None
    wide = fit(DECODE, replace(PLAIN, topk_multiple=64))
    assert isinstance(wide, DecodeCall) and wide.extra is not None
    assert wide.window.indices.shape == (2, 3, 64) and wide.extra.indices.shape == (2, 3, 64)
    assert (
        torch.equal(wide.window.indices[..., :33], DECODE.window.indices)
        and (wide.window.indices[..., 33:] == -1).all()
    )
    assert wide.window.topk_length is DECODE.window.topk_length and wide.window.indices.dtype == torch.int32
    assert fit(DECODE, PLAIN).window.indices is DECODE.window.indices  # type: ignore[union-attr]
    prefill = fit(PREFILL, replace(PLAIN, topk_multiple=128))
    assert isinstance(prefill, PrefillCall) and prefill.indices.shape == (3, 1, 128)


# Kills: calls outside a declaration that reach the kernel, or count as failures.
@pytest.mark.parametrize(
    ("declared", "said"),
    [({"h_q": (64, 128)}, "h_q = 8 is not among"), ({"page_sizes": (2, 256)}, "page size 64 is not among")],
)
def test_calls_outside_the_declaration_do_not_apply(declared: dict[str, Any], said: str) -> None:
    def never(self: Any, call: Any, result: Any) -> Any:
        raise AssertionError("called")

    with pytest.raises(NotApplicable, match=said):
        run_guarded(kernel(never, **declared), DECODE)


# Kills: promises that are not checked, or not by name.
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r._replace(out=r.out.float()), "K.decode returned out as torch.float32 on cpu; promised torch."),
        (lambda r: r._replace(out=r.out[:1]), "K.decode returned out of shape (1, 3, 8, 512); the surface promises (2"),
        (lambda r: r._replace(lse=r.lse.transpose(1, 2)), "K.decode returned lse of shape (2, 3, 8)"),
        (lambda r: r._replace(lse=r.lse.double()), "K.decode returned lse as torch.float64"),
        (lambda r: (r.out, r.lse), "K.decode returned NoneType for out; the surface promises a tensor."),
        (lambda r: None, "K.decode returned NoneType for out"),
    ],
)  # fmt: skip
def test_broken_promises_are_told_in_a_sentence(change: Any, said: str) -> None:
    adapter = kernel(lambda self, call, result: change(result))
    type(adapter).identity = Identity("K", "1", "https://example.org")
    with pytest.raises(ContractViolation) as told:
        run_guarded(adapter, DECODE)
    assert str(told.value).startswith(said) and "\n" not in str(told.value)


# Kills: an output that only a declaration of max_logits promises.
def test_max_logits_may_be_declared_absent() -> None:
    def without(self: Any, call: Any, result: Any) -> Any:
        return result._replace(max_logits=None)

    assert run_guarded(kernel(without, returns_max_logits=False), PREFILL).max_logits is None
    with pytest.raises(ContractViolation, match="returned NoneType for max_logits"):
        run_guarded(kernel(without), PREFILL)
    assert returned_outputs(DECODE, PLAIN) == ("out", "lse")
    assert set(returned_outputs(PREFILL, PLAIN)) == {"out", "lse", "max_logits"}
    assert returned_outputs(PREFILL, replace(PLAIN, returns_max_logits=False)) == ("out", "lse")


# Kills: tracebacks and second lines in a failure, memory errors told as failures, refusals taken for not applicable.
def test_what_the_adapter_raises() -> None:
    def raising(error: BaseException) -> Implementation:
        def answer(self: Any, call: Any, result: Any) -> Any:
            raise error

        return kernel(answer)

    with pytest.raises(ConformanceFailure) as told:
        run_guarded(raising(RuntimeError("no kernel for this\nand more")), DECODE)
    assert str(told.value) == "kernel.decode raised RuntimeError: no kernel for this and more"
    # Inside what it declares an adapter may not refuse: that would turn a wrong answer into one that was not asked for.
    for refusal in (NotApplicable("x"), BadInput("x"), SystemExit(0), pytest.skip.Exception("x")):
        with pytest.raises(ConformanceFailure, match=type(refusal).__name__):
            run_guarded(raising(refusal), DECODE)
    for error in (torch.OutOfMemoryError("x"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            run_guarded(raising(error), DECODE)


# Kills: inputs that are not all watched.
@pytest.mark.parametrize(
    ("surface", "name", "pick"),
    [
        (DECODE, "q", lambda c: c.q),
        (DECODE, "sink", lambda c: c.sink),
        (DECODE, "window cache", lambda c: c.window.pages),
        (DECODE, "window indices", lambda c: c.window.indices),
        (DECODE, "window topk_length", lambda c: c.window.topk_length),
        (DECODE, "extra cache", lambda c: c.extra.pages),
        (DECODE, "extra indices", lambda c: c.extra.indices),
        (DECODE, "extra topk_length", lambda c: c.extra.topk_length),
        (PREFILL, "kv", lambda c: c.kv),
        (PREFILL, "indices", lambda c: c.indices),
        (PREFILL, "topk_length", lambda c: c.topk_length),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_input_is_watched(surface: Any, name: str, pick: Any) -> None:
    def touch(self: Any, call: Any, result: Any) -> Any:
        first = pick(call).view(-1)[:1] if pick(call).is_contiguous() else pick(call)[(0,) * pick(call).dim()]
        first += 1
        return result

    call = (
        build(CASE, "cpu")
        if isinstance(surface, DecodeCall)
        else build(AttentionCase("SparsePrefill", 1, 3, 8, ScopeShape(70, 33)), "cpu")
    )
    with pytest.raises(ContractViolation, match=f"changed its input {name} "):
        run_guarded(kernel(touch), call)


# Kills: outputs given to adapters that did not ask for them, or not given, not NaN, not watched, not used.
def test_given_outputs_are_nan_between_red_zones_and_must_be_used() -> None:
    seen: list[bool] = []

    def fill(self: Any, call: Any, result: Any) -> Any:
        seen.append(bool(call.out.isnan().all() and call.lse.isnan().all()))
        call.out.copy_(result.out)
        call.lse.copy_(result.lse)
        return result._replace(out=call.out, lse=call.lse)

    right = run_guarded(kernel(), DECODE)
    outputs = run_guarded(kernel(fill, accepts_out=True), DECODE)
    assert seen == [True] and torch.equal(outputs.out, right.out) and torch.equal(outputs.lse, right.lse)

    def not_given(self: Any, call: Any, result: Any) -> Any:
        assert call.out is None and call.lse is None
        return result

    run_guarded(kernel(not_given), DECODE)

    def another_layout(self: Any, call: Any, result: Any) -> Any:
        call.out.copy_(result.out)
        lse = call.lse.view(call.lse.shape[0], call.lse.shape[2], call.lse.shape[1])
        lse.copy_(result.lse.transpose(1, 2))
        return result._replace(out=call.out, lse=lse.transpose(1, 2))

    assert not torch.equal(run_guarded(kernel(another_layout, accepts_out=True), DECODE).lse, right.lse)
    with pytest.raises(ContractViolation, match="declares accepts_out and did not return the out it was given"):
        run_guarded(kernel(accepts_out=True), DECODE)


# Kills: an lse that is asked of a kernel without one, or kept though it declares none.
def test_lse_may_be_declared_absent() -> None:
    def without(self: Any, call: Any, result: Any) -> Any:
        return result._replace(lse=torch.empty(0))

    found = run_guarded(kernel(without, returns_lse=False), DECODE)
    assert found.lse is None and list(found.named()) == ["out"]
    assert list(run_guarded(kernel(returns_lse=False), PREFILL).named()) == ["out", "max_logits"]
    with pytest.raises(ContractViolation, match="returned lse of shape"):
        run_guarded(kernel(without), DECODE)
    assert returned_outputs(DECODE, replace(PLAIN, returns_lse=False)) == ("out",)


# Kills: rows and heads that change places, an output left whole.
def test_rows_and_heads_are_taken_of_every_output() -> None:
    whole = run_guarded(kernel(), PREFILL)
    part = whole.rows(slice(1, 2)).heads(slice(2, 3)).named()
    assert {name: tensor.shape[:2] for name, tensor in part.items()} == dict.fromkeys(part, (1, 1))
    assert all(torch.equal(tensor, whole.named()[name][1:2, 2:3]) for name, tensor in part.items())
