"""The built-in adapter: what it declares, and that each surface reaches its kernel. The kernels: tests/mla."""

from typing import cast

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import SURFACE_METHODS, DecodeCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.state_api import Segment


def test_it_offers_every_surface() -> None:
    assert check_declarations("builtin", Builtin) is Builtin
    assert set(Builtin.surfaces) == set(SURFACE_METHODS)


def test_pages_and_index_keys_survive_the_round_trip() -> None:
    builtin = Builtin("cpu")
    pages = torch.zeros(2, 1728, dtype=torch.uint8)[:, :1168].view(2, 2, 1, 584)
    tokens = torch.arange(1, 513).repeat(2, 1).bfloat16() / 256
    builtin.pack(tokens, torch.tensor([3, 0]), pages)
    assert torch.allclose(builtin.unpack(pages, torch.tensor([3, 0])).float(), tokens.float(), rtol=1 / 16, atol=0)
    assert not builtin.unpack(pages, torch.tensor([1])).any()
    index_pages = torch.zeros(2, 8448, dtype=torch.uint8)
    keys = torch.arange(1, 129).float()[None] / 64
    builtin.pack_index_keys(keys, torch.tensor([65]), index_pages)
    assert torch.allclose(builtin.unpack_index_keys(index_pages, torch.tensor([65])), keys, rtol=1 / 16, atol=0)
    assert not index_pages[0].any()


def test_slots_and_heads_reach_their_functions() -> None:
    builtin = Builtin("cpu")
    assert builtin.compressed_slots(torch.tensor([[3, 8]]), torch.tensor([[2]]), 128).tolist() == [[16]]
    assert (builtin.padded_heads(128, 2), builtin.padded_heads(128, 1)) == (64, 128)
    assert builtin.pad_query(torch.zeros(1, 8, 512), 64).shape == (1, 64, 512)


# Kills: one cache for all ranks, a sink rebuilt per call, a refresh that does nothing.
def test_local_sink_keeps_one_storage_per_rank_and_changes_on_refresh() -> None:
    builtin = Builtin("cpu")
    parameter = torch.randn(64)
    sinks = [builtin.local_sink(parameter, rank, 2) for rank in range(2)]
    parameter += 1
    for rank, sink in enumerate(sinks):
        own = slice(32 * rank, 32 * rank + 32)
        builtin.refresh_sink(parameter, rank, 2)
        again = builtin.local_sink(parameter, rank, 2)
        assert again.data_ptr() == sink.data_ptr()
        assert torch.equal(sink[:32], parameter[own])


# Kills: a slice of the first parameter served for the second.
def test_another_parameter_is_copied_into_the_same_storage() -> None:
    builtin = Builtin("cpu")
    first, second = torch.zeros(64), torch.ones(64)
    address = builtin.local_sink(first, 0, 2).data_ptr()
    sink = builtin.local_sink(second, 0, 2)
    assert sink.data_ptr() == address
    assert (sink[:32] == 1).all()
    assert builtin.local_sink(torch.full((128,), 2.0), 0, 4)[:32].tolist() == [2.0] * 32


def test_without_tensor_parallelism_each_parameter_serves_itself() -> None:
    builtin = Builtin("cpu")
    first, second = torch.zeros(64), torch.ones(64)
    assert builtin.local_sink(first, 0, 1) is first
    assert builtin.local_sink(second, 0, 1) is second


# Kills: a switch that the layer does not read, one that overrides an explicit path, and a default of off.
def test_the_environment_switches_sparse_prefill_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    case = LayerCase("AttentionLayer", 0, "p0:3")
    spec = spec_of(case, "cpu")
    x = Segment(0, torch.ones(3, 256))
    paths = {}
    for word in ("", "0", "1"):
        monkeypatch.delenv("DSV4_SPARSE_PREFILL", raising=False)
        if word:
            monkeypatch.setenv("DSV4_SPARSE_PREFILL", word)
        layer = Builtin("cpu").open_layer(spec)
        paths[word] = (layer.step([x]).path, layer.step([x], path="sparse").path)
    assert paths == {"": ("sparse", "sparse"), "0": ("paged", "sparse"), "1": ("sparse", "sparse")}
    monkeypatch.setenv("DSV4_SPARSE_PREFILL", "perhaps")
    with pytest.raises(BadInput, match="DSV4_SPARSE_PREFILL is 'perhaps'"):
        Builtin("cpu").open_layer(spec)


# Kills: a plan that is bound to nothing, and one that is bound to contents.
def test_a_plan_is_bound_to_the_shapes_of_its_first_call() -> None:
    builtin = Builtin("cpu")
    case = AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(70, 64, 64))
    calls = build(case, "cpu"), build(case.with_(seed=1), "cpu"), build(case.with_(h_q=16), "cpu")
    assert all(isinstance(call, DecodeCall) for call in calls)
    call, other, wider = cast("tuple[DecodeCall, ...]", calls)
    plan = builtin.new_plan()
    first = builtin.decode_planned(call, plan)
    assert torch.equal(builtin.decode_planned(other, plan).out, builtin.decode(other).out)
    assert torch.equal(builtin.decode_planned(call, plan).out, first.out)
    with pytest.raises(BadInput, match="make a new plan"):
        builtin.decode_planned(wider, plan)
