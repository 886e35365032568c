"""Descriptions of inputs: canonical text and digests that later fields do not change, and frozen values."""

import hashlib
from dataclasses import FrozenInstanceError, dataclass, fields, make_dataclass

import pytest

from dsv4_conformance.cases import case as module
from dsv4_conformance.cases.case import AttentionCase, FormatCase, HeadCase, PaddedCase, RankCase, ScopeShape

PLAIN = AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(128, 128))
TEXT = '{"b":2,"h_q":8,"kind":"AttentionCase","s_q":1,"surface":"SparseDecode","window":{"slots":128,"topk":128}}'


# Kills: defaults written out, at the top or in nested parts, unsorted keys, spaces, the class left out.
def test_canonical_text_names_what_differs_from_the_defaults() -> None:
    assert PLAIN.canonical() == TEXT
    other = PLAIN.with_(sink="zero", extra=ScopeShape(9, 64, 2, "none"))
    assert '"sink":"zero"' in other.canonical()
    assert '"extra":{"lengths":"none","page_size":2,"slots":9,"topk":64}' in other.canonical()
    assert FormatCase("KVPageFormat", 5, 64).canonical() == (
        '{"kind":"FormatCase","page_size":64,"surface":"KVPageFormat","tokens":5}'
    )
    heads = HeadCase("HeadLayout", 64, 4, 3)
    inner = TEXT.replace('"kind":"AttentionCase",', "")
    assert RankCase("SparseDecode", PLAIN, heads).canonical() == (
        f'{{"attention":{inner},"heads":{{"n_heads":64,"rank":3,"surface":"HeadLayout","tp":4}},'
        '"kind":"RankCase","surface":"SparseDecode"}'
    )


# Kills: Python's own hash, a digest of repr, one of another length or byte order.
def test_digest_is_the_start_of_sha256_of_the_text() -> None:
    raw = hashlib.sha256(TEXT.encode()).hexdigest()
    assert PLAIN.digest() == int("".join(raw[i : i + 2] for i in range(14, -2, -2)), 16)


# Kills: published cases that change their id when a field is added to a case or to a part of one.
def test_a_new_field_with_a_default_renames_no_case() -> None:
    before = [PLAIN.canonical(), RankCase("SparseDecode", PLAIN, HeadCase("HeadLayout", 64, 4, 3)).canonical()]

    def grown(cls: type) -> type:
        return make_dataclass(cls.__name__, [("later", int, 7)], bases=(cls,), frozen=True)

    scope, attention, heads = grown(ScopeShape), grown(AttentionCase), grown(HeadCase)
    plain = attention("SparseDecode", 2, 1, 8, scope(128, 128))
    after = [plain.canonical(), RankCase("SparseDecode", plain, heads("HeadLayout", 64, 4, 3)).canonical()]
    assert after == before
    assert plain.with_(later=8).canonical() != before[0]


# Kills: a case whose digest ignores a field.
def test_every_field_changes_the_digest() -> None:
    others = {
        "surface": "SparsePrefill", "b": 3, "s_q": 2, "h_q": 16, "window": ScopeShape(128, 128, 2),
        "extra": ScopeShape(1, 1), "data": "edge", "sink": "none", "holes": "none", "duplicates": True, "lonely": True,
        "poison": "inf", "strided": False, "scale_bits": 1, "seed": 1,
    }  # fmt: skip
    assert set(others) == {f.name for f in fields(AttentionCase)}
    digests = {PLAIN.with_(**{name: value}).digest() for name, value in others.items()}
    assert len(digests | {PLAIN.digest()}) == len(others) + 1


# Kills: cases that a test can change for the next one.
@pytest.mark.parametrize(
    "case",
    [
        PLAIN,
        PLAIN.window,
        FormatCase("KVPageFormat", 5, 64),
        HeadCase("HeadLayout", 64, 4, 3),
        RankCase("SparseDecode", PLAIN, HeadCase("HeadLayout", 64, 4, 3)),
        PaddedCase("SparseDecode", PLAIN, 64, "nan"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_cases_are_frozen_and_hashable(case: object) -> None:
    first = fields(case)[0].name  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(case, first, getattr(case, first))
    assert hash(case) == hash(case) and len({case, case}) == 1


# Kills: a class of cases that misses from this file's checks.
def test_all_case_classes_are_checked_here() -> None:
    described = {
        name for name, value in vars(module).items() if isinstance(value, type) and hasattr(value, "canonical")
    }
    assert described == {"_Described", "Case", "AttentionCase", "FormatCase", "HeadCase", "RankCase", "PaddedCase"}


# Kills: two cases of different kinds with one text.
def test_kind_is_part_of_the_text() -> None:
    @dataclass(frozen=True)
    class Other(FormatCase):
        pass

    assert Other("KVPageFormat", 5, 64).canonical() != FormatCase("KVPageFormat", 5, 64).canonical()
