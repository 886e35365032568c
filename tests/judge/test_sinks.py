"""Wrong sinks are recognised from the outputs: which head's, which slice, which scale."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dsv4_conformance.judge.dump import load
from dsv4_conformance.judge.explaining import explain
from dsv4_conformance.judge.judging import judge
from dsv4_conformance.judge.sinks import SinkStory, slices
from dsv4_conformance.oracle.attention import attention
from tests.judge.dumps import Tensors, changed, decode_call, write

ROW = 1


def story(tmp_path: Path, tensors: Tensors) -> SinkStory:
    dump = load(write(tmp_path, tensors))
    found = judge(dump, rows=torch.tensor([ROW]))
    assert not found.right
    told = explain(dump, ROW, found.heads).sink
    assert told is not None
    return told


def with_sink(change: Callable[[Tensor], Tensor | None]) -> Tensors:
    """A dump made with other sinks than it holds."""

    def made(sink: Tensor | None) -> Tensor | None:
        assert sink is not None
        return change(sink)

    return changed(decode_call(), lambda problem: attention(replace(problem, sink=made(problem.sink))))


SCALE = 512**-0.5
SUPPOSED: dict[str, tuple[Callable[[Tensor], Tensor | None], str]] = {
    "none": (lambda sink: None, "no sink at all"),
    "zero": (torch.zeros_like, "a sink of 0 in every head"),
    "scaled": (lambda sink: sink * SCALE, "the sinks times the softmax scale"),
    "base 2": (lambda sink: sink * math.log(2), "the sinks times ln 2"),
    "negative": (lambda sink: -sink, "the sinks with the other sign"),
    "next head": (lambda sink: sink.roll(-1), "another slice of the sinks: head h used the sink of head (h + 1) mod 8"),
    "half": (lambda sink: sink.roll(4), "another slice of the sinks: head h used the sink of head (h + 4) mod 8"),
}


@pytest.mark.parametrize("name", SUPPOSED)
def test_wrong_sinks_are_recognised(name: str, tmp_path: Path) -> None:
    change, words = SUPPOSED[name]
    told = story(tmp_path, with_sink(change))
    assert told.explains
    assert told.match == words
    assert told.everywhere


def test_implied_sinks_are_those_used(tmp_path: Path) -> None:
    used = torch.tensor([3.0, 2.5, 1.5, 2.0, 2.75, 0.5, 4.0, 1.0])
    told = story(tmp_path, with_sink(lambda sink: used))
    assert told.match is None
    assert [entry.head for entry in told.heads] == list(range(8))
    for entry in told.heads:
        assert entry.implied == pytest.approx(float(used[entry.head]), abs=0.05)
        assert entry.low <= float(used[entry.head]) <= entry.high


def test_slice_of_another_rank_is_recognised(tmp_path: Path) -> None:
    """The dump is rank 2 of 4; its kernel used rank 0's slice, which the dump knows from the model's sinks."""
    own = decode_call().sink
    assert own is not None
    model = torch.cat([own + shift for shift in (-1.0, -0.5, 0.0, 0.5)])
    told = story(tmp_path, with_sink(lambda sink: sink - 1) | {"all_sinks": model})
    assert told.match == "all_sinks[0:8], rank 0's slice"
    assert told.everywhere


def test_whole_ranks_come_first() -> None:
    words = [words for words, _ in slices(torch.arange(24.0), 8)]
    assert words[:4] == [
        "all_sinks[0:8], rank 0's slice", "all_sinks[8:16], rank 1's slice", "all_sinks[16:24], rank 2's slice",
        "all_sinks[1:9]",
    ]  # fmt: skip
    assert len(words) == 17


def test_sinks_in_another_order_are_recognised(tmp_path: Path) -> None:
    order = torch.tensor([2, 1, 0, 5, 6, 3, 4, 7])
    told = story(tmp_path, with_sink(lambda sink: sink[order]))
    assert told.match is not None
    assert told.match.endswith("heads 0, 2, 3, 4, 5, 6 used those of heads 2, 0, 5, 6, 3, 4")


def test_half_of_the_heads_is_told_apart(tmp_path: Path) -> None:
    told = story(tmp_path, with_sink(lambda sink: torch.cat((sink[:4], torch.full((4,), -torch.inf)))))
    assert [entry.head for entry in told.heads] == [4, 5, 6, 7]
    assert told.match == "no sink at all"
    assert not told.everywhere


def test_missing_sink_of_the_dump_is_implied(tmp_path: Path) -> None:
    tensors = with_sink(lambda sink: sink)
    sink = tensors.pop("sink")
    told = story(tmp_path, tensors)
    assert told.match is None
    assert [entry.given for entry in told.heads] == [-torch.inf] * 8
    assert torch.tensor([entry.implied for entry in told.heads]) == pytest.approx(sink, abs=0.05)


def test_one_head_names_no_slice(tmp_path: Path) -> None:
    """One head's sink fits another head's by chance too easily to be called a slice."""
    told = story(tmp_path, with_sink(lambda sink: torch.cat((sink[:3], sink[4:5], sink[4:]))))
    assert [entry.head for entry in told.heads] == [3]
    assert told.match is None


def test_dropped_key_is_no_matter_of_sinks(tmp_path: Path) -> None:
    call = decode_call()
    other = call.window.indices.clone()
    other[:, :, 0] = -1
    tensors = changed(replace(call, window=replace(call.window, indices=other)), attention)
    tensors["window_indices"] = call.window.indices.contiguous()
    dump = load(write(tmp_path, tensors))
    assert explain(dump, ROW, torch.arange(8)).sink is None
