"""Chunks with static shapes against chunks one by one, which the compressor's own tests cover (spec §6, §14.4)."""

import math
import random

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dsv4_conformance.mla.compress_static import extend_static
from dsv4_conformance.mla.compressor import Compressor
from tests.mla.layers import TABLES, compressor_weights, tokens

DIM = 128
Chunk = tuple[int, int, int]
"""State row, first position, tokens."""


def make(ratio: int) -> Compressor:
    """Four state rows, ends kept of the first page alone, NaN in all that nobody has written."""
    made = Compressor(compressor_weights(ratio, DIM, 50), ratio, DIM, TABLES.compressed, 1e-6, 4, tail_pages=1)
    made.poison([])
    return made


def static(compressor: Compressor, ug: Tensor, chunks: list[Chunk], spare: int) -> tuple[Tensor, Tensor]:
    """Entries and the rows that complete them, for ``spare`` rows of nobody behind the chunks."""
    total = sum(n for *_, n in chunks)
    fields = torch.tensor(
        [[row, start + k, start, start + n] for row, start, n in chunks for k in range(n)] + [[0] * 4] * spare
    )
    padded = torch.cat((ug, torch.full((spare, ug.shape[1]), math.nan)))
    entries = extend_static(compressor, padded, *fields.T)
    closing = torch.nonzero((fields[:total, 1] + 1) % compressor.ratio == 0)[:, 0]
    return entries[closing], closing


# Kills: reads after the writes of a chunk longer than the ring, the row before a chunk taken from another chunk, state
# of the chunk read where the stored one is older, tails of another page, rows of nobody that write to a sequence.
@pytest.mark.parametrize("ratio", [4, 128])
def test_static_chunks_equal_chunks_one_by_one(ratio: int) -> None:
    dice, one, other = random.Random(ratio), make(ratio), make(ratio)
    held = {1: 0, 2: 230, 3: 500}
    for compressor in (one, other):
        for row, n in ((2, 230), (3, 500)):
            compressor.extend(compressor.project(tokens(n, seed=row)), [(row, 0, n)])
    sizes = [1, 2, 3, 5, 17, 40] if ratio == 4 else [1, 3, 127, 128, 129, 300]
    for turn in range(8):
        chunks = [(row, held[row], min(dice.choice(sizes), 1000 - held[row])) for row in dice.sample([1, 2, 3], 2)]
        chunks = [chunk for chunk in chunks if chunk[2]]
        ug = one.project(tokens(sum(n for *_, n in chunks), seed=turn))
        want, closing = one.extend(ug, chunks)
        got, rows = static(other, ug, chunks, turn % 3)
        assert rows.equal(closing)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
        for row, start, n in chunks:
            held[row] = start + n
        for a, b in ((one.state, other.state), (one.tails, other.tails)):
            owned = slice(len(a) // 4, None)  # row 0 is that of nobody
            assert torch.equal(a[owned].nan_to_num(7.0), b[owned].nan_to_num(7.0))
    assert held[1] > 2 * (8 if ratio == 4 else 128) and held[2] > 256 and held[3] > 512


# Kills: drafts read as history after they were taken back, and history of a draft that stays.
def test_a_chunk_after_a_rejection_reads_the_tokens_that_stayed() -> None:
    one, other = make(4), make(4)
    stream = one.project(tokens(24))
    for compressor in (one, other):
        compressor.extend(torch.cat((stream[:13], one.project(tokens(6, seed=3)))), [(1, 0, 19)])
    want, _ = one.extend(stream[13:], [(1, 13, 11)])
    got, _ = static(other, stream[13:], [(1, 13, 11)], 1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


# Kills: rows picked by a mask, a length read back: what a CUDA graph cannot hold.
@pytest.mark.parametrize("ratio", [4, 128])
def test_static_chunks_need_no_value_on_the_host(ratio: int) -> None:
    made = make(ratio)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fields = [torch.zeros(6, dtype=torch.int64) for _ in range(4)]
        assert extend_static(made, torch.zeros(6, 2 * made.width), *fields).shape == (6, DIM)
