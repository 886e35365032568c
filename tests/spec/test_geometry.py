"""Built-in geometries against the published numbers, and what is derived from them."""

import dataclasses
import json
import math
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import FLASH, GEOMETRIES, PRO, TINY, Geometry, YarnScaling, resolve

FIELDS = (
    ("num_hidden_layers", 43, 61),
    ("hidden_size", 4096, 7168),
    ("num_attention_heads", 64, 128),
    ("head_dim", 512, 512),
    ("qk_rope_head_dim", 64, 64),
    ("q_lora_rank", 1024, 1536),
    ("o_groups", 8, 16),
    ("o_lora_rank", 1024, 1024),
    ("sliding_window", 128, 128),
    ("index_n_heads", 64, 64),
    ("index_head_dim", 128, 128),
    ("index_topk", 512, 1024),
    ("rope_theta", 1e4, 1e4),
    ("compress_rope_theta", 1.6e5, 1.6e5),
    ("rope_scaling", YarnScaling(16, 65536, 32, 1), YarnScaling(16, 65536, 32, 1)),
    ("max_position_embeddings", 1 << 20, 1 << 20),
    ("rms_norm_eps", 1e-6, 1e-6),
    ("nope_dim", 448, 448),
    ("heads_per_group", 8, 8),
    ("attention_width", 32768, 65536),
    ("draft_layers", 1, 1),
    ("layer_census", {0: 2, 4: 21, 128: 20}, {0: 0, 4: 30, 128: 31}),
    ("tp_sizes", (1, 2, 4, 8), (1, 2, 4, 8, 16)),
)


@pytest.mark.parametrize(("name", "flash", "pro"), FIELDS)
def test_published_numbers(name: str, flash: Any, pro: Any) -> None:
    assert getattr(FLASH, name) == flash
    assert getattr(PRO, name) == pro


def test_every_field_is_compared_with_the_published_numbers() -> None:
    # compress_ratios is checked entry by entry below
    assert {f.name for f in dataclasses.fields(Geometry)} - {"name", "compress_ratios"} <= {name for name, *_ in FIELDS}


def test_ratios_alternate_after_the_first_two_layers() -> None:
    for geometry, first in ((FLASH, 0), (PRO, 128)):
        expected = [first if layer < 2 else (128 if layer % 2 else 4) for layer in range(geometry.num_hidden_layers)]
        assert geometry.layer_ratios == tuple(expected)
        assert geometry.compress_ratios == (*expected, 0)


def test_scales_are_those_that_engines_compute() -> None:
    assert FLASH.softmax_scale == 512**-0.5
    assert FLASH.index_weight_scale == 128**-0.5 * 64**-0.5
    assert math.isclose(FLASH.softmax_scale, 0.044194173824159216, rel_tol=1e-15)


def test_tiny_keeps_what_layouts_and_masks_depend_on() -> None:
    free = {"num_hidden_layers", "hidden_size", "num_attention_heads", "q_lora_rank", "o_groups", "o_lora_rank"}
    free |= {"name", "index_topk", "compress_ratios"}
    kept = {field.name for field in dataclasses.fields(Geometry)} - free
    assert {name: getattr(TINY, name) for name in kept} == {name: getattr(FLASH, name) for name in kept}
    assert (TINY.num_attention_heads, TINY.index_topk) == (8, 64)
    assert set(TINY.layer_ratios) == {0, 4, 128}
    assert 2 in TINY.tp_sizes


def test_rope_base_follows_the_ratio() -> None:
    assert [FLASH.rope_base(ratio) for ratio in (0, 4, 128)] == [1e4, 1.6e5, 1.6e5]
    with pytest.raises(BadInput, match="ratio 1 is no DeepSeek-V4 compress ratio; use 0, 4 or 128"):
        FLASH.rope_base(1)


def test_local_heads() -> None:
    assert [PRO.local_heads(tp) for tp in (1, 2, 8, 16)] == [128, 64, 16, 8]
    with pytest.raises(BadInput, match=r"tp 16 does not split flash, whose o_groups is 8; use one of 1, 2, 4, 8\."):
        FLASH.local_heads(16)


def test_factor_1_means_no_scaling_and_is_allowed() -> None:
    assert dataclasses.replace(FLASH, rope_scaling=YarnScaling(1, 65536, 32, 1)).rope_scaling.factor == 1


def test_name_is_only_a_label() -> None:
    renamed = dataclasses.replace(FLASH, name="other")
    assert renamed == FLASH
    assert len({renamed, FLASH, PRO}) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"head_dim": 576}, "head_dim is 576 in flash; DeepSeek-V4 caches and kernels are defined for 512 only"),
        ({"qk_rope_head_dim": 128}, "qk_rope_head_dim is 128 in flash; .* 64 only"),
        ({"index_head_dim": 64}, "index_head_dim is 64 in flash; .* 128 only"),
        ({"o_groups": 6}, "o_groups is 6 in flash and does not divide num_attention_heads 64; correct"),
        ({"rope_scaling": YarnScaling(0.5, 65536, 32, 1)}, "rope_scaling.factor is 0.5 in flash; write a factor of at"),
        ({"num_hidden_layers": 45}, "compress_ratios has 44 entries in flash but num_hidden_layers is 45; give one"),
        (
            {"num_hidden_layers": 42},
            r"compress_ratios\[42\] is 4 in flash but belongs to a draft \(MTP\) layer; .*write 0",
        ),
        ({"compress_ratios": (2,) * 43}, r"compress_ratios\[0\] is 2 in flash; .* correct the entry .*V4\.1"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        dataclasses.replace(FLASH, **changes)


def test_resolve_knows_names_and_paths(tmp_path: Any) -> None:
    assert {name: resolve(name) for name in ("flash", "pro", "tiny")} == dict(GEOMETRIES)
    with pytest.raises(
        BadInput, match=r"geometry 'flesh' is neither built in \(flash, pro, tiny\) nor an existing path; give"
    ):
        resolve("flesh")
    for word in ("", "fl\0sh", "x" * 5000):
        with pytest.raises(BadInput, match="is neither built in") as refused:
            resolve(word)
        assert len(str(refused.value)) < 300 and "\0" not in str(refused.value)
    fields = dataclasses.asdict(TINY) | {"rope_scaling": {"type": "yarn", **dataclasses.asdict(TINY.rope_scaling)}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert resolve(str(tmp_path)) == TINY
