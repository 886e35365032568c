"""Effective settings: numbers by hand, the switch, one sentence per problem, and agreement with the layer that runs."""

import logging
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla import config_memory as memory
from dsv4_conformance.mla.config import examine, resolve
from dsv4_conformance.mla.config_checks import Deployment, read_config, switch
from dsv4_conformance.mla.config_kernels import DEVICES, MAX_PAGED_ROWS, kernels_of
from dsv4_conformance.spec.engine_settings import OPTIONAL, REQUIRED
from dsv4_conformance.spec.geometry import FLASH, PRO, TINY, Geometry
from tests.spec.configs import flash


def settings(geometry: Geometry = FLASH, environment: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    found = examine(geometry, Deployment(**options), environment or {})
    assert not found.problems
    return dict(found.values)


def problems(geometry: Geometry = FLASH, environment: dict[str, str] | None = None, **options: Any) -> tuple[str, ...]:
    return examine(geometry, Deployment(**options), environment or {}).problems


# Kills: a setting that the table does not have, a row of the table that is never told.
def test_every_name_of_the_table_is_told() -> None:
    assert set(settings(tp=8)) == set(REQUIRED) | set(OPTIONAL)


# Kills: tp in place of attention-TP, cp left out of it, padding by the model's heads.
@pytest.mark.parametrize(
    ("geometry", "options", "expected"),
    [
        (FLASH, {"tp": 1}, (1, 64, 64)),
        (FLASH, {"tp": 2}, (2, 32, 64)),
        (FLASH, {"tp": 8, "dp": 8}, (1, 64, 64)),
        (FLASH, {"tp": 8, "dp": 2}, (4, 16, 64)),
        (FLASH, {"tp": 8, "cp": 8}, (1, 64, 64)),
        (PRO, {"tp": 1}, (1, 128, 128)),
        (PRO, {"tp": 2}, (2, 64, 64)),
        (PRO, {"tp": 32, "dp": 4, "device": "sm100"}, (8, 16, 64)),
        (PRO, {"tp": 8, "dp": 2, "cp": 2, "device": "cpu"}, (2, 64, 64)),
        (TINY, {"tp": 2, "device": "cpu"}, (2, 4, 64)),
        (TINY, {"tp": 1, "device": "cpu"}, (1, 8, 8)),
    ],
)
def test_heads(geometry: Geometry, options: dict[str, Any], expected: tuple[int, int, int]) -> None:
    found = settings(geometry, **options)
    assert (found["attention_tp"], found["local_heads"], found["padded_heads"]) == expected


# Kills: another padding rule or row limit than the layer runs with.
@pytest.mark.parametrize("heads", [(8, 1), (8, 2), (64, 1), (64, 2), (64, 8), (128, 1), (128, 2), (128, 16)])
def test_padding_and_row_limit_are_those_of_the_layer(heads: tuple[int, int]) -> None:
    from dsv4_conformance.mla import attend
    from dsv4_conformance.mla import heads as layer_heads

    count, tp = heads
    assert kernels_of("cpu").padded_heads(count, count // tp) == layer_heads.padded_heads(count, tp)
    assert attend.MAX_PAGED_ROWS == MAX_PAGED_ROWS
    # What spec §12 derives it from: the next row needs more than 228 KiB.
    assert 4 * (5 * MAX_PAGED_ROWS + 1) <= 228 * 1024 < 4 * (5 * (MAX_PAGED_ROWS + 1) + 1)


# Kills: more heads than any kernel has, handed on.
def test_a_rank_with_more_heads_than_any_kernel_is_a_problem() -> None:
    wide = replace(PRO, num_attention_heads=256, o_groups=32)
    (problem,) = problems(wide)
    assert "256 query heads" in problem and "takes at most 128; raise tp" in problem


# Kills: on by default lost, an opt-out not seen, upper case not read, cp not looked at, a warning left out or doubled.
@pytest.mark.parametrize(
    ("word", "options", "on", "warnings"),
    [
        (None, {}, True, 0),
        ("1", {}, True, 0),
        ("NO", {}, False, 0),
        (" false ", {}, False, 0),
        (None, {"tp": 2, "cp": 2}, False, 1),
        ("true", {"tp": 2, "cp": 2}, False, 1),
        ("n", {"tp": 2, "cp": 2}, False, 0),
        (None, {"device": "cpu"}, True, 0),
        ("yes", {"device": "sm120"}, False, 1),
        (None, {"device": "hip"}, False, 1),
        ("y", {"device": "sm120", "tp": 2, "cp": 2}, False, 1),
    ],
)
def test_sparse_prefill(word: str | None, options: dict[str, Any], on: bool, warnings: int) -> None:
    environment = {} if word is None else {"DSV4_SPARSE_PREFILL": word}
    found = examine(FLASH, Deployment(**options), environment)
    assert not found.problems
    assert found.values["sparse_prefill"] is on and found.values["sparse_prefill_reason"]
    assert len(found.warnings) == warnings
    known = "is not followed" if word in ("true", "yes", "y") else "counts as off"
    assert all(warning.startswith(f"DSV4_SPARSE_PREFILL {known}: ") for warning in found.warnings)
    assert (found.values["workspace_bytes"] > 0) is on
    assert ("sparse" in found.values["prefill_kernel"]) is on


# Kills: any word taken for true or false.
@pytest.mark.parametrize("word", ["maybe", "on", "off", "2", "truee"])
def test_other_words_are_bad_input(word: str) -> None:
    with pytest.raises(BadInput, match=r"^DSV4_SPARSE_PREFILL is .*; write one of true, 1, yes, y or false, 0, no, n"):
        switch({"DSV4_SPARSE_PREFILL": word})


# Kills: an empty variable, which shells and compose files leave behind, taken for a word.
def test_an_empty_word_says_nothing() -> None:
    assert switch({"DSV4_SPARSE_PREFILL": " "}) == "unset"


# Kills: no log, two logs, a log of every problem, settings instead of an exception.
def test_resolve_logs_each_warning_once_and_raises_the_first_problem(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = resolve(flash(), Deployment(tp=8, cp=2), {"DSV4_SPARSE_PREFILL": "true"})
        assert [record.message for record in caplog.records] == list(found.warnings) and len(found.warnings) == 1
        with pytest.raises(BadInput, match=r"^page_size is 64; "):
            resolve(flash(), Deployment(tp=3, cp=3, page_size=64), {})
    assert len(caplog.records) == 1


# Kills: constants of the code in place of the config's, YaRN in C0 layers, the draft layer's entry.
def test_layers_are_the_configs() -> None:
    config = flash() | {"rope_theta": 30000, "compress_rope_theta": 70000, "index_topk": 1024}
    found = resolve(config, Deployment(), {}).values
    assert found["compress_ratios"][:5] == (0, 0, 4, 128, 4) and found["compress_ratios"][-2:] == (4, 0)
    assert found["rope_bases"][:3] == (30000.0, 30000.0, 70000.0) and found["rope_bases"][-1] == 30000.0
    assert found["yarn"][:3] == (False, False, True) and found["yarn"][-2:] == (True, False)
    assert (found["index_topk"], found["draft_layers"]) == (1024, 1)


# Kills: page bytes unrounded, layers miscounted, drafts left out, a window that grows, pages rounded down.
def test_cache_bytes_of_flash() -> None:
    found = settings(context=1000, tp=8)
    assert found["page_bytes"] == {"window": 149760, "c4": 37440, "c128": 1728, "index": 8448}
    assert found["cache_bytes_per_request"] == {
        "window": 44 * 2 * 149760,
        "c4": 21 * 4 * 37440,
        "c128": 20 * 4 * 1728,
        "index": 21 * 4 * 8448,
    }
    assert found["layer_bytes_per_token"] == {"window": 585.0, "c4": 146.25, "c128": 6.75, "index": 33.0}
    assert settings(context=2**20)["cache_bytes_per_request"]["window"] == 44 * 2 * 149760
    assert settings(context=100)["cache_bytes_per_request"]["window"] == 44 * 149760


# Kills: a bound below what aligned pages of 256 need for the positions that are still read.
@pytest.mark.parametrize("new", [1, 2, 128, 129, 130, 257, 8192])
def test_window_pages_cover_every_position_that_is_read(new: int) -> None:
    for tokens in {new, new + 1, new + 126, new + 127, new + 128, *range(9000, 9257)}:
        if tokens >= new:
            first = max(tokens - new - 127, 0)
            assert memory.window_pages(tokens, new) >= (tokens - 1) // 256 - first // 256 + 1


# Kills: a page more than that at every length.
def test_window_pages_are_needed_somewhere() -> None:
    for new in (1, 129, 130, 8192):
        needed = max((t - 1) // 256 - (t - new - 127) // 256 + 1 for t in range(9000, 9257))
        assert memory.window_pages(9100, new) - needed <= 1
    assert memory.window_pages(9100, 1) == 2


# Kills: one half of the channels at ratio 4, the index compressor left out, state that is not doubled for drafts.
def test_state_bytes() -> None:
    one = replace(FLASH, num_hidden_layers=1, compress_ratios=(4,))
    assert memory.state_bytes(one, False) == 8 * (2 * 2 * 512 + 2 * 2 * 128) * 4
    assert memory.state_bytes(replace(one, compress_ratios=(128,)), False) == 128 * 2 * 512 * 4
    assert memory.state_bytes(one, True) == 2 * memory.state_bytes(one, False)
    assert settings(speculative_tokens=3)["state_bytes_per_request"] == memory.state_bytes(FLASH, True)
    assert settings()["state_bytes_per_request"] == memory.state_bytes(FLASH, False)


# Kills: rows of other requests, S / r rounded up, the window's 127, capacity in place of live lengths.
def test_workspace_rows() -> None:
    assert memory.workspace_rows(4, [259, 3], [1, 3]) == 64 + 0 + 128 + 3
    assert memory.workspace_rows(128, [259, 127], [200, 1]) == 2 + 0 + 259 + 127
    assert memory.workspace_rows(0, [8192], [100]) == 227
    assert memory.capacity_rows(4, 2**20, [8192], [100]) == 262144 + 227
    assert memory.largest_step(1000, 3) == ([1000] * 3, [1000] * 3)
    assert memory.largest_step(2**20, 3) == ([2**20] * 3, [2731, 2731, 2730])
    assert settings(context=1001)["index_score_bytes_per_row"] == 250 * 4
    assert settings(context=8192)["workspace_bytes"] == (2048 + 8192) * 1024
    assert settings(context=8192, max_requests=2)["workspace_bytes"] == (2 * 2048 + 2 * (4096 + 127)) * 1024


# Kills: a check left out, its words, and problems hidden behind the first one.
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 0}, "tp is 0; use a positive number."),
        ({"max_requests": -1}, "max_requests is -1; use a positive number."),
        ({"context": -5}, "context is -5; use 0 or more."),
        ({"page_size": 128}, "page_size is 128; "),
        ({"page_size": 0}, "page_size is 0; "),
        ({"tp": 8, "dp": 3}, "dp is 3 and does not divide tp 8; "),
        ({"tp": 8, "dp": 2, "cp": 3}, "dp * cp is 6 and does not divide tp 8; "),
        ({"tp": 3}, "attention-TP is 3 (tp 3) and does not divide o_groups 8 of flash; make it one of 1, 2, 4, 8."),
        ({"tp": 16}, "attention-TP is 16 (tp 16) and does not divide o_groups 8"),
        ({"context": 2**20 + 1}, "context is 1048577 and max_position_embeddings of flash is 1048576; "),
        ({"device": "sm80"}, "device 'sm80' is unknown; use one of sm90, sm100, sm120, hip, cpu."),
        ({"tp": 2, "cp": 2, "speculative_tokens": 1}, "speculative_tokens is 1 with cp 2; "),
        ({"speculative_tokens": 9}, "speculative_tokens is 9; "),
    ],
)
def test_one_sentence_per_problem(options: dict[str, Any], said: str) -> None:
    (problem,) = problems(**options)
    assert problem.startswith(said) and problem.endswith(".") and "\n" not in problem


