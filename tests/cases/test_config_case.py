"""Cases of EngineConfig: spellings say the same, changes and faults reach the config, families hold what they must."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from dsv4_conformance.cases.config_case import (
    CHANGES,
    FAULTS,
    ConfigCase,
    Spelling,
    config_of,
    environment_of,
    geometry_of,
    options_of,
    spelled,
)
from dsv4_conformance.cases.config_families import CONFIG_FAMILIES
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import FLASH, GEOMETRIES, Geometry
from tests.spec import configs

CASES = {name: list(make("EngineConfig", "laptop", 0)) for name, make in CONFIG_FAMILIES.items()}


# Kills: a spelling that no release or library writes. The configs compared with were written down apart.
@pytest.mark.parametrize(
    ("spelling", "published"),
    [
        ("release", configs.flash),
        ("transformers", configs.transformers_flash),
        ("early", configs.early_transformers_flash),
    ],
)
def test_spellings_are_the_published_ones(spelling: Spelling, published: Callable[[], dict[str, Any]]) -> None:
    ours, theirs = spelled(FLASH, spelling), published()
    same = [name for name in theirs if not name.startswith(("rope_", "compress_rope_"))]
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert Geometry.from_config(ours) == Geometry.from_config(theirs)


# Kills: a change that one spelling loses. layer_types has main layers only.
@pytest.mark.parametrize("spelling", get_args(Spelling))
@pytest.mark.parametrize("change", CHANGES)
def test_every_spelling_says_what_the_geometry_says(spelling: Spelling, change: str) -> None:
    for model in GEOMETRIES:
        case = ConfigCase("EngineConfig", model, spelling, change)
        read, meant = Geometry.from_config(config_of(case)), geometry_of(case)
        assert read.compress_ratios[: read.num_hidden_layers] == meant.layer_ratios
        if spelling != "transformers":
            assert read == meant
        assert (read.rope_theta, read.compress_rope_theta) == (meant.rope_theta, meant.compress_rope_theta)
        assert (read.rope_scaling, read.index_topk) == (meant.rope_scaling, meant.index_topk)
        assert (meant != GEOMETRIES[model]) == (change != "")


# Kills: ones in place of zeros left out: engines that read 1 as a ratio pass then.
def test_ones_stand_for_uncompressed_layers() -> None:
    written = config_of(ConfigCase("EngineConfig", "flash", "ones"))["compress_ratios"]
    assert (written[:3], written[-1]) == ([1, 1, 4], 1)


# Kills: a fault that is none, so that a sound engine fails; faults that share the config of the next case.
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_makes_a_difference(name: str) -> None:
    sound = ConfigCase("EngineConfig", "pro", context=65536)
    faulty = sound.with_(fault=name)
    assert (config_of(faulty), options_of(faulty)) != (config_of(sound), options_of(sound))
    assert config_of(sound) == spelled(geometry_of(sound), "release")
    if FAULTS[name].config:
        with pytest.raises(BadInput):
            Geometry.from_config(config_of(faulty))


# Kills: a switch that is set to a word when it should be unset.
def test_environment() -> None:
    assert environment_of(ConfigCase("EngineConfig")) == {}
    assert environment_of(ConfigCase("EngineConfig", switch="0")) == {"DSV4_SPARSE_PREFILL": "0"}


# Kills: a profile whose count cuts a family short.
@pytest.mark.parametrize("name", CONFIG_FAMILIES)
def test_profiles_run_whole_families(name: str) -> None:
    cases = CASES[name]
    assert len({case.digest() for case in cases}) == len(cases) > 7
    for profile in ("default", "kill", "pre-merge", "release"):
        assert get_profile(profile).cases_for("INV-110", name) >= len(cases), profile


# Kills: combinations that public bugs needed, taken out.
def test_families_hold_the_telling_cases() -> None:
    shares = {(c.tp, c.dp, c.cp) for c in CASES["config_ranks"]}
    assert {(8, 8, 1), (8, 2, 1), (8, 1, 8), (1, 1, 1)} <= shares
    assert {c.device for c in CASES["config_ranks"]} == {"sm90", "sm100", "sm120", "hip", "cpu"}
    assert {c.switch for c in CASES["config_switches"]} >= {None, "0", "n", "no", "false", "1", "NO", "False"}
    forced = {c.switch for c in CASES["config_context_parallel"] if c.cp > 1}
    assert len(CASES["config_context_parallel"]) == 8 and forced >= {None, "1", "true", "0"}
    assert {c.context for c in CASES["config_sizes"]} >= {255, 256, 257, 1048576, 0}
    assert {c.fault for c in CASES["config_faults"]} == set(FAULTS)
    assert {c.spelling for c in CASES["config_models"]} == set(get_args(Spelling))
