"""Compressor and indexer sessions of the built-in adapter: several sequences, rejected drafts, reuse uncleared."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import IndexSegment, Segment
from dsv4_conformance.mla.hadamard import hadamard
from dsv4_conformance.mla.rope import make_table
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.weights import CompressorSpec, CompressorWeights, IndexerSpec, IndexerWeights

TABLE = make_table(160000.0, None, 700, "cpu")
GEOMETRY = replace(TINY, hidden_size=24, q_lora_rank=16)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_weights(ratio: int) -> CompressorWeights:
    width = 256 if ratio == 4 else 128
    wkv, wgate = draw(width, 24, seed=1), draw(width, 24, seed=2)
    return CompressorWeights(wkv, wgate, draw(ratio, width, seed=3), torch.ones(128))


def open_compressor(ratio: int, sequences: int = 2) -> Any:
    session = Builtin("cpu").open_compressor(CompressorSpec(ratio, 128, make_weights(ratio), TABLE, 1e-6), sequences)
    for state in session.state():
        state.fill_(math.nan)
    return session


def open_indexer(quantised: bool, sequences: int = 2, max_tokens: int = 700) -> Any:
    weights = IndexerWeights(draw(64 * 128, 16, seed=4), draw(64, 24, seed=5), make_weights(4))
    return Builtin("cpu").open_indexer(IndexerSpec(GEOMETRY, weights, TABLE, quantised), sequences, max_tokens)


def tokens(sequence: int, x: Tensor, start: int, stop: int) -> IndexSegment:
    """Tokens whose qr follows from x, so that one tensor describes a stream."""
    return IndexSegment(sequence, x[start:stop], x[start:stop, :16].roll(1, 1))


# Kills: entries handed to another segment, state of a released sequence read, drafts that stay.
@pytest.mark.parametrize("ratio", [4, 128])
def test_sequences_that_come_go_and_take_back_drafts_get_their_own_entries(ratio: int) -> None:
    dice, session = random.Random(ratio), open_compressor(ratio)
    for life in range(3):
        streams = {7: draw(3 * ratio + 5, 24, seed=10 + life), 2: draw(2 * ratio + 1, 24, seed=20 + life)}
        whole = {n: open_compressor(ratio).push([Segment(n, x)])[0] for n, x in streams.items()}
        held, found = {7: 0, 2: 0}, {n: torch.empty(0, 128) for n in streams}
        while any(held[n] < len(x) for n, x in streams.items()):
            batch = []
            for n, x in streams.items():
                if held[n] < len(x):
                    batch.append((n, min(dice.choice([1, 3, 8, ratio]), len(x) - held[n])))
            segments = [Segment(n, streams[n][held[n] : held[n] + count]) for n, count in batch]
            for (n, count), entries in zip(batch, session.push(segments), strict=True):
                found[n] = torch.cat((found[n], entries))
                held[n] += count
                if dice.random() < 0.5:
                    session.push([Segment(n, draw(8, 24, seed=99))])
                    session.truncate(n, held[n])
        for n in streams:
            torch.testing.assert_close(found[n], whole[n], rtol=0, atol=1e-5)
            session.release(n)


def test_tokens_that_state_has_lost_or_never_had_are_refused() -> None:
    session = open_compressor(4, sequences=1)
    session.push([Segment(0, draw(40, 24, seed=1))])
    session.truncate(0, 32)
    with pytest.raises(BadInput, match="has reached 40 tokens and its compressor cannot go on from 24"):
        session.truncate(0, 24)
    session.push([Segment(0, draw(2, 24, seed=2))])
    with pytest.raises(BadInput, match="has reached 40 tokens and its compressor cannot go on from 27"):
        session.truncate(0, 27)  # token 20 was overwritten by 36, a draft
    with pytest.raises(BadInput, match="sequences \\[5\\] find no room; release some"):
        session.push([Segment(5, draw(1, 24, seed=1))])
    with pytest.raises(BadInput, match="pass the new tokens of a sequence as one segment"):
        session.push([Segment(0, draw(1, 24, seed=1))] * 2)
    with pytest.raises(BadInput, match="sequence 5 is not alive"):
        session.truncate(5, 0)
    session.release(0)
    assert session.push([Segment(5, draw(4, 24, seed=1))])[0].shape == (1, 128)


# Kills: keys stored at another entry or page, visible entries counted as q // r, a segment scored with another's keys,
# pages of a released sequence kept, paged slots that do not follow the table.
@pytest.mark.parametrize("quantised", [False, True])
def test_schedules_of_the_indexer_agree(quantised: bool) -> None:
    length, x, y = 600, draw(600, 24, seed=30), draw(90, 24, seed=31)
    whole = open_indexer(quantised)
    [once] = whole.push([tokens(0, x, 0, length)])
    assert once.scores.shape == (600, 150) and once.raw.shape == (600, 64)
    session, dice, at, other = open_indexer(quantised), random.Random(1), 0, 0
    session.push([tokens(9, y, 0, 60)])
    session.release(9)
    while at < length:
        count = min(dice.choice([1, 2, 7, 130, 257]), length - at)
        batch = [tokens(1, x, at, at + count)]
        if other < 90:
            batch.insert(0, tokens(3, y, other, other + 6))
            other += 6
        part = session.push(batch)[-1]
        for k, t in enumerate(range(at, at + count)):
            visible = (t + 1) // 4
            torch.testing.assert_close(part.scores[k, :visible], once.scores[t, :visible], rtol=2e-4, atol=2e-3)
            chosen = set(part.raw[k].tolist()) - {-1}
            assert len(chosen) == min(visible, 64) and max(chosen, default=-1) < visible
            assert len(chosen ^ (set(once.raw[t].tolist()) - {-1})) <= 2  # near-equal scores may change places
            pages = session.page_table(1).tolist()
            slots = [-1 if i < 0 else pages[i // 64] * 64 + i % 64 for i in part.raw[k].tolist()]
            assert part.paged[k].tolist() == slots
        at += count
    torch.testing.assert_close(session.keys(1), whole.keys(0), rtol=2**-3 if quantised else 0, atol=1e-2)
    [entries] = open_compressor(4).push([Segment(0, x)])
    torch.testing.assert_close(whole.keys(0), entries @ hadamard(128, "cpu"), rtol=2**-4 if quantised else 0, atol=1e-2)
    assert len(session.page_table(1)) == 3 and not set(session.page_table(1).tolist()) & set(
        session.page_table(3).tolist()
    )


# Kills: keys of rejected drafts counted, their pages kept, later tokens stored after them.
def test_the_indexer_takes_drafts_back() -> None:
    x, drafts = draw(300, 24, seed=40), draw(8, 24, seed=41)
    session, whole = open_indexer(False), open_indexer(False)
    session.push([tokens(0, x, 0, 252)])
    session.push([tokens(0, drafts, 0, 8)])
    assert len(session.page_table(0)) == 2
    session.truncate(0, 252)
    assert len(session.page_table(0)) == 1 and session.keys(0).shape == (63, 128)
    [rest] = session.push([tokens(0, x, 252, 300)])
    [once] = whole.push([tokens(0, x, 0, 300)])
    torch.testing.assert_close(session.keys(0), whole.keys(0), rtol=0, atol=1e-4)
    torch.testing.assert_close(rest.scores[-1], once.scores[-1], rtol=1e-4, atol=1e-3)
    with pytest.raises(BadInput, match="would reach 702 tokens"):
        session.push([tokens(0, draw(402, 24, seed=42), 0, 402)])


def test_select_topk_returns_raw_and_paged_rows() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, math.nan], [math.nan] * 4])
    table = torch.tensor([[4], [6]], dtype=torch.int32)
    raw, paged = Builtin("cpu").select_topk(scores, torch.tensor([3, 2]), 2, table)
    assert sorted(raw[0].tolist()) == [1, 2] and raw[1].tolist() == [0, 1]
    assert sorted(paged[0].tolist()) == [257, 258] and paged[1].tolist() == [384, 385]
