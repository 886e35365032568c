"""Case families: deterministic, distinct, and with the cases in them that the requirements need."""

from itertools import islice

import pytest

from dsv4_conformance.cases.case import AttentionCase, Case, FormatCase, HeadCase, PaddedCase, RankCase
from dsv4_conformance.cases.config_families import CONFIG_FAMILIES
from dsv4_conformance.cases.families import FAMILIES, family
from dsv4_conformance.cases.profiles import Size, load_profiles
from dsv4_conformance.errors import HarnessError

ATTENTION = ("SparseDecode", "SparsePrefill")
ONLY = {
    "heads": ("HeadLayout",),
    "kv_tokens": ("KVPageFormat", "IndexKeyFormat"),
    "two_scopes": ("SparseDecode",),
    **dict.fromkeys(CONFIG_FAMILIES, ("EngineConfig",)),
}
SIZES: tuple[Size, ...] = ("laptop", "gpu")


def surfaces(name: str) -> tuple[str, ...]:
    return ONLY.get(name, ATTENTION)


def take(name: str, surface: str, count: int, size: Size = "laptop", seed: int = 0) -> list[Case]:
    return list(islice(family(name, surface, size, seed), count))


def attention(name: str, surface: str, count: int, size: Size = "laptop") -> list[AttentionCase]:
    cases = [case for case in take(name, surface, count, size) if isinstance(case, AttentionCase)]
    assert len(cases) == count
    return cases


EVERY = [(name, surface, size) for name in FAMILIES for surface in surfaces(name) for size in SIZES]


# Kills: draws from a shared or global random state, a seed that is ignored, repeated cases, another surface's cases.
@pytest.mark.parametrize(("name", "surface", "size"), EVERY)
def test_streams_repeat_themselves_and_no_case(name: str, surface: str, size: Size) -> None:
    cases = take(name, surface, 60, size)
    assert cases == take(name, surface, 60, size)
    assert len({case.digest() for case in cases}) == len(cases)
    assert {case.surface for case in cases} == {surface}
    seeded = take(name, surface, 60, size, seed=1)
    assert {case.digest() for case in cases}.isdisjoint(case.digest() for case in seeded)


# Kills: a misspelt family that gives no cases.
def test_unknown_family_is_a_fault_of_the_suite() -> None:
    with pytest.raises(HarnessError, match="'coer'"):
        family("coer", "SparseDecode", "laptop", 0)


# Kills: a curated page size taken out, in either scope.
@pytest.mark.parametrize("size", SIZES)
def test_core_opens_with_every_page_size(size: Size) -> None:
    count = load_profiles()["default" if size == "laptop" else "pre-merge"].counts["core"]
    cases = attention("core", "SparseDecode", count, size)
    assert {case.window.page_size for case in cases} >= {2, 53, 61, 64, 69, 256}
    assert {case.extra.page_size for case in cases if case.extra} >= {2, 53, 61, 64, 69, 256}


# Kills: production shapes that a profile's count cuts off.
@pytest.mark.parametrize("size", SIZES)
def test_core_holds_the_production_shapes(size: Size) -> None:
    cases = attention("core", "SparseDecode", 24, size)
    scopes = {
        (c.h_q, c.window.topk, c.window.page_size, *((c.extra.topk, c.extra.page_size) if c.extra else ()))
        for c in cases
    }
    assert (64, 128, 256, 512, 64) in scopes  # Flash C4
    assert any(s[1:3] == (128, 256) and s[4:] == (2,) for s in scopes)  # C128
    assert any(s[1:] == (128, 256) for s in scopes)  # window only
    if size == "gpu":
        assert (128, 128, 256, 1024, 64) in scopes  # Pro C4


# Kills: a field that never varies.
@pytest.mark.parametrize("surface", ATTENTION)
def test_core_draws_vary_every_field(surface: str) -> None:
    cases = attention("core", surface, 150)
    for field, least in {
        "s_q": 3, "h_q": 6, "data": 4, "sink": 4, "holes": 3, "duplicates": 2, "lonely": 2, "poison": 3, "strided": 2,
        "scale_bits": 3, "seed": 100,
    }.items():  # fmt: skip
        assert len({getattr(case, field) for case in cases}) >= least, field
    assert {case.window.lengths for case in cases} >= {"mixed", "none"}


