"""Cases of the EngineConfig surface: a model's config.json in some spelling, server options, the switch. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.implementations.state_api import ServerOptions
from dsv4_conformance.spec.engine_settings import SPARSE_PREFILL_SWITCH
from dsv4_conformance.spec.geometry import GEOMETRIES, Geometry

Spelling = Literal["release", "ones", "transformers", "early"]
"""How a config.json is written: as released; the same with ratio 1 for uncompressed layers; as transformers saves it;
as its first versions did."""

LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}

CHANGES: Mapping[str, Callable[[Geometry], Geometry]] = {
    "": lambda g: g,
    "three_drafts": lambda g: replace(g, compress_ratios=(*g.layer_ratios, 0, 0, 0)),
    "no_drafts": lambda g: replace(g, compress_ratios=g.layer_ratios),
    "other_order": lambda g: replace(g, compress_ratios=(*reversed(g.layer_ratios), 0)),
    "other_rope": lambda g: replace(g, rope_theta=20000.0, compress_rope_theta=80000.0),
    "other_yarn": lambda g: replace(
        g,
        rope_scaling=replace(
            g.rope_scaling, factor=4.0, original_max_position_embeddings=32768, beta_fast=16.0, beta_slow=2.0
        ),
    ),
    "other_topk": lambda g: replace(g, index_topk=1536 - g.index_topk),
}
"""Constants that a checkpoint could have instead; none is any engine's default."""


@dataclass(frozen=True)
class ConfigCase(_Described):
    """One deployment of ``model`` with its constants changed by ``change`` (CHANGES), its config.json in ``spelling``.

    ``switch`` is the value of DSV4_SPARSE_PREFILL, None = unset; ``fault`` names what is wrong (FAULTS), "" = nothing.
    """

    surface: str
    model: str = "flash"
    spelling: Spelling = "release"
    change: str = ""
    tp: int = 1
    dp: int = 1
    cp: int = 1
    device: str = "sm90"
    context: int = 0
    requests: int = 1
    drafts: int = 0
    switch: str | None = None
    fault: str = ""
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        ranks = f"tp{self.tp}" + "".join(f"-{n}{size}" for n, size in (("dp", self.dp), ("cp", self.cp)) if size > 1)
        words = [self.model, self.change, self.spelling, ranks, self.device]
        sizes = (("ctx", self.context), ("req", self.requests if self.requests > 1 else 0), ("draft", self.drafts))
        words += [f"{name}{size}" for name, size in sizes if size]
        words += ["" if self.switch is None else f"switch_{self.switch}", self.fault]
        return "-".join(word for word in words if word)


def geometry_of(case: ConfigCase) -> Geometry:
    """What the case's config says, however it is spelled."""
    return CHANGES[case.change](GEOMETRIES[case.model])


def options_of(case: ConfigCase) -> ServerOptions:
    """The case's server options, with its fault if it is one of options."""
    options = ServerOptions(
        case.tp,
        case.dp,
        case.cp,
        case.device,
        context=case.context,
        max_requests=case.requests,
        speculative_tokens=case.drafts,
    )
    return replace(options, **FAULTS[case.fault].options) if case.fault else options


def environment_of(case: ConfigCase) -> dict[str, str]:
    """The case's environment: the switch, or nothing."""
    return {} if case.switch is None else {SPARSE_PREFILL_SWITCH: case.switch}


def config_of(case: ConfigCase) -> dict[str, Any]:
    """The parsed config.json, a new one on every call, with the case's fault if it is one of the config."""
    config = spelled(geometry_of(case), case.spelling)
    for field, value in (FAULTS[case.fault].config if case.fault else {}).items():
        if value is None:
            del config[field]
        else:
            config[field] = value(config[field]) if callable(value) else value
    return config


def spelled(geometry: Geometry, spelling: Spelling) -> dict[str, Any]:
    """``geometry`` as a parsed config.json."""
    yarn = geometry.rope_scaling
    scaling = {
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position_embeddings,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
    }
    names = (
        "num_hidden_layers hidden_size num_attention_heads head_dim q_lora_rank o_groups o_lora_rank sliding_window "
        "index_n_heads index_head_dim index_topk max_position_embeddings rms_norm_eps"
    )
    config: dict[str, Any] = {
        "model_type": "deepseek_v4",
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        **{name: getattr(geometry, name) for name in names.split()},
    }
    if spelling == "transformers":
        compress = {"rope_type": "yarn", "rope_theta": geometry.compress_rope_theta, "attention_factor": 1.0, **scaling}
        return config | {
            "partial_rotary_factor": geometry.qk_rope_head_dim / geometry.head_dim,
            "layer_types": [LAYER_TYPES[ratio] for ratio in geometry.layer_ratios],
            "compress_rates": {LAYER_TYPES[4]: 4, LAYER_TYPES[128]: 128},
            "rope_parameters": {
                "main": {"rope_type": "default", "rope_theta": geometry.rope_theta},
                "compress": compress,
            },
        }
    written = [1 if ratio == 0 and spelling == "ones" else ratio for ratio in geometry.compress_ratios]
    config |= {"qk_rope_head_dim": geometry.qk_rope_head_dim, "compress_ratios": written}
    config |= {"rope_theta": geometry.rope_theta, "compress_rope_theta": geometry.compress_rope_theta}
    if spelling == "early":
        compress = {"rope_type": "yarn", "rope_theta": geometry.compress_rope_theta, **scaling}
        plain = {"rope_type": "default", "rope_theta": geometry.rope_theta}
        return config | {"rope_parameters": plain, "compress_rope_parameters": compress}
    return config | {"rope_scaling": {"type": "yarn", **scaling}}


@dataclass(frozen=True)
class Fault:
    """What is wrong: options that are replaced, config fields that are replaced (a function changes the value, None
    removes the field), and words of which a refusal has to contain one."""

    words: tuple[str, ...]
    options: Mapping[str, Any]
    config: Mapping[str, Any]


def _ratio_8(ratios: list[int]) -> list[int]:
    return [*ratios[:5], 8, *ratios[6:]]


FAULTS: Mapping[str, Fault] = {
    "head_dim_576": Fault(("head_dim",), {}, {"head_dim": 576}),
    "ratio_8": Fault(("ratio",), {}, {"compress_ratios": _ratio_8}),
    "too_few_ratios": Fault(("compress_ratios", "layer"), {}, {"compress_ratios": lambda ratios: ratios[:-2]}),
    "no_compress_rope_theta": Fault(("compress_rope_theta",), {}, {"compress_rope_theta": None}),
    "no_rope_scaling": Fault(("rope_scaling", "rope_parameters", "yarn"), {}, {"rope_scaling": None}),
    "no_index_topk": Fault(("index_topk",), {}, {"index_topk": None}),
    "tp_3": Fault(("tp",), {"tp": 3}, {}),
    "tp_splits_a_group": Fault(("tp", "o_groups"), {"tp": 32}, {}),
    "tp_0": Fault(("tp",), {"tp": 0}, {}),
    "dp_3": Fault(("dp",), {"tp": 8, "dp": 3}, {}),
    "context_beyond_the_model": Fault(("context", "max_position_embeddings", "length"), {"context": 2**20 + 1}, {}),
    "page_size_0": Fault(("page",), {"page_size": 0}, {}),
    "unknown_device": Fault(("device", "sm10"), {"device": "sm10"}, {}),
}
"""Faults by name; every engine has to refuse them."""
