"""What a deployment cannot do, one sentence each, all of them and not only the first (spec §1, §12, §15, §16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.config_kernels import Kernels
from dsv4_conformance.mla.config_memory import LOOKBACK
from dsv4_conformance.spec.engine_settings import OFF_WORDS, ON_WORDS, SPARSE_PREFILL_SWITCH
from dsv4_conformance.spec.geometry import HEAD_DIM, INDEX_HEAD_DIM, ROPE_DIM, Geometry
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE

WINDOW = 128
LIST_MULTIPLE = 64
"""Index lists of a decode call are a multiple of this wide (spec §10)."""


Switch = Literal["unset", "on", "off"]


@dataclass(frozen=True)
class Deployment:
    """Server options. ``tp``: ranks in all, shared out over ``dp`` attention replicas, in each of them over ``cp``
    context-parallel groups; ``context``: tokens a request may reach, 0 = the model's."""

    tp: int = 1
    dp: int = 1
    cp: int = 1
    device: str = "sm90"
    page_size: int = WINDOW_PAGE
    context: int = 0
    max_requests: int = 1
    speculative_tokens: int = 0

    def ranks(self) -> str:
        """How attention-TP comes about, in words."""
        parts = [f"{name} {size}" for name, size in (("dp", self.dp), ("cp", self.cp)) if size != 1]
        return " / ".join([f"tp {self.tp}", *parts])


def read_config(config: Mapping[str, Any], name: str = "") -> tuple[Geometry, list[str]]:
    """Geometry of a ``config.json`` and what is wrong with its head dims, which are then taken to be DeepSeek-V4's.

    Raises BadInput if it cannot be read as a DeepSeek-V4 config at all (spec §1).
    """
    fixed = {"head_dim": HEAD_DIM, "qk_rope_head_dim": ROPE_DIM, "index_head_dim": INDEX_HEAD_DIM}
    odd = {field: size for field, size in fixed.items() if config.get(field, size) != size}
    problems = [
        f"{field} is {config[field]!r}; caches and kernels of DeepSeek-V4 are defined for {size} only, so use the "
        "config.json of a DeepSeek-V4 checkpoint."
        for field, size in odd.items()
    ]
    return Geometry.from_config({**config, **odd}, name), problems


def attention_tp(deployment: Deployment) -> int:
    """Ranks that share out the heads of a request: tp / dp / cp (spec §15). Raises BadInput if that is not whole."""
    replicas = deployment.dp * deployment.cp
    if deployment.tp % replicas:
        field = "dp" if deployment.cp == 1 else "dp * cp"
        raise BadInput(f"{field} is {replicas} and does not divide tp {deployment.tp}; use a divisor of tp.")
    return deployment.tp // replicas


def local_heads(geometry: Geometry, deployment: Deployment, tp: int) -> int:
    """Query heads of one of ``tp`` attention ranks. Raises BadInput if they split an output group (spec §15)."""
    if tp not in geometry.tp_sizes:
        raise BadInput(
            f"attention-TP is {tp} ({deployment.ranks()}) and does not divide o_groups {geometry.o_groups} of "
            f"{geometry.name}; make it one of {', '.join(map(str, geometry.tp_sizes))}."
        )
    return geometry.num_attention_heads // tp


def switch(environment: Mapping[str, str]) -> Switch:
    """What the user says about sparse prefill. Raises BadInput for a word that is neither."""
    given = environment.get(SPARSE_PREFILL_SWITCH, "")
    word = given.strip().lower()
    if not word:  # VARIABLE= in a shell or a compose file means no more than leaving it out
        return "unset"
    if word not in (*ON_WORDS, *OFF_WORDS):
        raise BadInput(
            f"{SPARSE_PREFILL_SWITCH} is {given[:60]!r}; write one of {', '.join(ON_WORDS)} or {', '.join(OFF_WORDS)}, "
            "or unset it."
        )
    return "on" if word in ON_WORDS else "off"


def size_problems(deployment: Deployment) -> Iterator[str]:
    """Options that are no sizes at all: nothing can be computed from them."""
    for name in ("tp", "dp", "cp", "max_requests"):
        if (size := getattr(deployment, name)) < 1:
            yield f"{name} is {size}; use a positive number."
    for name in ("context", "speculative_tokens"):
        if (size := getattr(deployment, name)) < 0:
            yield f"{name} is {size}; use 0 or more."


def option_problems(deployment: Deployment) -> Iterator[str]:
    """Options that no model runs with, or that contradict each other."""
    if deployment.page_size != WINDOW_PAGE:
        yield (
            f"page_size is {deployment.page_size}; a page has to cover {WINDOW_PAGE} tokens, so that compressed pages "
            f"of 64 entries (ratio 4) and 2 entries (ratio 128) cover the same ones: use {WINDOW_PAGE}."
        )
    if deployment.cp > 1 and deployment.speculative_tokens > 0:
        yield (
            f"speculative_tokens is {deployment.speculative_tokens} with cp {deployment.cp}; drafts are not verified "
            "under context parallelism, so give up one of the two."
        )
    if deployment.speculative_tokens > LOOKBACK:
        yield (
            f"speculative_tokens is {deployment.speculative_tokens}; compressor state takes back {LOOKBACK} tokens at "
            f"most, so draft at most {LOOKBACK}."
        )


def model_problems(geometry: Geometry, deployment: Deployment, kernels: Kernels | None) -> Iterator[str]:
    """Constants of the model that the options or the device's kernels do not serve."""
    if deployment.context > geometry.max_position_embeddings:
        yield (
            f"context is {deployment.context} and max_position_embeddings of {geometry.name} is "
            f"{geometry.max_position_embeddings}; lower the context."
        )
    if geometry.sliding_window != WINDOW:
        yield (
            f"sliding_window is {geometry.sliding_window}; window lists and pools are built for {WINDOW}, so use the "
            "config.json of a DeepSeek-V4 checkpoint."
        )
    topk, built = geometry.index_topk, None if kernels is None else kernels.topk
    if built is not None and topk not in built:
        yield (
            f"index_topk is {topk}; top-k kernels on GPUs are built for {' and '.join(map(str, built))}, so use a "
            "released checkpoint's config.json, or device cpu for a small model."
        )
    elif topk % LIST_MULTIPLE:
        yield f"index_topk is {topk}; index lists are a multiple of {LIST_MULTIPLE} wide, so write such a number."