# Kills: a constant of the model that no kernel serves, taken.
@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"index_topk": 256}, {}, "index_topk is 256; top-k kernels on GPUs are built for 512 and 1024"),
        ({"index_topk": 100}, {"device": "cpu"}, "index_topk is 100; index lists are a multiple of 64 wide"),
        ({"sliding_window": 64}, {}, "sliding_window is 64; "),
    ],
)
def test_constants_that_are_not_served(change: dict[str, Any], options: dict[str, Any], said: str) -> None:
    (problem,) = problems(replace(FLASH, **change), **options)
    assert problem.startswith(said)
    assert not problems(replace(TINY), device="cpu")


# Kills: problems hidden behind the first one, repeated ones, settings that are computed from nonsense.
def test_all_problems_are_listed() -> None:
    options = {"tp": 3, "dp": 2, "page_size": 64, "context": 2**21, "device": "x"}
    found = examine(FLASH, Deployment(**options), {"DSV4_SPARSE_PREFILL": "maybe"})  # type: ignore[arg-type]
    words = ("device", "page_size", "context", "dp is 2", "maybe")
    assert len(found.problems) == 5 and all(any(word in p for p in found.problems) for word in words)
    assert "local_heads" not in found.values and "sparse_prefill" not in found.values
    found = examine(FLASH, Deployment(cp=0), {"DSV4_SPARSE_PREFILL": "maybe"})
    assert len(found.problems) == 2 and "cache_bytes_per_request" not in found.values


