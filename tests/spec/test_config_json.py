"""Every published spelling of a configuration is read; every broken one is refused in one sentence."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import FLASH, Geometry

from .configs import YARN, early_transformers_flash, flash, transformers_flash, written

GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "release": flash,
    "transformers": transformers_flash,
    "early transformers": early_transformers_flash,
    "no model type": lambda: without("model_type"),
    "flat rope parameters": lambda: without("rope_scaling") | {"rope_parameters": YARN | {"rope_theta": 10000}},
    "both layer spellings": lambda: flash() | {"layer_types": transformers_flash()["layer_types"]},
    "old rate names": lambda: flash() | {"compress_rate_csa": 4, "compress_rate_hca": 128},
    "ratio 1 for uncompressed": lambda: flash() | {"compress_ratios": [r or 1 for r in flash()["compress_ratios"]]},
}


def without(name: str) -> dict[str, Any]:
    config = flash()
    del config[name]
    return config


def ratios(layer: int, value: Any) -> dict[str, Any]:
    config = flash()
    config["compress_ratios"][layer] = value
    return config


def yarn(**changes: Any) -> dict[str, Any]:
    return flash() | {"rope_scaling": {name: v for name, v in (YARN | changes).items() if v is not None}}


def nested(part: str, **changes: Any) -> dict[str, Any]:
    config = transformers_flash()
    config["rope_parameters"][part] |= changes
    return config


@pytest.mark.parametrize("config", GOOD.values(), ids=GOOD.keys())
def test_spellings_give_the_same_geometry(config: Callable[[], dict[str, Any]]) -> None:
    read = Geometry.from_config(config())
    draftless = dataclasses.replace(FLASH, compress_ratios=FLASH.layer_ratios)
    assert read == (FLASH if "compress_ratios" in config() else draftless)


def test_more_draft_layers_are_kept() -> None:
    config = flash()
    config["compress_ratios"] += [0, 0]
    assert Geometry.from_config(config).draft_layers == 3


def test_one_is_a_positive_integer() -> None:
    config = flash() | {"num_hidden_layers": 1, "compress_ratios": [4]}
    assert Geometry.from_config(config).layer_census == {0: 0, 4: 1, 128: 0}


def test_values_are_taken_from_the_config() -> None:
    config = yarn(factor=40, beta_slow=2, original_max_position_embeddings=4096)
    config |= {"index_topk": 1024, "compress_rope_theta": 40000, "rms_norm_eps": 1e-5}
    read = Geometry.from_config(config)
    scaling = dataclasses.asdict(read.rope_scaling)
    assert scaling == {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 2}
    assert (read.index_topk, read.compress_rope_theta, read.rope_theta) == (1024, 40000, 10000)
    assert read.rms_norm_eps == 1e-5


def test_a_file_and_its_folder_are_the_same_and_give_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "DeepSeek-V4-Flash"
    folder.mkdir()
    path = written(flash(), folder)
    assert [Geometry.from_config(source).name for source in (path, str(folder))] == ["DeepSeek-V4-Flash"] * 2
    assert Geometry.from_config(path) == FLASH
    assert Geometry.from_config(path, name="mine").name == "mine"
    assert Geometry.from_config(flash()).name == "custom"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"no {name}": (without(name), f"{name} is missing; add it to the config.json")
        for name in flash()
        if name
        not in ("model_type", "num_key_value_heads", "num_nextn_predict_layers", "rope_scaling", "compress_ratios")
    },
    "no rope_scaling": (without("rope_scaling"), "rope_scaling is missing; write an object with the YaRN"),
    "null rope_scaling": (flash() | {"rope_scaling": None}, "rope_scaling is missing; write an object with the YaRN"),
    "no ratios": (without("compress_ratios"), "compress_ratios is missing and so is layer_types; write one"),
    "string": (flash() | {"index_topk": "512"}, "index_topk is '512'; write a positive integer"),
    "float": (flash() | {"hidden_size": 4096.0}, "hidden_size is 4096.0; write a positive integer"),
    "bool": (flash() | {"o_groups": True}, "o_groups is True; write a positive integer"),
    "zero": (flash() | {"sliding_window": 0}, "sliding_window is 0; write a positive integer"),
    "zero number": (flash() | {"rms_norm_eps": 0}, "rms_norm_eps is 0; write a positive finite number"),
    "negative": (flash() | {"rope_theta": -1.0}, "rope_theta is -1.0; write a positive finite number"),
    "infinite": (
        flash() | {"compress_rope_theta": float("inf")},
        "compress_rope_theta is inf; write a positive finite",
    ),
    "not a number": (flash() | {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; write a positive finite number"),
    "huge integer": (flash() | {"index_topk": 10**400}, "index_topk is 1000.*; write a positive integer below 2"),
    "endless integer": (flash() | {"index_topk": 10**6000}, "index_topk is an integer of thousands of digits; write"),
    "huge number": (flash() | {"rope_theta": 10**400}, "rope_theta is 1000.*; write a positive finite number"),
    "endless number": (yarn(factor=10**6000), "factor is an integer of thousands .*; write a positive finite number"),
    "huge ratio": (ratios(7, 10**6000), r"compress_ratios\[7\] is an integer of thousands .*; write an integer ratio"),
    "huge share": (flash() | {"partial_rotary_factor": 1e308}, "partial_rotary_factor is 1e.308; .* at most 1"),
    "epsilon 1": (flash() | {"rms_norm_eps": 1}, "rms_norm_eps is 1; write a number between 0 and 1"),
    "kv heads true": (flash() | {"num_key_value_heads": True}, "num_key_value_heads is True; .* write 1"),
    "kv heads 1.0": (flash() | {"num_key_value_heads": 1.0}, "num_key_value_heads is 1.0; .* write 1"),
    "drafts text": (flash() | {"num_nextn_predict_layers": "1"}, "num_nextn_predict_layers is '1'; .* 0 or more"),
    "drafts true": (flash() | {"num_nextn_predict_layers": True}, "num_nextn_predict_layers is True; .* 0 or more"),
    "drafts negative": (flash() | {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1; .* 0 or more"),
    "other model": (flash() | {"model_type": "deepseek_v41"}, "model_type is 'deepseek_v41'; only deepseek_v4 is"),
    "two kv heads": (flash() | {"num_key_value_heads": 2}, "num_key_value_heads is 2; .* write 1"),
    "ratio 2": (ratios(7, 2), r"compress_ratios\[7\] is 2 .*; .* correct the entry"),
    "ratio 4.0": (ratios(7, 4.0), r"compress_ratios\[7\] is 4.0; write an integer ratio"),
    "ratio true": (ratios(0, True), r"compress_ratios\[0\] is True; write an integer ratio"),
    "draft 4": (ratios(43, 4), r"compress_ratios\[43\] is 4 .* draft \(MTP\) layer; .* write 0"),
    "ratios text": (flash() | {"compress_ratios": "0,4"}, "compress_ratios is a string; write a list"),
    "too few ratios": (flash() | {"compress_ratios": [0] * 42}, "compress_ratios has 42 entries but num_hidden_layers"),
    "too few types": (
        transformers_flash() | {"layer_types": ["sliding_attention"]},
        "layer_types has 1 entries but num_hidden_layers is 43; give one",
    ),
    "unknown type": (
        transformers_flash() | {"layer_types": ["full_attention"] * 43},
        r"layer_types\[0\] is 'full_attention'; write one of sliding_attention",
    ),
    "types against ratios": (
        ratios(5, 4) | {"layer_types": transformers_flash()["layer_types"]},
        r"compress_ratios\[5\] and layer_types\[5\] disagree \(4 and 128\); .* make them equal",
    ),
    "rate": (
        transformers_flash() | {"compress_rates": {"compressed_sparse_attention": 8}},
        "compress_rates.compressed_sparse_attention is 8; DeepSeek-V4 has 4 there, so correct",
    ),
    "rate text": (flash() | {"compress_rates": [4, 128]}, "compress_rates is a list; write an object"),
    "old rate": (flash() | {"compress_rate_hca": 64}, "compress_rate_hca is 64; DeepSeek-V4 has 128 there"),
    "scaling text": (flash() | {"rope_scaling": "yarn"}, "rope_scaling is a string; write an object"),
    "scaling kind": (yarn(type="linear"), 'rope_scaling.rope_type is "linear"; .* write "yarn"'),
    "two kinds": (yarn(rope_type="linear"), "rope_scaling.rope_type and rope_scaling.type disagree"),
    "no beta": (yarn(beta_fast=None), "rope_scaling.beta_fast is missing; add it"),
    "factor": (yarn(factor="16"), "rope_scaling.factor is '16'; write a positive finite number"),
    "factor below 1": (yarn(factor=0.5), "rope_scaling.factor is 0.5 .*; write a factor of at least 1"),
    "magnitude": (yarn(attention_factor=1.277), "rope_scaling.attention_factor is 1.277; .* write 1"),
    "scaled main": (nested("main", rope_type="yarn"), 'rope_parameters.main.rope_type is "yarn"; .* write "default"'),
    "no compress": (
        transformers_flash() | {"rope_parameters": {"main": {"rope_theta": 10000}}},
        "rope_parameters.compress is a null; write an object",
    ),
    "two thetas": (
        nested("compress", rope_theta=40000) | {"compress_rope_theta": 160000},
        r"compress_rope_theta and rope_parameters.compress.rope_theta disagree \(160000.0 and 40000.0\)",
    ),
    "two factors": (
        transformers_flash() | {"rope_scaling": YARN | {"factor": 4}},
        r"rope_scaling.factor and rope_parameters.compress.factor disagree \(4.0 and 16.0\)",
    ),
    "two rope dims": (
        flash() | {"partial_rotary_factor": 0.25},
        r"qk_rope_head_dim and partial_rotary_factor \* head_dim disagree \(64 and 128\)",
    ),
}


@pytest.mark.parametrize(("config", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_configs_are_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        Geometry.from_config(config)
    message = str(refused.value)
    assert re.search(sentence, message)
    assert message.endswith(".") and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not valid JSON at line 1; repair it"),
        (b"", "is not valid JSON at line 1; repair it"),
        (b'{"index_topk": 1' + b"0" * 5000 + b"}", "holds an integer of thousands of digits; repair it"),
        (b"[1]", "holds a JSON list instead of an object; give"),
        (b"null", "holds a JSON null instead of an object; give"),
        (b"\xff\xfe{}", "is not UTF-8 text; give"),
        (b"[" * 100_000, "is nested too deeply to be a config; give"),
        (b'{"index_topk": 512, "index_topk": 1024}', "index_topk is written twice in the config.json; keep one"),
    ],
)
def test_bad_files_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        Geometry.from_config(path)


@pytest.mark.parametrize("path", ["fl\0sh", "x" * 5000])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match="give the path of a readable") as refused:
        Geometry.from_config(path)
    assert len(str(refused.value)) < 350


def test_unreadable_paths_are_refused(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(BadInput, match=r"Cannot read .*json \(No such file or directory\); give the path"):
            Geometry.from_config(source)
