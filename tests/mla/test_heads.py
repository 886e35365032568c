"""Head padding and the per-rank sink (spec §15)."""

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.heads import LocalSink, pad_query, padded_heads


# Kills: padding to all heads, padding without tensor parallelism, < instead of <= 64.
@pytest.mark.parametrize(
    ("n_heads", "tp", "padded"),
    [(64, 1, 64), (128, 1, 128), (8, 1, 8), (64, 2, 64), (64, 8, 64), (128, 2, 64), (128, 16, 64), (256, 2, 256)],
)
def test_padded_heads(n_heads: int, tp: int, padded: int) -> None:
    assert padded_heads(n_heads, tp) == padded


@pytest.mark.parametrize("tp", [0, 3, 128])
def test_a_size_that_does_not_divide_the_heads_is_refused(tp: int) -> None:
    with pytest.raises(BadInput, match=f"over {tp} ranks"):
        padded_heads(64, tp)


def test_real_heads_come_first_in_the_padded_query() -> None:
    q = torch.randn(3, 16, 512).bfloat16()
    wide = pad_query(q, 64)
    assert wide.shape == (3, 64, 512)
    assert torch.equal(wide[:, :16], q)
    assert pad_query(q, 16) is q
    with pytest.raises(BadInput, match="16 heads"):
        pad_query(q, 8)


# Kills: slices of the wrong rank or width, a tensor rebuilt on every call, a view of the parameter.
@pytest.mark.parametrize(("n_heads", "tp", "rank"), [(64, 2, 1), (128, 16, 15), (128, 2, 0)])
def test_sink_is_this_rank_s_slice_at_one_address(n_heads: int, tp: int, rank: int) -> None:
    parameter = torch.randn(n_heads)
    local = LocalSink(parameter, rank, tp)
    first = local.get()
    n = n_heads // tp
    assert first.shape == (64,)
    assert torch.equal(first[:n], parameter[rank * n : (rank + 1) * n])
    assert not first[n:].any()
    assert local.get().data_ptr() == first.data_ptr()


# Kills: built in the constructor, before the weights are there.
def test_sink_is_built_at_its_first_use() -> None:
    parameter = torch.zeros(64)
    local = LocalSink(parameter, 1, 2)
    local.refresh()
    parameter += 3
    assert (local.get()[:32] == 3).all()


# Kills: a cache that never goes stale because it is a view, a refresh that allocates, and one that does nothing.
def test_refresh_reads_the_parameter_again_in_place() -> None:
    parameter = torch.randn(64)
    local = LocalSink(parameter, 1, 2)
    cached = local.get()
    old = cached.clone()
    parameter += 1
    assert torch.equal(cached, old)
    local.refresh()
    assert torch.equal(cached[:32], parameter[32:])
    assert local.get().data_ptr() == cached.data_ptr()


# Kills: a sink built from weights that were not loaded yet, and never again.
def test_the_next_use_sees_a_parameter_that_was_written_since() -> None:
    parameter = torch.zeros(64)
    local = LocalSink(parameter, 1, 2)
    first = local.get()
    parameter.copy_(torch.randn(64))
    assert local.get() is first
    assert torch.equal(first[:32], parameter[32:])


# Kills: the rule of one kernel taken for that of every kernel.
def test_a_kernel_that_takes_other_head_counts_gets_its_own_padding() -> None:
    parameter = torch.randn(8)
    assert LocalSink(parameter, 1, 2, padded=4).get().equal(parameter[4:])
    alone = LocalSink(parameter, 0, 1, padded=64).get()
    assert alone.shape == (64,)
    assert alone[:8].equal(parameter)
    with pytest.raises(BadInput, match="do not fit into 2"):
        LocalSink(parameter, 1, 2, padded=2)


def test_without_tensor_parallelism_the_parameter_itself_serves() -> None:
    parameter = torch.randn(64)
    assert LocalSink(parameter, 0, 1).get() is parameter


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_does_not_exist_is_refused(rank: int) -> None:
    with pytest.raises(BadInput, match=f"rank {rank}"):
        LocalSink(torch.zeros(64), rank, 2)
