"""One guarded call of an attention surface: conventions applied, inputs fingerprinted, results brought to one form."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.problem import rows_first
from dsv4_conformance.errors import ConformanceFailure, ContractViolation, NotApplicable
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    DecodeCall,
    Implementation,
    KVScope,
    PrefillCall,
)
from dsv4_conformance.runner.guards import Fingerprint, GuardedOutput, poison_allocator
from dsv4_conformance.texts import summary_of

Call = DecodeCall | PrefillCall


@dataclass(frozen=True)
class Outputs:
    """Copies of what a call returned, rows first: out bf16 ``(R, h_q, 512)``; lse, max_logits fp32 ``(R, h_q)``,
    natural logarithm, +inf lse in lonely rows. lse and max_logits are None where surface or adapter have none."""

    out: Tensor
    lse: Any  # Tensor | None: the suites that read it run on nearly every adapter
    max_logits: Tensor | None

    def heads(self, chosen: slice | Tensor) -> "Outputs":
        """The outputs of some heads."""
        return self._at((slice(None), chosen))

    def rows(self, chosen: slice | Tensor) -> "Outputs":
        """The outputs of some query rows."""
        return self._at(chosen)

    def named(self) -> dict[str, Tensor]:
        """The outputs that there are, by name."""
        found = {"out": self.out, "lse": self.lse, "max_logits": self.max_logits}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _at(self, chosen: slice | Tensor | tuple[slice, slice | Tensor]) -> "Outputs":
        return replace(self, **{name: tensor[chosen] for name, tensor in self.named().items()})


def surface_of(call: Call) -> str:
    """The surface that answers this call."""
    return "SparseDecode" if isinstance(call, DecodeCall) else "SparsePrefill"


def convention_of(implementation: Implementation, surface: str) -> AttentionConvention:
    """The adapter's declaration for an attention surface."""
    convention = implementation.surfaces[surface]
    assert isinstance(convention, AttentionConvention)
    return convention


def _padded(indices: Tensor, multiple: int) -> Tensor:
    """Lists widened with -1 to a multiple; the given view where that is so already."""
    missing = -indices.shape[-1] % multiple
    return torch.nn.functional.pad(indices, (0, missing), value=-1) if missing else indices


