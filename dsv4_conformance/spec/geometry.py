"""Model geometry: the constants of one DeepSeek-V4 checkpoint that attention depends on (spec §1).

Field names are those of the Hugging Face ``config.json``. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec import config_json
from dsv4_conformance.spec.config_values import shown

RATIOS = (0, 4, 128)
"""Compress ratios of DeepSeek-V4 layers: none (C0), compressed sparse (C4), heavily compressed (C128)."""

HEAD_DIM = 512
ROPE_DIM = 64
INDEX_HEAD_DIM = 128


@dataclass(frozen=True)
class YarnScaling:
    """YaRN parameters of the C4 and C128 layers (spec §3); ``factor`` 1 means no scaling. C0 layers never use them."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class Geometry:
    """Constants of one checkpoint; hashable, equal when the numbers are (``name`` is only a label).

    ``compress_ratios`` holds one entry per main layer, then one 0 per draft (MTP) layer, normalised so that 0 alone
    means uncompressed. Raises BadInput when the numbers contradict each other or lie outside DeepSeek-V4.
    """

    name: str = field(compare=False)
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnScaling
    max_position_embeddings: int
    rms_norm_eps: float
    compress_ratios: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, fixed in (("head_dim", HEAD_DIM), ("qk_rope_head_dim", ROPE_DIM), ("index_head_dim", INDEX_HEAD_DIM)):
            if getattr(self, name) != fixed:
                raise BadInput(
                    f"{name} is {getattr(self, name)} in {self.name}; DeepSeek-V4 caches and kernels are defined for "
                    f"{fixed} only, so use the config.json of a DeepSeek-V4 checkpoint."
                )
        if self.num_attention_heads % self.o_groups:
            raise BadInput(
                f"o_groups is {self.o_groups} in {self.name} and does not divide num_attention_heads "
                f"{self.num_attention_heads}; correct one of the two."
            )
        if self.rope_scaling.factor < 1:
            raise BadInput(
                f"rope_scaling.factor is {self.rope_scaling.factor:g} in {self.name}; write a factor of at least 1 "
                "(1 for no scaling)."
            )
        if len(self.compress_ratios) < self.num_hidden_layers:
            raise BadInput(
                f"compress_ratios has {len(self.compress_ratios)} entries in {self.name} but num_hidden_layers is "
                f"{self.num_hidden_layers}; give one entry per layer (draft layers may follow)."
            )
        for layer, ratio in enumerate(self.compress_ratios):
            if ratio not in RATIOS:
                raise BadInput(
                    f"compress_ratios[{layer}] is {ratio} in {self.name}; DeepSeek-V4 layers have ratio 0 (or 1), 4 or "
                    "128, so correct the entry (ratio 2 belongs to DeepSeek-V4.1, which is out of scope)."
                )
            if layer >= self.num_hidden_layers and ratio:
                raise BadInput(
                    f"compress_ratios[{layer}] is {ratio} in {self.name} but belongs to a draft (MTP) layer; draft "
                    "layers are uncompressed, so write 0 or correct num_hidden_layers."
                )

    @property
    def nope_dim(self) -> int:
        """Leading head dims that carry no rotary position: 448."""
        return self.head_dim - self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on dot products, head_dim ** -0.5; YaRN adds no magnitude factor (spec §1)."""
        return math.pow(self.head_dim, -0.5)

    @property
    def index_weight_scale(self) -> float:
        """Factor on the indexer's head weights, index_head_dim ** -0.5 * index_n_heads ** -0.5 (spec §7)."""
        return math.pow(self.index_head_dim, -0.5) * math.pow(self.index_n_heads, -0.5)

    @property
    def heads_per_group(self) -> int:
        """Query heads of one output group (spec §2, step 7)."""
        return self.num_attention_heads // self.o_groups

    @property
    def attention_width(self) -> int:
        """Width of the flattened attention output, num_attention_heads * head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def layer_ratios(self) -> tuple[int, ...]:
        """Compress ratio of each main layer, draft layers excluded."""
        return self.compress_ratios[: self.num_hidden_layers]

    @property
    def draft_layers(self) -> int:
        """Number of draft (MTP) layers that ``compress_ratios`` lists; all are C0."""
        return len(self.compress_ratios) - self.num_hidden_layers

    @property
    def layer_census(self) -> Mapping[int, int]:
        """Main layers per ratio, ``{0: n, 4: n, 128: n}``."""
        seen = Counter(self.layer_ratios)
        return MappingProxyType({ratio: seen[ratio] for ratio in RATIOS})

    @property
    def tp_sizes(self) -> tuple[int, ...]:
        """Tensor-parallel sizes that keep output groups whole: the divisors of o_groups (spec §15)."""
        return tuple(tp for tp in range(1, self.o_groups + 1) if self.o_groups % tp == 0)

    def local_heads(self, tp: int) -> int:
        """Query heads of one of ``tp`` ranks. Raises BadInput if ``tp`` does not divide o_groups (spec §15)."""
        if tp not in self.tp_sizes:
            raise BadInput(
                f"tp {tp} does not split {self.name}, whose o_groups is {self.o_groups}; "
                f"use one of {', '.join(map(str, self.tp_sizes))}."
            )
        return self.num_attention_heads // tp

    def rope_base(self, ratio: int) -> float:
        """Rotary base of layers with this ratio: rope_theta for 0, compress_rope_theta for 4 and 128 (spec §3)."""
        if ratio not in RATIOS:
            raise BadInput(f"ratio {ratio} is no DeepSeek-V4 compress ratio; use 0, 4 or 128.")
        return self.compress_rope_theta if ratio else self.rope_theta

    @classmethod
    def from_config(cls, source: str | PathLike[str] | Mapping[str, Any], name: str = "") -> Geometry:
        """Read a Hugging Face config: a ``config.json``, the folder that holds it, or its parsed mapping.

        ``name`` labels the result (default: the folder's name, or "custom"). Raises BadInput with one sentence that
        names the field and the remedy; a constant that is missing is never replaced by a default. Source: spec §1.
        """
        if isinstance(source, Mapping):
            fields, label = config_json.parse(source), name or "custom"
        else:
            path = config_json.locate(source)
            fields, label = config_json.parse(config_json.load(path)), name or path.resolve().parent.name
        return cls(name=label, **{**fields, "rope_scaling": YarnScaling(**fields["rope_scaling"])})


_YARN = YarnScaling(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)

FLASH = Geometry(
    name="flash",
    num_hidden_layers=43,
    hidden_size=4096,
    num_attention_heads=64,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=1024,
    o_groups=8,
    o_lora_rank=1024,
    sliding_window=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=512,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=_YARN,
    max_position_embeddings=1048576,
    rms_norm_eps=1e-6,
    compress_ratios=(0, 0, *(4, 128) * 20, 4, 0),
)
"""DeepSeek-V4-Flash (spec §1)."""

PRO = Geometry(
    name="pro",
    num_hidden_layers=61,
    hidden_size=7168,
    num_attention_heads=128,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=1536,
    o_groups=16,
    o_lora_rank=1024,
    sliding_window=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=1024,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=_YARN,
    max_position_embeddings=1048576,
    rms_norm_eps=1e-6,
    compress_ratios=(128, 128, *(4, 128) * 29, 4, 0),
)
"""DeepSeek-V4-Pro (spec §1)."""

TINY = Geometry(
    name="tiny",
    num_hidden_layers=4,
    hidden_size=256,
    num_attention_heads=8,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=64,
    o_groups=2,
    o_lora_rank=32,
    sliding_window=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=64,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=_YARN,
    max_position_embeddings=1048576,
    rms_norm_eps=1e-6,
    compress_ratios=(0, 4, 128, 4, 0),
)
"""Everything that byte layouts and masks depend on, at a size a laptop runs: no published checkpoint has this shape."""

GEOMETRIES: Mapping[str, Geometry] = MappingProxyType({g.name: g for g in (FLASH, PRO, TINY)})
"""Built-in geometries by name."""


def resolve(name_or_path: str) -> Geometry:
    """Geometry for a command-line word: a built-in name (flash, pro, tiny), else a config.json or its folder.

    Raises BadInput if it is neither.
    """
    if name_or_path in GEOMETRIES:
        return GEOMETRIES[name_or_path]
    if not _exists(name_or_path):
        raise BadInput(
            f"geometry {shown(name_or_path)} is neither built in ({', '.join(GEOMETRIES)}) nor an existing path; "
            "give a name or the path of a config.json."
        )
    return Geometry.from_config(name_or_path)


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        return False
