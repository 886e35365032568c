"""What ``doctor`` prints: a deployment's settings as text for a terminal, or as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsv4_conformance.mla import config_memory as memory
from dsv4_conformance.mla.config import Examined
from dsv4_conformance.mla.config_checks import Deployment
from dsv4_conformance.spec.geometry import RATIOS, Geometry
from dsv4_conformance.spec.requirements import load_registry

POOL_NAMES = {"window": "window", "c4": "C4 entries", "c128": "C128 entries", "index": "index keys"}
LIVE = 8192
"""Tokens of the example that shows what a gather by capacity would cost."""


def show(geometry: Geometry, deployment: Deployment, found: Examined, problems: Sequence[str]) -> None:
    """Print everything; problems last, where they are seen."""
    console = Console(markup=False, highlight=False, soft_wrap=True)
    values = found.values
    console.print(f"{geometry.name} on {deployment.device}: {deployment.ranks()}, page size {deployment.page_size}")
    for part in (_path_table(values), _layer_table(geometry, values), *_memory(geometry, deployment, values)):
        console.print()
        console.print(part)
    console.print()
    console.print(_surface_table(surfaces(geometry, values)))
    console.print()
    for warning in found.warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), warning))
    for problem in problems:
        console.print(Text.assemble(("problem: ", "bold red"), problem))
    count = len(problems)
    told = f"WRONG: {count} problem{'s' if count > 1 else ''}" if problems else "FINE: nothing is wrong with it"
    console.print(Text(told, style="bold red" if problems else "green"))


def as_data(geometry: Geometry, deployment: Deployment, found: Examined, problems: Sequence[str]) -> dict[str, Any]:
    """The same as JSON-able data; docs/cli.md lists the settings."""
    return {
        "model": geometry.name,
        "deployment": asdict(deployment),
        "settings": dict(found.values),
        "surfaces": {
            name: {"applies": not why, "why_not": why, "requirements": ids}
            for name, (why, ids) in surfaces(geometry, found.values).items()
        },
        "warnings": list(found.warnings),
        "problems": list(problems),
    }


def surfaces(geometry: Geometry, values: Mapping[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Surface -> (why its suites do not apply to this deployment, "" if they do; ids of its requirements)."""
    from dsv4_conformance.implementations.api import SURFACE_METHODS

    reasons = dict.fromkeys(SURFACE_METHODS, "")
    if not any(geometry.compress_ratios):
        reasons |= dict.fromkeys(("Compressor", "SlotMapping"), "no layer is compressed")
    if 4 not in geometry.compress_ratios:
        reasons |= dict.fromkeys(("Indexer", "IndexKeyFormat"), "no layer has ratio 4")
    if not values.get("sparse_prefill", True):
        off = "sparse prefill is off"
        reasons |= dict.fromkeys(("SparsePrefill", "SparsePrefillWorkspace", "SparsePrefillChunkCache"), off)
    registry = load_registry()
    return {name: (why, [found.id for found in registry.of_surface(name)]) for name, why in reasons.items()}


