"""Index rows read back through tags: what each row names, and the ways in which rows can break the promise."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsv4_conformance.cases.state_case import ChunkCase
from dsv4_conformance.cases.state_inputs import ChunkInputs, chunk_inputs
from dsv4_conformance.errors import ConformanceFailure, ContractViolation
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import ChunkCacheConvention
from dsv4_conformance.runner.gathered import Gathered, gathered, named, numbers, open_cache, wanted
from dsv4_conformance.runner.subject import Subject

CPU = torch.device("cpu")
CASE = ChunkCase("SparsePrefillChunkCache", (9, 5), (2, 5), topk=3, padded_rows=1)


def given() -> ChunkInputs:
    return chunk_inputs(CASE, CPU)


def layer(rows: list[list[int]], *lengths: int) -> Gathered:
    return Gathered([10, 12, 7], torch.tensor(rows), torch.tensor(lengths))


# Kills: tags in the order of the row, holes that count, a row that reads beyond its length.
def test_rows_are_read_within_their_length() -> None:
    assert named(layer([[2, -1, 0, -1], [1, -1, -1, -1]], 3, 1), 4) == [[7, 10], [12]]
    assert named(layer([[1, 1, -1, -1]], 2), 4) == [[12, 12]]


@pytest.mark.parametrize(
    ("rows", "length", "said"),
    [
        ([[0, 1]], 3, "length 3 of 2"),
        ([[0, 1]], -1, "length -1 of 2"),
        ([[0, 3]], 2, "names workspace row 3; 3 were gathered"),
        ([[0, -2]], 2, "names workspace row -2"),
        ([[0, 1]], 1, "something else than -1 in its tail"),
    ],
)
def test_rows_that_name_nothing_fail(rows: list[list[int]], length: int, said: str) -> None:
    with pytest.raises(ConformanceFailure, match=re.escape(said)):
        named(layer(rows, length), 4)


# Kills: expectations made from the selection of another row, the wrong pool, or the whole request.
def test_wanted_tags_of_a_small_batch() -> None:
    inputs = given()
    page, other, window = inputs.pages[0][0], inputs.pages[1][0], inputs.window_pages[1][0]
    assert wanted(inputs, 0)[2] == [2 * 256 * window + 1]
    c4 = wanted(inputs, 4)
    assert {tag for tag in c4[1] if tag % 2 == 0} == {2 * (64 * page + e) for e in (0, 1)}
    assert [[tag for tag in tags if tag % 2 == 0] for tags in c4[2:]] == [[]] * 3 + [[2 * 64 * other]] * 2
    assert len(wanted(inputs, 128)) == len(inputs.queries) == 7


@pytest.mark.parametrize(
    ("found", "count", "said"),
    [
        (None, None, "ids is no flat tensor of integers"),
        (torch.zeros(3), None, "ids is no flat tensor"),
        (torch.zeros(3, 1, dtype=torch.int64), None, "no flat tensor of integers"),
        (torch.zeros(3, dtype=torch.int64), 2, "ids has 3 elements; the surface promises 2"),
    ],
)
def test_numbers_must_be_flat_integers(found: Any, count: int | None, said: str) -> None:
    with pytest.raises(ContractViolation, match=said):
        numbers("ids", found, count)


# Kills: types, rows or a declared width that nobody looks at.
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows, lengths: (rows.long(), lengths), "combined rows of ratio 4 are not int32 with"),
        (lambda rows, lengths: (rows[1:], lengths), "combined rows of ratio 4 are not int32"),
        (lambda rows, lengths: (rows, lengths[:, None]), "combined lengths of ratio 4 are not int32"),
        (lambda rows, lengths: (rows[:, :-1], lengths), "index rows of ratio 4 are 255 wide, no multiple of 128"),
    ],
)
def test_rows_must_have_the_promised_form(change: Any, said: str) -> None:
    class Session:
        def combined(self, *arguments: Any) -> Any:
            return change(*right.combined(*arguments))

        def __getattr__(self, name: str) -> Any:
            return getattr(right, name)

    class Adapter(Builtin):
        def open_chunk_cache(self, batch: Any) -> Any:
            return Session()

    right = Builtin("cpu").open_chunk_cache(given().batch)
    subject = Subject(Adapter("cpu"), CPU, "INV-73")
    with pytest.raises(ContractViolation, match=said):
        gathered(subject, open_cache(subject, given()), given(), 4)
    declared = replace(ChunkCacheConvention(), index_multiple=5)
    other = type("Other", (Builtin,), {"surfaces": {**Builtin.surfaces, "SparsePrefillChunkCache": declared}})
    subject = Subject(other("cpu"), CPU, "INV-73")
    with pytest.raises(ContractViolation, match="256 wide, no multiple of 5"):
        gathered(subject, open_cache(subject, given()), given(), 4)
