"""The two calls that share a plan: no list is read beyond its own end."""

from itertools import islice

import pytest
import torch

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.families import family
from dsv4_conformance.implementations.api import DecodeCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.subject import Subject
from tests.suites.runs import functions

CALLS = next(f for f in functions() if f.name == "test_a_plan_of_other_shapes_is_refused").function.__globals__[
    "_calls"
]
# Drawn by a soak on a GPU: the second call's lists were shorter than the first one's lengths, and the kernel read what
# stood beyond, 2**31 - 1.
SHORT = AttentionCase(
    "DecodePlan",
    1,
    1,
    64,
    ScopeShape(512, 64, 2),
    ScopeShape(512, 512),
    poison="none",
    sink="zero",
    seed=604343723384806,
)


def listed(call: DecodeCall) -> list[int]:
    """Every index that a kernel reads under the call's lengths, relative to its pool."""
    found = []
    for scope in (call.window, call.extra):
        if scope is None:
            continue
        rows = scope.indices.flatten(0, -2)
        width = torch.arange(rows.shape[1])
        lengths = scope.topk_length
        each = rows.shape[0] // (1 if lengths is None else len(lengths))
        bound = rows.shape[1] if lengths is None else lengths.repeat_interleave(each)[:, None]
        slots = scope.pages.shape[0] * scope.pages.shape[1]
        found += (rows[width < bound] - slots).tolist() if lengths is not None else (rows.flatten() - slots).tolist()
    return found


@pytest.mark.parametrize("size", ["laptop", "gpu"])
def test_no_list_is_read_beyond_its_own_end(size: str) -> None:
    subject = Subject(Builtin("cpu"), torch.device("cpu"), "INV-90")
    cases = [SHORT, *islice(family("plans", "DecodePlan", size, 5), 12 if size == "laptop" else 3)]  # type: ignore[arg-type]
    others = 0
    for case in cases:
        assert isinstance(case, AttentionCase)
        first, second = CALLS(subject, case)
        assert max(listed(first)) < 0 and max(listed(second)) < 0, case.label()
        others += not torch.equal(first.window.indices, second.window.indices)
    assert others  # where they reach, lists do differ