def fit(call: Call, convention: AttentionConvention) -> Call:
    """The call as the adapter declared it wants it. Raises NotApplicable outside the declared head counts and pages."""
    heads = call.q.shape[-2]
    if convention.h_q is not None and heads not in convention.h_q:
        raise NotApplicable(f"h_q = {heads} is not among the declared head counts {convention.h_q}.")
    if isinstance(call, PrefillCall):
        return replace(call, indices=_padded(call.indices, convention.topk_multiple))

    def scope(given: KVScope) -> KVScope:
        if convention.page_sizes is not None and given.page_size not in convention.page_sizes:
            raise NotApplicable(f"page size {given.page_size} is not among the declared {convention.page_sizes}.")
        return replace(given, indices=_padded(given.indices, convention.topk_multiple))

    return replace(call, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def _inputs(call: Call) -> list[tuple[str, Tensor]]:
    named: list[tuple[str, Tensor | None]] = [("q", call.q), ("sink", call.sink)]
    if isinstance(call, PrefillCall):
        named += [("kv", call.kv), ("indices", call.indices), ("topk_length", call.topk_length)]
    else:
        for name, scope in (("window", call.window), ("extra", call.extra)):
            if scope is not None:
                named += [(f"{name} cache", scope.pages), (f"{name} indices", scope.indices)]
                named += [(f"{name} topk_length", scope.topk_length)]
    return [(name, tensor) for name, tensor in named if tensor is not None]


def _wanted(call: Call) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Output name -> shape and dtype that the surface promises."""
    q = call.q.shape
    if isinstance(call, DecodeCall):
        return {"out": (tuple(q), torch.bfloat16), "lse": ((q[0], q[2], q[1]), torch.float32)}
    rows = (q[0], q[1])
    return {"out": (tuple(q), torch.bfloat16), "max_logits": (rows, torch.float32), "lse": (rows, torch.float32)}


def returned_outputs(call: Call, convention: AttentionConvention) -> tuple[str, ...]:
    """Names of the outputs that an adapter of this declaration returns for ``call``."""
    withheld = {
        name
        for name, given in (("max_logits", convention.returns_max_logits), ("lse", convention.returns_lse))
        if not given
    }
    return tuple(name for name in _wanted(call) if name not in withheld)


def run_guarded(implementation: Implementation, call: Call, plan: Any = None) -> Outputs:
    """Run ``call`` on ``implementation``, under ``plan`` if one is given, and return copies of its outputs.

    Raises NotApplicable (outside the declaration), ConformanceFailure (the adapter raised), ContractViolation (changed
    inputs, wrong shape, dtype or device, writes outside an output, another output than the given one). Memory errors
    and Ctrl-C pass through.
    """
    surface = surface_of(call)
    convention = convention_of(implementation, surface)
    who = f"{implementation.identity.name}.{implementation_method(surface)}"
    call = fit(call, convention)
    promised = _wanted(call)
    wanted = {name: promised[name] for name in returned_outputs(call, convention)}
    prints = [Fingerprint.of(name, tensor) for name, tensor in _inputs(call)]
    guarded: list[GuardedOutput] = []
    if convention.accepts_out:
        guarded = [GuardedOutput.allocate(n, shape, dtype, call.q.device) for n, (shape, dtype) in wanted.items()]
        views: dict[str, Any] = {g.name: g.view for g in guarded}
        call = replace(call, **views)
    else:
        poison_allocator(list(wanted.values()), call.q.device)
    try:
        result: Any
        if plan is not None:
            result = implementation.decode_planned(call, plan)  # type: ignore[arg-type]
        else:
            result = implementation.decode(call) if isinstance(call, DecodeCall) else implementation.prefill(call)
        if call.q.is_cuda:
            torch.cuda.synchronize()
    except (torch.OutOfMemoryError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, pytest's skip, or one of its own: all are the adapter's
        raise ConformanceFailure(raised(who, error)) from error
    for guard in guarded:
        guard.check(who)
    for fingerprint in prints:
        fingerprint.check(who)
    returned = {name: _checked(who, name, getattr(result, name, None), *wanted[name], call) for name in wanted}
    for guard in guarded:
        if returned[guard.name].data_ptr() != guard.view.data_ptr():
            raise ContractViolation(f"{who} declares accepts_out and did not return the {guard.name} it was given.")
    # What the caller holds is the tensor it gave: that is judged, whatever view of it came back.
    returned |= {guard.name: guard.view for guard in guarded}
    return _normal(call, convention, returned)


def raised(who: str, error: BaseException) -> str:
    """One sentence for what an adapter raised inside its declaration, NotApplicable and SystemExit included."""
    return f"{who} raised {summary_of(error)}"


def implementation_method(surface: str) -> str:
    """The adapter method behind an attention surface."""
    return "decode" if surface == "SparseDecode" else "prefill"


def _checked(who: str, name: str, tensor: object, shape: tuple[int, ...], dtype: torch.dtype, call: Call) -> Tensor:
    """The returned tensor, if it is what the surface promises."""
    if not isinstance(tensor, Tensor):
        raise ContractViolation(f"{who} returned {type(tensor).__name__} for {name}; the surface promises a tensor.")
    if tuple(tensor.shape) != shape:
        raise ContractViolation(f"{who} returned {name} of shape {tuple(tensor.shape)}; the surface promises {shape}.")
    if tensor.dtype != dtype or tensor.device.type != call.q.device.type:
        raise ContractViolation(f"{who} returned {name} as {tensor.dtype} on {tensor.device}; promised {dtype}.")
    return tensor


def _normal(call: Call, convention: AttentionConvention, returned: dict[str, Tensor]) -> Outputs:
    lse, top = returned.get("lse"), returned.get("max_logits")
    if lse is not None:
        lse = rows_first(call, lse).clone()
        if convention.lonely_lse == "-inf":
            # The declared convention is checked as such: +inf there is as wrong as -inf elsewhere.
            lse = torch.where(lse.isinf(), -lse, lse)
        if convention.lse_base == "2":
            lse = lse * math.log(2)
    return Outputs(returned["out"].reshape(-1, *call.q.shape[-2:]).clone(), lse, None if top is None else top.clone())


def returned(call: Call, convention: AttentionConvention, result: Any) -> Outputs:
    """What an adapter returned for ``call``, as ``run_guarded`` gives it, without its guards. Raises ContractViolation
    for an output of another shape, dtype or device than promised."""
    wanted = _wanted(call)
    names = returned_outputs(call, convention)
    found = {name: _checked("The adapter", name, getattr(result, name, None), *wanted[name], call) for name in names}
    return _normal(call, convention, found)
