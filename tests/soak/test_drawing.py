"""Which cases a soak draws."""

from collections import Counter
from pathlib import Path

import pytest

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cli.suite_functions import SuiteFunction
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import AttentionConvention, Convention, PlainConvention
from dsv4_conformance.soak.drawing import Deck, within
from dsv4_conformance.suite import TestSpec


def function(name: str, surfaces: tuple[str, ...], family: str, folder: str = "attention") -> SuiteFunction:
    def test() -> None:
        """Nothing."""

    test.__name__ = name
    return SuiteFunction(test, TestSpec("INV-01", surfaces, family), Path("suites") / folder / "test_it.py")


FUNCTIONS = (
    function("core", ("SparseDecode", "SparsePrefill"), "core"),
    function("rows", ("SparseDecode",), "rows"),
    function("heads", ("HeadLayout",), "heads"),
    function("slow", ("SparseDecode",), "core", "performance"),
    function("server", ("Endpoint",), "accuracy_tasks"),
)
OFFERED: dict[str, Convention] = {"SparseDecode": AttentionConvention(h_q=(64,)), "HeadLayout": PlainConvention()}


# Kills: draws that depend on what was drawn before, or not on the seed; surfaces that are not offered; timed tests.
def test_a_number_names_one_case_of_a_seed() -> None:
    one, other, fresh = (Deck(FUNCTIONS, OFFERED, "laptop", seed) for seed in (5, 5, 6))
    drawn = [one.draw(number) for number in range(60)]
    assert [other.draw(d.number).planned for d in reversed(drawn)] == [d.planned for d in reversed(drawn)]
    assert [fresh.draw(d.number).planned for d in drawn] != [d.planned for d in drawn]
    assert {d.kind.surface for d in drawn} == set(OFFERED)
    assert {d.kind.function.name for d in drawn} == {"core", "rows", "heads"}
    assert len({d.planned.case.canonical() for d in drawn if d.kind.surface == "SparseDecode"}) == len(
        [d for d in drawn if d.kind.surface == "SparseDecode"]
    )


# Kills: shares that are ignored; the oracle's comparison drawn like any other.
def test_surfaces_and_functions_have_their_shares() -> None:
    deck = Deck(FUNCTIONS, OFFERED, "laptop", 1)
    count = Counter(deck.draw(number).kind.function.name for number in range(400))
    assert count["heads"] / 400 == pytest.approx(6 / 46, abs=0.06)
    assert count["core"] / (count["core"] + count["rows"]) == pytest.approx(8 / 9, abs=0.06)


# Kills: cases outside the declaration, drawn although others lie within.
def test_head_counts_are_drawn_as_declared() -> None:
    deck = Deck(FUNCTIONS, OFFERED, "laptop", 2, ["SparseDecode"])
    cases = [deck.draw(number).planned.case for number in range(40)]
    assert all(isinstance(case, AttentionCase) and case.h_q == 64 for case in cases)
    assert not within(cases[0], AttentionConvention(page_sizes=(3,)))
    assert within(cases[0], AttentionConvention())


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(BadInput, match="does not offer Indexer"):
        Deck(FUNCTIONS, OFFERED, "laptop", 0, ["Indexer"])
    with pytest.raises(BadInput, match="nothing to soak"):
        Deck(FUNCTIONS, {"Planner": PlainConvention()}, "laptop", 0)
