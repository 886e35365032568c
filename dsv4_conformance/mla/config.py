"""Effective settings of a deployment: from a model's config, server options and the environment (spec §12, §15-§17).

Everything that decides about attention is decided here, once, and told by name (spec/engine_settings.py). What cannot
run is refused in a sentence before anything runs. No torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla import config_checks as checks
from dsv4_conformance.mla import config_memory as memory
from dsv4_conformance.mla.config_checks import Deployment
from dsv4_conformance.mla.config_kernels import MAX_PAGED_ROWS, TOPK_MULTIPLE, Kernels, kernels_of
from dsv4_conformance.spec.engine_settings import SPARSE_PREFILL_SWITCH
from dsv4_conformance.spec.geometry import Geometry

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Resolved:
    """Effective settings by name, and the warnings that were logged."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Examined:
    """A deployment that may be wrong: the settings that can be told, the warnings, and each problem in a sentence."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def resolve(config: Mapping[str, Any], deployment: Deployment, environment: Mapping[str, str]) -> Resolved:
    """Settings of a model's parsed ``config.json`` under these options; each warning is logged once.

    Raises BadInput with the first problem's sentence. No argument is changed or kept.
    """
    geometry, problems = checks.read_config(config)
    found = examine(geometry, deployment, environment)
    problems += found.problems
    if problems:
        raise BadInput(problems[0])
    for warning in found.warnings:
        _LOG.warning(warning)
    return Resolved(found.values, found.warnings)


def examine(geometry: Geometry, deployment: Deployment, environment: Mapping[str, str]) -> Examined:
    """Everything there is to say about a deployment: raises nothing, logs nothing."""
    problems = [*checks.size_problems(deployment)]
    sound = not problems

    def attempt(function: Callable[..., T], *arguments: Any) -> T | None:
        """None, and one more problem, if ``function`` refuses; None if an argument was refused before."""
        if None in arguments:
            return None
        try:
            return function(*arguments)
        except BadInput as problem:
            problems.append(str(problem))
            return None

    kernels = attempt(kernels_of, deployment.device)
    problems += [*checks.option_problems(deployment), *checks.model_problems(geometry, deployment, kernels)]
    said = attempt(checks.switch, environment)
    choice = attempt(sparse_prefill, kernels, deployment, said)
    values = layers(geometry) | {"page_size": deployment.page_size}
    if sound:
        values |= sizes(geometry, deployment, choice is None or choice.on)
        tp = attempt(checks.attention_tp, deployment)
        local = attempt(checks.local_heads, geometry, deployment, tp)
        padded = attempt(_padded_heads, kernels, geometry, local)
        told = {"attention_tp": tp, "local_heads": local, "padded_heads": padded}
        values |= {name: value for name, value in told.items() if value is not None}
        values |= attempt(_kernel_values, kernels, choice, local, padded) or {}
    if choice is not None:
        values |= {"sparse_prefill": choice.on, "sparse_prefill_reason": choice.reason}
    return Examined(values, () if choice is None else choice.warnings, tuple(problems))


@dataclass(frozen=True)
class Choice:
    """Whether extends run on the sparse prefill path, why, and what the user is told about it."""

    on: bool
    reason: str
    warnings: tuple[str, ...] = ()


def sparse_prefill(kernels: Kernels, deployment: Deployment, said: checks.Switch) -> Choice:
    """On unless the user opts out; never under context parallelism nor where no kernel exists (spec §12, §16).

    There one warning says so, even if the user forces it on, and none if it is off already.
    """
    if said == "off":
        return Choice(False, f"{SPARSE_PREFILL_SWITCH} switches it off")
    obstacles = [kernels.no_sparse] if kernels.no_sparse else []
    if deployment.cp > 1:
        # https://github.com/sgl-project/sglang/pull/27276: the gather assumes that a rank holds consecutive rows
        obstacles.insert(0, f"context parallelism (cp {deployment.cp}) spreads a request's rows over ranks")
    if obstacles:
        reason = " and ".join(obstacles)
        off = f"{SPARSE_PREFILL_SWITCH} is not followed" if said == "on" else f"{SPARSE_PREFILL_SWITCH} counts as off"
        return Choice(False, reason, (f"{off}: {reason}.",))
    how = "the default" if said == "unset" else f"{SPARSE_PREFILL_SWITCH} switches it on"
    return Choice(True, how)


def layers(geometry: Geometry) -> dict[str, Any]:
    """What each layer computes with, draft layers last: nothing here is a default (spec §1, §3)."""
    return {
        "compress_ratios": geometry.compress_ratios,
        "rope_bases": tuple(geometry.rope_base(ratio) for ratio in geometry.compress_ratios),
        "yarn": tuple(ratio != 0 for ratio in geometry.compress_ratios),
        "yarn_parameters": asdict(geometry.rope_scaling),
        "softmax_scale": geometry.softmax_scale,
        "sliding_window": geometry.sliding_window,
        "index_topk": geometry.index_topk,
        "draft_layers": geometry.draft_layers,
    }


def sizes(geometry: Geometry, deployment: Deployment, sparse: bool) -> dict[str, Any]:
    """Bytes on one rank (spec §6, §9, §13)."""
    context = deployment.context or geometry.max_position_embeddings
    chunk = min(memory.PREFILL_CHUNK, context)
    return {
        "context": context,
        "pool_page_sizes": dict(memory.PAGE_SIZES),
        "page_bytes": dict(memory.PAGE_BYTES),
        "layer_bytes_per_token": memory.layer_bytes_per_token(),
        "cache_bytes_per_request": memory.request_bytes(geometry, context),
        "window_bytes_in_prefill": memory.request_bytes(geometry, context, chunk)["window"],
        "state_bytes_per_request": memory.state_bytes(geometry, deployment.speculative_tokens > 0),
        "prefill_chunk": chunk,
        "workspace_bytes": memory.workspace_bytes(geometry, context, deployment.max_requests) if sparse else 0,
        "index_score_bytes_per_row": 4 * (context // 4),
    }


def _padded_heads(kernels: Kernels, geometry: Geometry, local: int) -> int:
    return kernels.padded_heads(geometry.num_attention_heads, local)


def _kernel_values(kernels: Kernels, choice: Choice, local: int, padded: int) -> dict[str, Any]:
    return {
        "decode_kernel": kernels.decode_name(padded),
        "prefill_kernel": kernels.prefill_name(padded, choice.on),
        "max_paged_rows": MAX_PAGED_ROWS,
        "prefill_topk_multiple": TOPK_MULTIPLE,
        "padding_bytes_per_row": 2 * (padded - local) * memory.ROW_BYTES,
    }
