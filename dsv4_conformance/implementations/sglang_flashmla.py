"""Adapter of FlashMLA as SGLang calls it: through the wrapper of its release (spec §10 to §12).

The kernels are those of ``flash_mla``; what is under test is what stands between them and the engine: argument names,
the choice of kernels for a cache, and the unit of the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import flash_mla, sglang_engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.api import Convention, Identity, PrefillCall, PrefillResult

WRAPPER = "sglang.kernels.ops.attention.flash_mla_interface"
FUNCTIONS = ("get_mla_metadata", "flash_mla_with_kvcache", "flash_mla_sparse_fwd")
REMEDY = (
    "install a release that calls the wheel sgl-flash-mla, alone: `pip install --no-deps sglang==0.5.23`, and "
    "`dsv4-conformance[sglang,flash-mla]`"
)


class SGLangFlashMLA(flash_mla.FlashMLA):
    """``flash_mla_with_kvcache`` and ``flash_mla_sparse_fwd`` of the installed SGLang, with the engine's arguments."""

    identity: ClassVar[Identity] = Identity(
        name="sglang_flashmla",
        version=f"{release.version()} over sgl-flash-mla {flash_mla.FlashMLA.identity.version}",
        homepage="https://github.com/sgl-project/sglang",
        kind="engine",
        notes=(
            f"driven: {WRAPPER}, whose kernels are the wheel's",
            "the wrapper's prefill gives statistics in base 2, which the engine drops; the adapter converts them",
            *flash_mla.FlashMLA.identity.notes,
        ),
    )
    surfaces: ClassVar[Mapping[str, Convention]] = dict(flash_mla.FlashMLA.surfaces)

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput, in one sentence, if SGLang is missing, has no such wrapper, or the wheel is missing."""
        found = release.version()
        if release.folder() is None:
            raise BadInput(f"implementation 'sglang_flashmla' needs the package sglang, which is not there; {REMEDY}.")
        if not release.has(WRAPPER, *FUNCTIONS):
            raise BadInput(
                f"implementation 'sglang_flashmla' finds no {WRAPPER} in sglang {found}, whose FlashMLA is part of "
                f"sgl-kernel; {REMEDY}."
            )
        flash_mla.FlashMLA.check_available()

    def __init__(self, device: str) -> None:
        super().__init__(device)
        sglang_engine.load(device)
        self._engine = sglang_engine.module(WRAPPER)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §11; max_logits and lse come in base 2 (DOUBT-17)."""
        result = super().prefill(call)
        assert result.max_logits is not None
        return PrefillResult(result.out, result.max_logits * math.log(2), result.lse * math.log(2))
