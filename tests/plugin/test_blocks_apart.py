"""Torch's cache of CUDA memory is off under compute-sanitizer, and on while a graph is captured.

Fake graphs stand in for torch's; on an H200 the suites cuda_graph and workspace run under memcheck (docs/results).
"""

import os
from typing import Any

import pytest
import torch

from dsv4_conformance.plugin.blocks_apart import VARIABLE, excepting_captures, keep_apart


def graphs(said: list[Any], failing: str = "") -> type[Any]:
    """A class of graphs that tell what is called, and when the cache goes on and off."""

    class Graph:
        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            said.append(("begin", pool, capture_error_mode))
            if failing == "begin":
                raise RuntimeError("no capture")

        def capture_end(self) -> None:
            said.append("end")
            if failing == "end":
                raise RuntimeError("invalidated")

    excepting_captures(Graph, said.append)
    return Graph


def test_a_capture_has_the_cache_and_may_free_what_is_older() -> None:
    said: list[Any] = []
    graph = graphs(said)()
    graph.capture_begin(pool="pool", capture_error_mode="global")
    graph.capture_end()
    assert said == [True, ("begin", "pool", "relaxed"), "end", False]


@pytest.mark.parametrize("failing", ["begin", "end"])
def test_the_cache_is_off_after_a_capture_that_fails(failing: str) -> None:
    said: list[Any] = []
    graph = graphs(said, failing)()
    with pytest.raises(RuntimeError):
        graph.capture_begin()
        graph.capture_end()
    assert said[-1] is False


def test_a_class_is_changed_once() -> None:
    said: list[Any] = []
    kind = graphs(said)
    excepting_captures(kind, said.append)
    kind().capture_begin()
    assert said == [True, ("begin", None, "relaxed")]


@pytest.mark.parametrize(("value", "calls"), [(None, ["init", False]), ("1", []), ("0", [])])
def test_a_variable_of_the_user_decides(value: str | None, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: did.append("init"))
    monkeypatch.setattr(torch.cuda.memory, "caching_allocator_enable", did.append)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graphs([]))
    keep_apart()

    assert did == calls and (os.environ.get(VARIABLE) == "1") == (value == "1")
