"""Kernels that are right within every error budget, and whose bits or exact values depend on what they must not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from tests.miniatures.base import Miniature, lists_of

NUDGE = 2.0**-8
"""At least half a unit in the last place of bf16: moves bits of an output, and no output out of its budget."""


class Nudged(Miniature):
    """Multiplies out by 1 + ``amount``; an amount of 0 leaves it right."""

    def amount(self, call: Any) -> float:
        """How much, for this call."""
        return 0.0

    def after(self, call: Any, result: Any) -> Any:
        result.out.copy_(result.out.float() * (1 + self.amount(call)))
        return result


class SinkOfMinusInfinityTakesAnotherPath(Nudged):
    """Rounds differently with a sink of -inf than without a sink."""

    def amount(self, call: Any) -> float:
        return NUDGE if call.sink is not None and bool(call.sink.isneginf().all()) else 0.0


class InfiniteSinksReachOtherHeads(Nudged):
    """Rounds all heads differently when more than a quarter of the sinks are +inf."""

    def amount(self, call: Any) -> float:
        return NUDGE if call.sink is not None and float(call.sink.isposinf().float().mean()) > 0.2 else 0.0


class TailsReachTheBits(Nudged):
    """Rounds differently when something but -1 stands beyond a length."""

    def amount(self, call: Any) -> float:
        return NUDGE if any(bool((lists[~valid] != -1).any()) for lists, valid in lists_of(call)) else 0.0


class PoisonReachesTheBits(Nudged):
    """Rounds differently when the cache holds NaN or infinity anywhere."""

    def amount(self, call: Any) -> float:
        if isinstance(call, PrefillCall):
            return NUDGE if not bool(call.kv.isfinite().all()) else 0.0
        raw = torch.empty(0, dtype=torch.uint8).set_(call.window.pages.untyped_storage())
        return NUDGE if bool((raw[-64:] != 0).any()) else 0.0


class PaddedQueriesReachTheBits(Nudged):
    """Rounds differently when any query head holds NaN or infinity."""

    def amount(self, call: Any) -> float:
        return NUDGE if not bool(call.q.isfinite().all()) else 0.0


class Lonely(Miniature):
    """Changes the results of rows without keys."""

    def spoil(self, call: Any, result: Any, rows: Tensor) -> None:
        """Change ``result`` in query rows ``rows`` (bool ``(R,)``)."""

    def after(self, call: Any, result: Any) -> Any:
        rows = ~torch.cat([valid for _, valid in lists_of(call)], 1).any(1)
        self.spoil(call, result, rows)
        return result


class LonelyRowsAreAlmostZero(Lonely):
    """Divides by a tiny sum instead of writing 0 into rows without keys."""

    def spoil(self, call: Any, result: Any, rows: Tensor) -> None:
        result.out.flatten(0, -3)[rows] = 1e-30


class LonelyLseIsMinusInfinity(Lonely):
    """Returns the logarithm of 0 where the contract has +inf."""

    def spoil(self, call: Any, result: Any, rows: Tensor) -> None:
        lse = result.lse.transpose(1, 2) if isinstance(call, DecodeCall) else result.lse
        lse.masked_fill_(rows.view(*lse.shape[:-1], 1), -torch.inf)


class LonelyMaximumIsFinite(Lonely):
    """Returns the -1e30 that the running maximum starts from."""

    def spoil(self, call: Any, result: Any, rows: Tensor) -> None:
        if isinstance(call, PrefillCall):
            result.max_logits.masked_fill_(rows[:, None], -1e30)


class SinkReachesTheMaximum(Miniature):
    """Returns the larger of max_logits and the sink."""

    def after(self, call: Any, result: Any) -> Any:
        if isinstance(call, PrefillCall) and call.sink is not None:
            result.max_logits.copy_(torch.maximum(result.max_logits, call.sink))
        return result
