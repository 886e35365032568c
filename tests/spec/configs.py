"""Configurations as published, the attention fields only."""

import json
from pathlib import Path
from typing import Any

YARN = {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32,
    "beta_slow": 1,
}

FLASH_RATIOS = (
    "0 0 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 "
    "4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 128 4 0"
)


def flash() -> dict[str, Any]:
    """The release's spelling of DeepSeek-V4-Flash."""
    return {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 43,
        "num_nextn_predict_layers": 1,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": dict(YARN),
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-6,
        "compress_ratios": [int(ratio) for ratio in FLASH_RATIOS.split()],
    }


def transformers_flash() -> dict[str, Any]:
    """What transformers saves for the same model: layer types and nested rope parameters."""
    config = flash()
    for name in ("rope_scaling", "rope_theta", "compress_rope_theta", "compress_ratios", "qk_rope_head_dim"):
        del config[name]
    config["partial_rotary_factor"] = 0.125
    config["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
        "compress": {**YARN, "rope_type": "yarn", "rope_theta": 160000.0, "attention_factor": 1.0},
    }
    config["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    pair = ["compressed_sparse_attention", "heavily_compressed_attention"]
    config["layer_types"] = ["sliding_attention"] * 2 + pair * 20 + pair[:1]
    return config


def early_transformers_flash() -> dict[str, Any]:
    """An earlier transformers spelling: the scaling of compressed layers stands beside a flat rope_parameters."""
    config = flash()
    del config["rope_scaling"]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config["compress_rope_parameters"] = {**YARN, "rope_type": "yarn", "rope_theta": 160000.0}
    return config


def written(config: Any, folder: Path) -> Path:
    """Path of a config.json with this content."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path