def size(count: float) -> str:
    """Bytes in the unit that keeps three digits."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.3g} {units[0]}" if count < 1000 else f"{count:.0f} {units[0]}"


def _table(*titles: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(titles))
    for title in titles:
        text = title.removeprefix(">")
        made.add_column(text, justify="right" if text != title else "left")
    return made


def _path_table(values: Mapping[str, Any]) -> Table:
    made = _table("", "")
    if "local_heads" in values and "padded_heads" in values:
        local, padded = values["local_heads"], values["padded_heads"]
        more = values.get("padding_bytes_per_row")  # not there if the path is undecided
        call = f"padded to {padded}" + ("" if more is None else f", {size(more)} more per query row")
        if padded == local:
            call = "as many as the kernel is called with"
        made.add_row("heads", f"attention-TP {values['attention_tp']}: {local} on each rank, {call}")
    for title, name in (("decode", "decode_kernel"), ("prefill", "prefill_kernel")):
        if name in values:
            made.add_row(title, values[name])
    if "sparse_prefill" in values:
        state = "on" if values["sparse_prefill"] else "off"
        made.add_row("sparse prefill", f"{state}: {values['sparse_prefill_reason']}")
    if values.get("max_paged_rows"):
        made.add_row("paged calls", f"at most {values['max_paged_rows']:,} query rows; longer batches are cut")
    return made


def _layer_table(geometry: Geometry, values: Mapping[str, Any]) -> Table:
    made = _table("layers", ">count", ">rope base", "YaRN", "keys of a query")
    context = values.get("context", geometry.max_position_embeddings)
    for ratio in RATIOS:
        main = geometry.layer_census[ratio]
        drafts = geometry.draft_layers if ratio == 0 else 0
        if not main + drafts:
            continue
        keys = f"{geometry.sliding_window} window"
        if ratio:
            entries = context // ratio
            chosen = f"{min(geometry.index_topk, entries)}" if ratio == 4 else "all"
            keys += f" + {chosen} of at most {entries:,} entries"
        count = " + ".join(filter(None, (f"{main}" if main else "", f"{drafts} draft" if drafts else "")))
        made.add_row(f"C{ratio}", count, f"{geometry.rope_base(ratio):g}", "yes" if ratio else "no", keys)
    return made


def _memory(geometry: Geometry, deployment: Deployment, values: Mapping[str, Any]) -> Iterator[Table]:
    if "context" not in values:
        return
    context, many = values["context"], deployment.max_requests
    made = _table("on each rank", ">layers", ">page bytes", ">bytes per token", f">at {context:,} tokens")
    if many > 1:
        made.add_column(f"{many} requests", justify="right")
    layers, total, growing = memory.pool_layers(geometry), 0, 0.0
    for pool, bytes_ in values["cache_bytes_per_request"].items():
        per_token = 0.0 if pool == "window" else layers[pool] * values["layer_bytes_per_token"][pool]
        total, growing = total + bytes_, growing + per_token
        page = f"{values['page_bytes'][pool]:,}"
        made.add_row(POOL_NAMES[pool], f"{layers[pool]}", page, _plain(per_token), *_times(bytes_, many))
    state = values["state_bytes_per_request"]
    made.add_row("compressor state", "", "", "", *_times(state, many))
    made.add_row("all", "", "", _plain(growing), *_times(total + state, many))
    yield made
    yield _scratch(geometry, deployment, values)


def _scratch(geometry: Geometry, deployment: Deployment, values: Mapping[str, Any]) -> Table:
    made = _table("", "")
    context, chunk = values["context"], values["prefill_chunk"]
    made.add_row("window in prefill", f"{size(values['window_bytes_in_prefill'])} while {chunk:,} tokens are in flight")
    if values["workspace_bytes"]:
        who = f"{deployment.max_requests} request{'s' if deployment.max_requests > 1 else ''}"
        largest = f"{size(values['workspace_bytes'])} at most: {who} at {context:,} tokens, {chunk:,} tokens in flight"
        made.add_row("workspace", largest)
        ratio = 4 if 4 in geometry.compress_ratios else 128
        live = min(LIVE, context)
        step = ([live], [live])
        here = size(memory.ROW_BYTES * memory.workspace_rows(ratio, *step))
        there = size(memory.ROW_BYTES * memory.capacity_rows(ratio, context, *step))
        made.add_row("", f"{here} for one prompt of {live:,}; gathers sized by the page table would take {there}")
    row = values["index_score_bytes_per_row"]
    if 4 in geometry.compress_ratios:
        whole = f"{size(row * chunk)} for {chunk:,} rows unless sliced"
        made.add_row("index scores", f"{size(row)} per query row of a C4 layer at full context, {whole}")
    return made


def _times(count: int, many: int) -> list[str]:
    return [size(count)] + ([size(count * many)] if many > 1 else [])


def _plain(count: float) -> str:
    return f"{count:g}" if count else "-"


def _surface_table(found: Mapping[str, tuple[str, list[str]]]) -> Table:
    made = _table("suites of", "apply", "requirements")
    for name, (why, ids) in found.items():
        made.add_row(name, f"no: {why}" if why else "yes", _spans(ids) if ids else "none yet")
    return made


def _spans(ids: Sequence[str]) -> str:
    """``INV-01 to 05, 53``."""
    numbers = [int(name.removeprefix("INV-")) for name in ids]
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return "INV-" + ", ".join(_run(run) for run in runs)


def _run(numbers: Sequence[int]) -> str:
    if len(numbers) > 2:
        return f"{numbers[0]:02d} to {numbers[-1]:02d}"
    return ", ".join(f"{number:02d}" for number in numbers)
