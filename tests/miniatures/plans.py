"""Scheduler plans that are wrong in one place each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsv4_conformance.implementations.api import DecodeCall, DecodeResult
from tests.miniatures.base import Miniature


class PlanOfAnyShape(Miniature):
    """Runs under a plan that was made for other shapes."""

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        return self.decode(call)


class PlanKeepsTheLists(Miniature):
    """The plan holds the index lists of the call that it was made for."""

    def new_plan(self) -> Any:
        return [[], []]

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        shapes, lists = plan
        if not lists:
            lists.append(call.window.indices.clone())
        window = replace(call.window, indices=lists[0])
        return super().decode_planned(replace(call, window=window), shapes)


class PlanKeepsTheQueries(Miniature):
    """The plan holds the queries of the call that it was made for."""

    def new_plan(self) -> Any:
        return [[], []]

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        shapes, queries = plan
        if not queries:
            queries.append(call.q.clone())
        return super().decode_planned(replace(call, q=queries[0].clone()), shapes)


class PlanBoundToOneUse(Miniature):
    """Refuses a plan that was used before, even for the same shapes."""

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        if plan:
            raise AssertionError("this plan was used before")
        return super().decode_planned(call, plan)
