"""Prints what ``bench mla`` measured, figure by figure, and collects it as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from dsv4_conformance.bench import mla_figures
from dsv4_conformance.bench.mla import SIZES, Ratio

CORE_LIMIT = 1.05
"""What the layer may add to the bare call at 64 rows and more."""
LIVE = 8192


def measure_mla(device: torch.device, say: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    """Measure and print everything; the figures, and a sentence for each that misses its mark."""
    sizes, missed = SIZES[device.type], []
    figures: dict[str, Any] = {}
    say("core of the layer, captured (plan, split kernel, combination; 32 local heads padded to 64, local sink)")
    say(f"against the bare call, C4, {sizes.live} live tokens: us, us, ratio [quartiles]")
    figures["core"] = _table(mla_figures.core_against_bare(device, sizes), "b", say)
    for rows, ratio in figures["core"].items():
        if rows >= 64 and ratio["ratio"] > CORE_LIMIT:
            missed.append(f"the core takes {ratio['ratio']:.3f} of the bare call at b={rows}; {CORE_LIMIT} is the mark")
    say("32 local heads padded to 128 against padded to 64: above 1, padding to 64 pays")
    figures["padding"] = _table(mla_figures.padding_64_against_128(device, sizes), "b", say)
    losing = [rows for rows, ratio in figures["padding"].items() if ratio["ratio"] < 1]
    say(f"  on this device padding to 64 does not pay at b in {losing}" if losing else "  it pays at every size")
    for compress in (4, 128):
        say(f"prefill over pages against the workspace, C{compress}, chunks of {sizes.chunk}: above 1, sparse pays")
        figures[f"sparse prefill C{compress}"] = _table(
            mla_figures.sparse_against_paged(device, sizes, compress), "tokens", say
        )
    figures["gathered bytes"] = gathered = mla_figures.gathered_bytes(device, LIVE)
    smaller = gathered["compressed by capacity"] / gathered["compressed"]
    say(f"bytes gathered by a C4 layer for {LIVE} live tokens under a page table of 1M: compressed")
    say(
        f"  {gathered['compressed']:,} (window {gathered['window']:,}); sized by capacity "
        f"{gathered['compressed by capacity']:,}: {smaller:.0f} times as many"
    )
    if smaller < 100:
        missed.append(f"the gather is only {smaller:.0f} times smaller than one by capacity; 100 is the mark")
    if device.type == "cuda":
        figures["replay"] = traced = mla_figures.replay_trace(device, 64, sizes.live)
        for name, seen in traced.items():
            kernels: Mapping[str, int] = Counter(seen["kernels"])
            say(f"one replay of the {name}: {seen['allocations']} allocations, {sum(kernels.values())} device kernels")
            for kernel, times in sorted(kernels.items(), key=lambda item: -item[1])[: 40 if name == "core" else 12]:
                say(f"  {times:3} x {kernel[:100]}")
            if seen["allocations"]:
                missed.append(f"a replay of the {name} made {seen['allocations']} allocations; it must make none")
        if any("fill" in kernel.lower() or "memset" in kernel.lower() for kernel in traced["core"]["kernels"]):
            missed.append("a replay of the core fills memory")
    return figures, missed


def _table(found: Mapping[int, Ratio], label: str, say: Callable[[str], None]) -> dict[int, dict[str, float]]:
    kept = {}
    for key, ratio in found.items():
        spread = f"[{ratio.low:.3f} .. {ratio.high:.3f}]"
        say(f"  {label} {key:6}: {ratio.ours * 1e3:10.1f} {ratio.other * 1e3:10.1f}  {ratio.ratio:6.3f} {spread}")
        kept[key] = {**asdict(ratio), "ratio": ratio.ratio}
    return kept
