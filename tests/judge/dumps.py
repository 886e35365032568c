"""Dumps written as a server would write them: right answers of the oracle, rounded, and wrong ones."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.numerics.mutants import MUTANTS, Setting
from dsv4_conformance.oracle.attention import Answer, Problem, attention

Call = DecodeCall | PrefillCall
Tensors = dict[str, Tensor]

DECODE = AttentionCase(
    "SparseDecode", b=3, s_q=2, h_q=8, window=ScopeShape(96, 128, 64), extra=ScopeShape(96, 64, 2), sink="finite"
)
PREFILL = AttentionCase("SparsePrefill", b=1, s_q=5, h_q=8, window=ScopeShape(160, 128), sink="finite")


def page_bytes(scope: KVScope) -> Tensor:
    """The pages' meaningful bytes, ``(num_pages, 584 P)``."""
    pages = scope.pages
    return pages.as_strided((len(pages), 584 * pages.shape[1]), (pages.stride(0), 1)).clone()


def inputs(call: Call) -> Tensors:
    """The input tensors of a dump of ``call``."""
    named: dict[str, Tensor | None] = {"q": call.q, "sink": call.sink, "scale": torch.tensor(call.scale).double()}
    if isinstance(call, PrefillCall):
        named |= {"kv": call.kv, "indices": call.indices, "topk_length": call.topk_length}
    else:
        for name, scope in (("window", call.window), ("extra", call.extra)):
            if scope is not None:
                named[f"{name}_pages"] = page_bytes(scope)
                named[f"{name}_page_size"] = torch.tensor(scope.page_size)
                named[f"{name}_indices"] = scope.indices
                named[f"{name}_topk_length"] = scope.topk_length
    return {name: tensor.clone().contiguous() for name, tensor in named.items() if tensor is not None}


def outputs(call: Call, answer: Answer) -> Tensors:
    """The output tensors of a dump in which ``answer`` came out, rounded as a kernel rounds."""
    out, lse = answer.out.bfloat16().view(call.q.shape), answer.lse.float()
    if isinstance(call, PrefillCall):
        return {"out": out, "lse": lse, "max_logits": answer.max_logits.float()}
    b, s_q, h_q = call.q.shape[:3]
    return {"out": out, "lse": lse.view(b, s_q, h_q).transpose(1, 2).contiguous()}


def right(call: Call) -> Tensors:
    """A whole right dump."""
    return inputs(call) | outputs(call, attention(problem_of(call)))


def mistaken(call: Call, mutant: str) -> Tensors:
    """A dump in which every row has the mistake that ``mutant`` stands for."""
    problem = problem_of(call)
    following = (torch.arange(problem.q.shape[0]) + 1) % problem.q.shape[0]
    answer = MUTANTS[mutant](Setting.of(problem, attention(problem), problem.rows(following)))
    assert answer is not None
    return inputs(call) | outputs(call, answer)


def changed(call: Call, change: Callable[[Problem], Answer]) -> Tensors:
    """A dump in which ``change`` of the problem came out."""
    return inputs(call) | outputs(call, change(problem_of(call)))


def write(folder: Path, tensors: Tensors, **metadata: str) -> Path:
    """The dump's file."""
    path = folder / "call.safetensors"
    save_file(tensors, path, metadata)
    return path


def decode_call(**changes: object) -> DecodeCall:
    """The decode call that most tests use, or one near it."""
    call = build(DECODE.with_(**changes), "cpu")
    assert isinstance(call, DecodeCall)
    return call


def prefill_call(**changes: object) -> PrefillCall:
    """The prefill call that most tests use, or one near it."""
    call = build(PREFILL.with_(**changes), "cpu")
    assert isinstance(call, PrefillCall)
    return call