# Kills: a refusal of the head dim that hides the other constants, another dim taken.
def test_head_dims_are_listed_together() -> None:
    geometry, found = read_config(flash() | {"head_dim": 576, "index_head_dim": 64}, "mine")
    assert geometry.head_dim == 512 and [text.split(" is ")[0] for text in found] == ["head_dim", "index_head_dim"]
    with pytest.raises(BadInput, match=r"^head_dim is 576; "):
        resolve(flash() | {"head_dim": 576}, Deployment(tp=3), {})
    with pytest.raises(BadInput, match=r"^head_dim is missing"):
        read_config({k: v for k, v in flash().items() if k != "head_dim"})
    with pytest.raises(BadInput, match=r"^compress_rope_theta is missing"):
        resolve({k: v for k, v in flash().items() if k != "compress_rope_theta"}, Deployment(), {})


# Kills: an import of torch, which would make doctor and collection slow.
def test_no_torch() -> None:
    program = "import sys, dsv4_conformance.mla.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Kills: a device whose kernels have no name or take no head count.
@pytest.mark.parametrize("device", list(DEVICES))
def test_every_device_serves_the_released_models(device: str) -> None:
    for geometry in (FLASH, PRO):
        for tp in geometry.tp_sizes:
            found = settings(geometry, tp=tp, device=device)
            assert found["decode_kernel"] and found["padded_heads"] >= found["local_heads"]
