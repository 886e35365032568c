"""Rotary constants of a config.json: two bases and the YaRN parameters, in any of the three spellings (spec §1, §3).

``rope_scaling`` or a flat ``rope_parameters`` beside ``rope_theta`` and ``compress_rope_theta`` (releases),
``rope_parameters`` with ``main`` and ``compress`` (transformers), ``compress_rope_parameters`` (early transformers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.config_values import agree, integer, mapping, number, shown

_CONTENT = "the YaRN parameters type, factor, original_max_position_embeddings, beta_fast and beta_slow"
_YARN = {"factor": number, "original_max_position_embeddings": integer, "beta_fast": number, "beta_slow": number}

Blocks = dict[str, Mapping[str, Any]]
"""Objects that may hold rotary constants, by dotted name."""


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_theta``, ``compress_rope_theta`` and ``rope_scaling`` (a dict of YarnScaling's arguments).

    Raises BadInput when one is missing, mistyped or spelled in two ways that disagree, when layers of ratio 0 are
    scaled, or when the compressed layers are not on YaRN.
    """
    main, compress, scaled = _blocks(config)
    return {
        "rope_theta": _theta("rope_theta", config, main),
        "compress_rope_theta": _theta("compress_rope_theta", config, compress),
        "rope_scaling": _yarn(scaled),
    }


def _blocks(config: Mapping[str, Any]) -> tuple[Blocks, Blocks, Blocks]:
    main: Blocks = {}
    compress: Blocks = {}
    scaled: Blocks = {}
    given = {
        name: mapping(name, config[name], _CONTENT)
        for name in ("rope_scaling", "rope_parameters", "compress_rope_parameters")
        if config.get(name) is not None
    }
    for name, block in given.items():
        if name == "compress_rope_parameters":
            compress[name] = scaled[name] = block
        elif name == "rope_parameters" and ("main" in block or "compress" in block):
            plain = mapping("rope_parameters.main", block.get("main"), "rope_type and rope_theta")
            _check_plain(plain)
            main["rope_parameters.main"] = plain
            nested = mapping("rope_parameters.compress", block.get("compress"), _CONTENT)
            compress["rope_parameters.compress"] = scaled["rope_parameters.compress"] = nested
        else:
            main[name] = block
            # early transformers keeps the scaling apart: its flat rope_parameters may say "default"
            if name == "rope_scaling" or _rope_type(name, block) != "default":
                scaled[name] = block
    if not scaled:
        raise BadInput(f"rope_scaling is missing; write an object with {_CONTENT} (it is never guessed).")
    return main, compress, scaled


def _check_plain(block: Mapping[str, Any]) -> None:
    kind = _rope_type("rope_parameters.main", block)
    if kind != "default":
        raise BadInput(
            f'rope_parameters.main.rope_type is "{kind}"; layers of ratio 0 are never scaled, so write "default".'
        )


def _rope_type(name: str, block: Mapping[str, Any]) -> str:
    spelled = {f"{name}.{key}": block[key] for key in ("rope_type", "type") if key in block}
    value = agree(f"{name}.rope_type", spelled) if spelled else "default"
    return value[:60] if isinstance(value, str) else shown(value)


def _yarn(blocks: Blocks) -> dict[str, Any]:
    for name, block in blocks.items():
        kind = _rope_type(name, block)
        if kind != "yarn":
            raise BadInput(
                f'{name}.rope_type is "{kind}"; compressed layers use YaRN, so write "yarn" (factor 1: no scaling).'
            )
        magnitude = block.get("attention_factor")
        if isinstance(magnitude, bool) or magnitude not in (None, 1):
            raise BadInput(
                f"{name}.attention_factor is {shown(magnitude)}; DeepSeek-V4 has no YaRN magnitude "
                "factor, so remove it or write 1."
            )
    fields: dict[str, Any] = {}
    for key, read in _YARN.items():
        spelled = {f"{name}.{key}": read(f"{name}.{key}", block[key]) for name, block in blocks.items() if key in block}
        fields[key] = agree(f"{next(iter(blocks))}.{key}", spelled)
    return fields


def _theta(name: str, config: Mapping[str, Any], blocks: Blocks) -> float:
    spelled = {name: number(name, config[name])} if config.get(name) is not None else {}
    for block_name, block in blocks.items():
        if "rope_theta" in block:
            spelled[f"{block_name}.rope_theta"] = number(f"{block_name}.rope_theta", block["rope_theta"])
    return float(agree(name, spelled))
