"""What runs inside a CUDA graph asks for no value on the host: checked on tensors that have none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.indexer import Indexer
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.pools import IndexKeyPool, KVPool
from dsv4_conformance.mla.topk import paged, select
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.weights import CompressorWeights, IndexerSpec, IndexerWeights

T = 6


def weights(ratio: int) -> CompressorWeights:
    width = 256 if ratio == 4 else 128
    return CompressorWeights(
        torch.zeros(width, 256), torch.zeros(width, 256), torch.zeros(ratio, width), torch.ones(128)
    )


def rows(count: int = T) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def keep() -> Tensor:
    return torch.zeros(T, dtype=torch.bool)


def advance(ratio: int) -> tuple[int, ...]:
    compressor = Compressor(weights(ratio), ratio, 128, torch.zeros(64, 64), 1e-6, 3, tail_pages=2)
    ug = compressor.project(torch.zeros(T, 256))
    return tuple(compressor.advance(ug, rows(), rows()).shape)


def rows_stored_and_loaded(quantised: bool) -> tuple[int, ...]:
    pool = KVPool(3, 64, quantised, torch.bfloat16, "cpu")
    pool.store(torch.zeros(T, 512), rows(), keep())
    return tuple(pool.load(rows().view(2, 3)).shape)


def scored_and_selected(quantised: bool) -> tuple[int, ...]:
    indexer_weights = IndexerWeights(torch.zeros(64 * 128, 64), torch.zeros(64, 256), weights(4))
    indexer = Indexer(IndexerSpec(TINY, indexer_weights, torch.zeros(64, 64), quantised), 2)
    pool, table = IndexKeyPool(3, quantised, "cpu"), torch.zeros(T, 2, dtype=torch.int32)
    pool.store(indexer.rotate_keys(torch.zeros(T, 128)), rows(), keep())
    iq, w = indexer.queries(torch.zeros(T, 256), torch.zeros(T, 64), rows())
    scores = indexer.scores_paged(iq, w, pool, table, 100)
    return tuple(paged(select(scores, rows(), 64), table).shape)


# Kills: slots checked by value, rows picked by a mask, a table indexed by a number read back.
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # asked for its alignment only
@pytest.mark.parametrize(
    ("part", "argument", "shape"),
    [
        (advance, 4, (T, 128)),
        (advance, 128, (T, 128)),
        (rows_stored_and_loaded, True, (2, 3, 512)),
        (rows_stored_and_loaded, False, (2, 3, 512)),
        (scored_and_selected, True, (T, 64)),
        (scored_and_selected, False, (T, 64)),
    ],
)
def test_captured_parts_need_no_value_on_the_host(
    part: Callable[[int], tuple[int, ...]], argument: int, shape: tuple[int, ...]
) -> None:
    kv_format.dequantise_index_keys(torch.zeros(1, dtype=torch.uint8), torch.ones(1))  # a table made once, of values
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert part(argument) == shape
