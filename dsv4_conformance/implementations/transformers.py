"""Adapter of the DeepSeek-V4 model of Hugging Face transformers: attention layer, compressor, indexer (spec §2 to §8).

A second definition in the engine's own words, so a check on the oracle as much as on the engine. ``docs/engines.md``
tells what is driven, what is stood in for, and what it cannot do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import Convention, Identity, Implementation
from dsv4_conformance.implementations.state_api import LayerConvention, StateConvention

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.sessions import CompressorSession, IndexerSession, LayerSession
    from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec, LayerSpec

DISTRIBUTION = "transformers"
OLDEST = (5, 17)
REMEDY = "install it with `pip install 'dsv4-conformance[transformers]'`"
STATE = StateConvention(lookback=0, quantised=(False,), hadamard=False, paged=False)
LAYER = LayerConvention(
    precisions=("float32",),
    quantised=(False,),
    paths=(),
    graphs=(),
    tp=(1,),
    lookback=0,
    forks="at the end",
    padded_rows=False,
    infinite_sinks=False,
)


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "not installed"


def _identity(name: str, *notes: str) -> Identity:
    return Identity(
        name=name,
        version=_version(),
        homepage="https://github.com/huggingface/transformers",
        kind="engine",
        notes=(
            *notes,
            "driven: the installed DeepseekV4Attention, its compressors, indexer, caches, masks; eager attention",
            "stood in for: rotary tables (the case's, so that angles are shared); in select_topk the scorer",
            "no KV or index quantisation, no Hadamard rotation, no pages, one path, one rank",
        ),
    )


class Transformers(Implementation):
    """transformers in float32; every sequence has its own cache, so that chunks and single tokens run on it."""

    identity: ClassVar[Identity] = _identity("transformers", "float32; each sequence runs alone on its cache")
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    surfaces: ClassVar[Mapping[str, Convention]] = {"AttentionLayer": LAYER, "Compressor": STATE, "Indexer": STATE}
    dtype: ClassVar[str] = "float32"
    """What weights and activations are; parts of the engine compute in float32 all the same."""
    session: ClassVar[str] = "transformers_sessions:LayerSession"

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput if transformers is missing, too old, or without its DeepSeek-V4 model."""
        found = _version()
        if importlib.util.find_spec(DISTRIBUTION) is None or found == "not installed":
            raise BadInput(f"implementation 'transformers' needs {DISTRIBUTION}, which is not installed; {REMEDY}.")
        oldest = ".".join(map(str, OLDEST))
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise BadInput(
                f"implementation 'transformers' needs {DISTRIBUTION} {oldest} or newer, not {found}; {REMEDY}."
            )
        if importlib.util.find_spec(f"{DISTRIBUTION}.models.deepseek_v4") is None:
            raise BadInput(
                f"implementation 'transformers' finds no DeepSeek-V4 model in {DISTRIBUTION} {found}; reinstall it, or "
                f"{REMEDY}."
            )

    def __init__(self, device: str) -> None:
        super().__init__(device)
        from dsv4_conformance.implementations.transformers_engine import load_engine

        self._engine = load_engine()

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """Compressor: spec §5, §6."""
        from dsv4_conformance.implementations import transformers_engine, transformers_sessions

        compressor = transformers_engine.Compressor(self._engine, spec, self._dtype())
        return transformers_sessions.CompressorSession(self._engine, compressor)

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer: spec §7."""
        from dsv4_conformance.implementations import transformers_engine, transformers_sessions

        indexer = transformers_engine.Indexer(self._engine, spec, self._dtype())
        return transformers_sessions.IndexerSession(self._engine, indexer)

    def select_topk(self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor) -> tuple[Tensor, None]:
        """Indexer: spec §7. Picks only: there are no pages."""
        from dsv4_conformance.implementations.transformers_engine import select_topk

        return select_topk(self._engine, scores, lengths, topk), None

    def open_layer(self, spec: LayerSpec) -> LayerSession:
        """AttentionLayer: spec §2."""
        from dsv4_conformance.implementations.transformers_layer import Layer

        module, _, name = self.session.partition(":")
        made = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return cast("LayerSession", made(Layer(self._engine, spec, self._dtype())))

    def _dtype(self) -> Any:
        import torch

        return getattr(torch, self.dtype)


class Float64(Transformers):
    """As Transformers, in float64, but for what the engine casts to float32: rotations, norms, softmaxes, scores."""

    identity: ClassVar[Identity] = _identity("transformers_float64", "float64; each sequence runs alone on its cache")
    dtype: ClassVar[str] = "float64"


class LeftPadded(Transformers):
    """Sequences of different lengths in one batch and one cache, padding in front: what ``generate`` does."""

    identity: ClassVar[Identity] = _identity("transformers_left_padded", "float32; one left-padded batch on one cache")
    surfaces: ClassVar[Mapping[str, Convention]] = {"AttentionLayer": replace(LAYER, forks="none", lockstep=True)}
    session: ClassVar[str] = "transformers_batches:LeftPaddedSession"


class RightPadded(Transformers):
    """Sequences of different lengths in one batch without a cache, padding behind."""

    identity: ClassVar[Identity] = _identity(
        "transformers_right_padded", "float32; right-padded batches without a cache, all tokens anew in every step"
    )
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "AttentionLayer": replace(LAYER, forks="none", lookback=8, padded_rows=True)
    }
    session: ClassVar[str] = "transformers_batches:RightPaddedSession"


class Packed(Transformers):
    """Sequences of different lengths one behind the other in one row, told apart by their positions."""

    identity: ClassVar[Identity] = _identity(
        "transformers_packed", "float32; packed rows without a cache, all tokens anew in every step"
    )
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "AttentionLayer": replace(LAYER, forks="none", lookback=8, padded_rows=True)
    }
    session: ClassVar[str] = "transformers_batches:PackedSession"
