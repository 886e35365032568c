"""Reads the attention constants out of a Hugging Face ``config.json`` (spec §1).

A constant that is missing is an error, never a default: the defaults of engines are not those of the models. Where one
constant is spelled twice, the spellings must agree, because engines differ in which one they read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.config_rope import rope
from dsv4_conformance.spec.config_values import (
    LIMIT,
    agree,
    integer,
    kind,
    listing,
    mapping,
    missing,
    number,
    required,
    shown,
)

_INTEGERS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "max_position_embeddings",
)
_LAYER_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_RATE_NAMES = {"compress_rate_csa": 4, "compress_rate_hca": 128}


def locate(source: str | PathLike[str]) -> Path:
    """Path of the config.json that ``source`` (a file or a folder) means."""
    path = Path(source)
    return path / "config.json" if os.path.isdir(path) else path  # pathlib raises for a name that is too long


def load(path: Path) -> Mapping[str, Any]:
    """Parse one JSON object. Raises BadInput if the file cannot be read, is no JSON object, or repeats a key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        where = str(path)[-200:]
        raise BadInput(f"Cannot read {where} ({error.strerror}); give the path of a readable config.json.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text; give the path of a config.json.") from error
    except ValueError as error:  # a NUL in it
        raise BadInput(f"{shown(str(path))} is no path; give the path of a readable config.json.") from error
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not valid JSON at line {error.lineno}; repair it or fetch it again.") from error
    except ValueError as error:  # Python reads no integer of more than some thousand digits
        raise BadInput(f"{path} holds an integer of thousands of digits; repair it or fetch it again.") from error
    except RecursionError as error:
        raise BadInput(f"{path} is nested too deeply to be a config; give the model's config.json.") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path} holds a JSON {kind(data)} instead of an object; give the model's config.json.")
    return data


def parse(config: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of Geometry but the name; ``rope_scaling`` is a dict of YarnScaling's arguments.

    Raises BadInput naming the field when one is missing, mistyped or contradictory, or the model is no DeepSeek-V4.
    """
    _check_model(config)
    if absent := [name for name in (*_INTEGERS, "rms_norm_eps") if config.get(name) is None]:
        raise missing(*absent)
    fields: dict[str, Any] = {name: integer(name, required(name, config)) for name in _INTEGERS}
    fields["rms_norm_eps"] = number("rms_norm_eps", required("rms_norm_eps", config))
    if fields["rms_norm_eps"] >= 1:
        raise BadInput(f"rms_norm_eps is {fields['rms_norm_eps']:g}; write a number between 0 and 1, such as 1e-6.")
    fields["qk_rope_head_dim"] = _rope_dim(config, fields["head_dim"])
    fields["compress_ratios"] = _ratios(config, fields["num_hidden_layers"])
    return {**fields, **rope(config)}


def _check_model(config: Mapping[str, Any]) -> None:
    if config.get("model_type", "deepseek_v4") != "deepseek_v4":
        raise BadInput(
            f"model_type is {shown(config['model_type'])}; only deepseek_v4 is covered (DeepSeek-V4.1 is not), so give "
            "the config.json of a DeepSeek-V4 checkpoint."
        )
    heads = config.get("num_key_value_heads", 1)
    if type(heads) is not int or heads != 1:
        raise BadInput(f"num_key_value_heads is {shown(heads)}; DeepSeek-V4 shares one key head, so write 1.")
    drafts = config.get("num_nextn_predict_layers")
    if drafts is not None and (type(drafts) is not int or not 0 <= drafts < LIMIT):
        raise BadInput(
            f"num_nextn_predict_layers is {shown(drafts)}; write the number of draft layers, 0 or more, or remove it."
        )


def _rope_dim(config: Mapping[str, Any], head_dim: int) -> int:
    spelled: dict[str, int] = {}
    if config.get("qk_rope_head_dim") is not None:
        spelled["qk_rope_head_dim"] = integer("qk_rope_head_dim", config["qk_rope_head_dim"])
    if config.get("partial_rotary_factor") is not None:
        factor = number("partial_rotary_factor", config["partial_rotary_factor"])
        if factor > 1:
            raise BadInput(f"partial_rotary_factor is {factor:g}; write a share of the head, at most 1.")
        spelled["partial_rotary_factor * head_dim"] = int(factor * head_dim)
    return int(agree("qk_rope_head_dim", spelled))


def _ratios(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    _check_rates(config)
    spelled: dict[str, tuple[int, ...]] = {}
    if config.get("compress_ratios") is not None:
        values = listing("compress_ratios", config["compress_ratios"])
        spelled["compress_ratios"] = tuple(_ratio(f"compress_ratios[{i}]", value) for i, value in enumerate(values))
    if config.get("layer_types") is not None:
        values = listing("layer_types", config["layer_types"])
        # transformers keeps no draft layers and cuts the list to the main ones
        spelled["layer_types"] = tuple(_type_ratio(f"layer_types[{i}]", value) for i, value in enumerate(values))[
            :layers
        ]
    for name, ratios in spelled.items():
        if len(ratios) < layers:
            raise BadInput(
                f"{name} has {len(ratios)} entries but num_hidden_layers is {layers}; give one entry per layer."
            )
    if not spelled:
        raise BadInput(
            "compress_ratios is missing and so is layer_types; write one compress ratio per layer (defaults differ "
            "between engines, so it is never guessed)."
        )
    for layer in range(layers):
        agree("compress_ratios", {f"{name}[{layer}]": ratios[layer] for name, ratios in spelled.items()})
    return next(iter(spelled.values()))


def _ratio(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} is {shown(value)}; write an integer ratio: 0, 4 or 128.")
    if not -LIMIT < value < LIMIT:
        raise BadInput(f"{name} is {shown(value)}; write an integer ratio: 0, 4 or 128.")
    # some checkpoints write 1 for an uncompressed layer: https://github.com/sgl-project/sglang/pull/25144
    return 0 if value == 1 else value


def _type_ratio(name: str, value: Any) -> int:
    if not isinstance(value, str) or value not in _LAYER_TYPES:
        raise BadInput(f"{name} is {shown(value)}; write one of {', '.join(_LAYER_TYPES)}.")
    return _LAYER_TYPES[value]


def _check_rates(config: Mapping[str, Any]) -> None:
    rates: Mapping[str, Any] = {}
    if config.get("compress_rates") is not None:
        rates = mapping("compress_rates", config["compress_rates"], "one rate per compressed layer type")
    found = [(f"compress_rates.{name}", rates.get(name), ratio) for name, ratio in _LAYER_TYPES.items() if ratio]
    found += [(name, config.get(name), ratio) for name, ratio in _RATE_NAMES.items()]
    for name, rate, ratio in found:
        if rate is not None and (isinstance(rate, bool) or rate != ratio):
            raise BadInput(f"{name} is {shown(rate)}; DeepSeek-V4 has {ratio} there, so correct or remove it.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise BadInput(f"{key} is written twice in the config.json; keep one of the two entries.")
        result[key] = value
    return result