# Kills: single rows where two calls are related row by row, sinks that are absent, lonely rows.
@pytest.mark.parametrize("name", ["rows", "sinks", "clean_lists", "lengths", "poisoned", "lonely"])
@pytest.mark.parametrize("surface", ATTENTION)
def test_row_families_have_rows_and_special_sinks(name: str, surface: str) -> None:
    for case in attention(name, surface, 40):
        assert case.b * case.s_q > 1 and case.sink == "special"
        assert case.lonely == (name == "lonely")
        assert (case.b == 1) if surface == "SparsePrefill" else (case.b > 1 or case.s_q > 1)


# Kills: a family that lets its own condition slip.
@pytest.mark.parametrize("surface", ATTENTION)
def test_families_keep_their_promise(surface: str) -> None:
    assert min(case.h_q for case in attention("sinks", surface, 40)) >= 8
    for case in attention("clean_lists", surface, 40):
        assert case.holes == "none" and not case.duplicates
    for case in attention("lengths", surface, 40):
        assert case.window.lengths == "mixed" and (case.extra is None or case.extra.lengths == "mixed")
    assert {case.poison for case in attention("poisoned", surface, 4)} == {"nan", "inf"}
    assert {case.window.lengths for case in attention("lonely", surface, 4)} == {"mixed", "none"}
    assert {case.h_q for case in attention("head_counts", surface, 6)} == {1, 8, 16, 32, 64, 128}


# Kills: lonely decode cases whose extra scope still has keys in the last row.
def test_lonely_covers_both_scopes() -> None:
    cases = [case for case in attention("lonely", "SparseDecode", 40) if case.extra]
    assert len(cases) > 10
    assert all(case.extra and case.extra.lengths == case.window.lengths for case in cases)


# Kills: an endless search, or a scope that is missing.
def test_two_scopes_have_two_scopes() -> None:
    assert all(case.extra for case in attention("two_scopes", "SparseDecode", 40))


# Kills: middle ranks only, a tp left out, shares of one head count only, within what the default profile takes.
@pytest.mark.parametrize("surface", ATTENTION)
def test_ranks_cover_first_second_and_last_of_every_tp(surface: str) -> None:
    cases = take("ranks", surface, load_profiles()["default"].counts["ranks"])
    seen = {
        (case.heads.n_heads, case.heads.tp, case.heads.rank)
        for case in cases
        if isinstance(case, RankCase) and case.attention.h_q == case.heads.n_heads
    }
    wanted = {(n, tp, rank) for n in (64, 128) for tp in (1, 2, 4, 8, 16) for rank in {0, min(1, tp - 1), tp - 1}}
    assert seen == wanted


# Kills: layouts of the tiny model or of a tp left out, a tp that does not divide the heads.
def test_heads_cover_every_layout_within_every_profile_that_has_them() -> None:
    cases = [case for case in take("heads", "HeadLayout", 100) if isinstance(case, HeadCase)]
    layouts = [(n, tp) for n in (8, 64, 128) for tp in (1, 2, 4, 8, 16) if n % tp == 0]
    assert {(case.n_heads, case.tp) for case in cases} == set(layouts)
    for case in cases:
        assert set(range(case.tp)) == {c.rank for c in cases if (c.n_heads, c.tp) == (case.n_heads, case.tp)}
    for name, profile in load_profiles().items():
        assert name in ("smoke", "performance") or profile.cases_for("INV-53", "heads") >= len(cases), name


# Kills: padded widths below the real ones, a fill that never occurs in a small profile.
@pytest.mark.parametrize("surface", ATTENTION)
def test_padding_pads_1_to_127_heads_with_every_fill(surface: str) -> None:
    cases = [case for case in take("padding", surface, 32) if isinstance(case, PaddedCase)]
    assert {case.attention.h_q for case in cases} >= {1, 8, 16, 32, 64}
    assert {(case.attention.h_q, case.padded) for case in cases} >= {(8, 64), (8, 128), (64, 128)}
    assert all(case.attention.h_q < case.padded for case in cases)
    for fill in ("nan", "inf", "random", "zero"):
        assert len({case.attention.h_q for case in cases if case.fill == fill}) >= 4
    assert {case.fill for case in cases[:4]} == {"nan", "inf", "random", "zero"}


# Kills: a kind of data that meets few page sizes, one token only.
def test_kv_tokens_cross_data_with_page_sizes() -> None:
    cases = [case for case in take("kv_tokens", "KVPageFormat", 36) if isinstance(case, FormatCase)]
    pairs = {(case.data, case.page_size) for case in cases}
    assert len(pairs) == 36
    assert {case.page_size for case in cases} == {2, 53, 61, 64, 69, 256}
    assert 1 in {case.tokens for case in cases} and max(case.tokens for case in cases) > 256
    assert {case.data for case in cases[:12]} == {"normal", "tiny", "powers", "zeros", "huge", "wide"}
