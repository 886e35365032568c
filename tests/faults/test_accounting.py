"""The accounting files are complete: every public bug is modelled, the same as another, or out of scope."""

import re

import pytest

from dsv4_conformance.faults.accounting import FILES, Entry, entries
from dsv4_conformance.faults.catalogue import AREAS, all_faults, chosen
from dsv4_conformance.faults.fault import registered
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.spec.requirements import load_registry

COUNTS = {"S": 55, "V": 43, "F": 12, "T": 9, "H": 5, "O": 45}
"""Public bugs per file."""
MOST_OUT = 0.3
URL = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(pull|issues)/\d+")
WORDS = 5


# Kills: an entry left out or listed twice.
def test_every_public_bug_is_accounted_for() -> None:
    assert {letter: sum(name[0] == letter for name in entries()) for letter in FILES} == COUNTS
    assert sum(COUNTS.values()) == len(entries()) == 169


# Kills: "modelled" without a model, models of what is said to be out of scope.
def test_modelled_means_that_there_is_a_model() -> None:
    models = {name[:3] for name in all_faults()}
    assert models == {name for name, entry in entries().items() if entry.status == "modelled"}


# Kills: chains of references, references to what has no model.
def test_the_same_as_names_a_model() -> None:
    for entry in entries().values():
        if entry.status == "same":
            assert entries()[entry.as_].status == "modelled", entry.id


def test_not_too_much_is_out_of_scope() -> None:
    left = [entry for entry in entries().values() if entry.status == "out"]
    assert len(left) <= MOST_OUT * len(entries())
    assert all(len(entry.why.split()) >= WORDS for entry in left), "a reason is a sentence"


def test_sources_titles_and_mechanisms_are_told() -> None:
    for entry in entries().values():
        assert all(URL.match(url) for url in entry.urls), entry.id
        assert len(entry.title.split()) >= WORDS and entry.title[-1] != ".", entry.id
    for fault in all_faults().values():
        assert len(fault.mechanism.split()) >= WORDS, fault.id


# Kills: a model that names no requirement, surfaces of another world, two models of one mechanism.
def test_models_name_requirements_and_are_all_different() -> None:
    registry = load_registry()
    for fault in all_faults().values():
        assert set(fault.surfaces) & set(registry.get(fault.breaks).surfaces), fault.id
        assert fault.implementation.identity.name == f"fault:{fault.id}"
    texts = [fault.mechanism for fault in all_faults().values()]
    assert len(set(texts)) == len(texts)
    classes = [fault.implementation for fault in all_faults().values()]
    assert len(set(classes)) == len(classes)
    assert {fault.area for fault in registered().values()} == set(AREAS)


def test_a_fault_is_an_implementation_by_name() -> None:
    assert load("fault:S01") is all_faults()["S01"].implementation is load("dsv4_conformance.faults:S01")
    assert [fault.id for fault in chosen(["S02"])] == ["S02", "S02b"]
    assert [fault.id for fault in chosen(["S02b"])] == ["S02b"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "out"}, "needs a reason"),
        ({"status": "same", "why": "as there"}, "names another entry"),
        ({"status": "modelled", "as": "S02"}, "names another entry"),
        ({"status": "modelled", "urls": []}, "urls"),
        ({"status": "open"}, "status"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(fields: dict[str, object], said: str) -> None:
    right = {"id": "S01", "title": "a title", "urls": ["https://github.com/a/b/pull/1"], "engines": ["A"]}
    with pytest.raises(ValueError, match=said):
        Entry.model_validate(right | fields)
