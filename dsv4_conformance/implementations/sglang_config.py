"""Whether sparse prefill runs in a deployment: the engine's environment default and its hook for context parallelism
(spec §16, §17).

``validate_deepseek_v4_cp`` runs as it is, on server arguments that hold what it reads. Stood in for: the resolution
machinery of newer releases, which reads and sets such arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.state_api import ServerOptions, Settings
from dsv4_conformance.spec.engine_settings import SPARSE_PREFILL_SWITCH

SWITCH = "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL"
TOLD = ("sparse_prefill",)
DEVICES = ("sm90", "sm100")


def resolve(options: ServerOptions, environment: Mapping[str, str]) -> Settings:
    """The switch after the hook has run, and what was logged. BadInput where the engine refuses, or was not asked."""
    if options.device not in DEVICES:
        raise BadInput(f"device {options.device!r}: the hook is driven as on {' and '.join(DEVICES)} alone.")
    module = engine.module(release.HOOK)
    switch = getattr(engine.attribute("sglang.srt.environ", "envs"), SWITCH)
    arguments = _arguments(options)
    own = {SWITCH: environment[SPARSE_PREFILL_SWITCH]} if SPARSE_PREFILL_SWITCH in environment else {}
    with _environment(own), _resolution(module), _logged(release.HOOK) as warnings:
        try:
            module.validate_deepseek_v4_cp(arguments)
            return Settings({"sparse_prefill": bool(switch.get())}, tuple(warnings))
        except (AssertionError, ValueError) as error:
            raise BadInput(" ".join(str(error).split())) from error


def _arguments(options: ServerOptions) -> SimpleNamespace:
    """Server arguments, under the names of all releases. Context parallelism takes all ranks of a replica there."""
    parallel = options.cp > 1
    return SimpleNamespace(
        enable_prefill_cp=parallel,
        enable_dsa_prefill_context_parallel=parallel,
        enable_prefill_context_parallel=False,
        dsa_prefill_cp_mode="round-robin-split",
        cp_strategy="interleave",
        tp_size=options.tp,
        dp_size=options.dp,
        attn_dp_size=options.dp,
        attn_cp_size=1,
        moe_dense_tp_size=None,
        moe_dp_size=1,
        ep_size=1,
        moe_a2a_backend="none",
        nnodes=1,
        enable_dp_attention=options.dp > 1,
        enable_two_batch_overlap=False,
        enable_decoder_swa_bounded_replay=False,
    )


@contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    """The switch as given, or unset; what the hook sets is undone."""
    with mock.patch.dict(os.environ):
        os.environ.pop(SWITCH, None)
        os.environ.update(own)
        yield


@contextmanager
def _resolution(module: Any) -> Iterator[None]:
    """Newer releases read arguments through a view and declare changes: both are the arguments themselves here."""
    model = SimpleNamespace(hf_config=SimpleNamespace(model_type="deepseek_v4"))
    replacements = {
        "resolving_view": lambda arguments: arguments,
        "resolved_view": lambda arguments: arguments,
        "declare_resolution": lambda arguments, _who, **changes: arguments.__dict__.update(changes),
        "model_config_of": lambda _arguments: model,
        "context_parallel_attn_dp_size": lambda arguments, _what: arguments.dp_size,
    }
    with ExitStack() as stack:
        for name, replacement in replacements.items():
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, replacement))
        yield


@contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """Warnings of one logger."""
    told: list[str] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger, handler = logging.getLogger(name), Note(logging.WARNING)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
