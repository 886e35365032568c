"""Answers derived from other answers by the identities of softmax, not by attending again (spec §8)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.oracle.attention import Answer


def apply_sink(plain: Answer, sink: Tensor) -> Answer:
    """A sink-free answer under ``sink (H,)``: out scaled by sigmoid(lse - sink), lse and max as they were (INV-05)."""
    gap = plain.lse - sink.to(torch.float64)
    factor = torch.sigmoid(gap.masked_fill(plain.lse.isposinf(), 0.0))
    return replace(plain, out=plain.out * factor[..., None])


def repeated(plain: Answer, times: int) -> Answer:
    """A sink-free answer with every key ``times`` times: lse + ln(times), the rest unchanged (INV-10)."""
    return replace(plain, lse=plain.lse + math.log(times))


def joined(one: Answer, other: Answer) -> Answer:
    """The sink-free answer over two sets of keys from the answers over each (INV-13)."""
    first = one.lse.masked_fill(one.lse.isposinf(), -torch.inf)  # a lonely part weighs nothing
    second = other.lse.masked_fill(other.lse.isposinf(), -torch.inf)
    lse = torch.logaddexp(first, second)
    lonely = lse.isneginf()
    weights = [torch.exp(part - lse).masked_fill(lonely, 0.0)[..., None] for part in (first, second)]
    out = weights[0] * one.out + weights[1] * other.out
    return Answer(out, lse.masked_fill(lonely, torch.inf), torch.maximum(one.max_logits, other.max_logits))
