"""A whole layer one query, one head and one key at a time: the definition written another way (spec §2 to §8)."""

import math

import torch
from torch import Tensor

from dsv4_conformance.spec.weights import CompressorWeights, LayerSpec
from tests.oracle.small_layer import conjugate, normed, times, turned_by

S128 = 128**-0.5


def entry(w: CompressorWeights, table: Tensor, ratio: int, x: Tensor, i: int) -> Tensor:
    """Compressed entry i, all channels at once and one token at a time, with a running sum."""
    d = w.norm.shape[0]
    listed = [(s, slice(-d, None)) for s in range(ratio * i, ratio * (i + 1))]
    if ratio == 4:
        listed += [(s, slice(0, d)) for s in range(4 * i - 4, 4 * i) if s >= 0]
    total, weighted = torch.zeros(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    for s, half in listed:
        share = (times(w.wgate, x[s])[half] + w.ape[s % ratio].to(torch.float64)[half]).exp()
        total += share
        weighted += share * times(w.wkv, x[s])[half]
    return turned_by(normed(weighted / total, w.norm), table[ratio * i])


def chosen_entries(spec: LayerSpec, x: Tensor, qr: Tensor, t: int) -> list[int]:
    """The indexer without its Hadamard rotation, which changes no score."""
    seen, w = (t + 1) // 4, spec.weights.indexer
    assert w is not None
    table, heads = spec.rope.compressed, spec.geometry.index_n_heads
    weight = times(w.weights_proj, x[t]) * S128 * heads**-0.5
    iq = [turned_by(row, table[t]) for row in times(w.wq_b, qr).view(heads, 128)]
    score = []
    for i in range(seen):
        key = entry(w.compressor, table, 4, x, i)
        score.append(sum(float(weight[h]) * max(0.0, float(iq[h] @ key)) for h in range(heads)))
    return sorted(range(seen), key=lambda i: -score[i])[: spec.geometry.index_topk]


def layer_row(spec: LayerSpec, x: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
    """q ``(H, 512)``, o ``(H, 512)`` and out ``(hidden,)`` of the query at t, all heads (tp 1), nothing quantised."""
    w, g = spec.weights, spec.geometry
    table = spec.rope.plain if spec.ratio == 0 else spec.rope.compressed
    x = x.to(torch.float64)
    qr = normed(times(w.wq_a, x[t]), w.q_norm)
    heads = times(w.wq_b, qr).view(g.num_attention_heads, 512)
    q = [turned_by(normed(row), table[t]) for row in heads]
    keys = []
    for p in range(t + 1):
        if t - p < g.sliding_window:
            keys.append(turned_by(normed(times(w.wkv, x[p]), w.kv_norm), table[p]))
    if spec.ratio:
        assert w.compressor is not None
        seen = range((t + 1) // spec.ratio)
        for i in chosen_entries(spec, x, qr, t) if spec.ratio == 4 else seen:
            keys.append(entry(w.compressor, table, spec.ratio, x, i))
    o = []
    for h, query in enumerate(q):
        shares = [math.exp(float(query @ key) / math.sqrt(512)) for key in keys]
        bottom = math.fsum(shares) + math.exp(float(w.attn_sink[h]))
        mixed = torch.stack([share / bottom * key for share, key in zip(shares, keys, strict=True)]).sum(0)
        o.append(turned_by(mixed, conjugate(table[t])))
    out = torch.zeros(g.hidden_size, dtype=torch.float64)
    for group in range(g.o_groups):
        rows = slice(group * g.o_lora_rank, (group + 1) * g.o_lora_rank)
        mine = o[group * g.heads_per_group : (group + 1) * g.heads_per_group]
        out += times(w.wo_b[:, rows], times(w.wo_a[rows], torch.cat(mine)))
    return torch.stack(q), torch.stack(o), out
