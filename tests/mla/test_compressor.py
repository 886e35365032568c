"""Compressor of the built-in implementation: every schedule against a loop over the definition in float64."""

import math
import random

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.rope import apply_rope, make_table
from dsv4_conformance.spec.weights import CompressorWeights

HIDDEN = 24
TABLE = make_table(160000.0, None, 1024, "cpu")
EPS = 1e-6
KINDS = [(4, 128), (4, 512), (128, 128), (128, 512)]


def make_weights(ratio: int, dim: int, seed: int = 0) -> CompressorWeights:
    generator = torch.Generator().manual_seed(seed)
    width = 2 * dim if ratio == 4 else dim

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    wkv, wgate = draw(width, HIDDEN) / 5, draw(width, HIDDEN) / 2
    return CompressorWeights(wkv, wgate, draw(ratio, width), 1 + draw(dim) / 4)


def make_tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def open_compressor(ratio: int, dim: int, rows: int = 4, tail_pages: int = 0) -> Compressor:
    """One whose whole state is NaN: what reads a row that was not written shows it."""
    compressor = Compressor(make_weights(ratio, dim), ratio, dim, TABLE, EPS, rows, None, "cpu", tail_pages)
    compressor.poison(())
    return compressor


def expected_entries(ratio: int, dim: int, x: Tensor) -> Tensor:
    """The definition of spec §5, token by token and in float64."""
    weights = make_weights(ratio, dim)
    u, g = x.double() @ weights.wkv.double().T, x.double() @ weights.wgate.double().T
    z = torch.stack([g[s] + weights.ape[s % ratio].double() for s in range(len(x))])
    entries = []
    for i in range(len(x) // ratio):
        slots = [(u[s, -dim:], z[s, -dim:]) for s in range(ratio * i, ratio * i + ratio)]
        if ratio == 4 and i:
            slots += [(u[s, :dim], z[s, :dim]) for s in range(4 * i - 4, 4 * i)]
        total = torch.stack([score.exp() for _, score in slots]).sum(0)
        pooled = torch.stack([value * score.exp() / total for value, score in slots]).sum(0)
        normed = pooled / (pooled.square().mean() + EPS).sqrt() * weights.norm.double()
        entries.append(apply_rope(normed[None], TABLE, torch.tensor([ratio * i]))[0])
    return torch.stack(entries) if entries else torch.empty(0, dim, dtype=torch.float64)


def assert_agrees(entries: Tensor, expected: Tensor) -> None:
    assert entries.shape == expected.shape
    torch.testing.assert_close(entries.double(), expected, rtol=0, atol=2e-5)


def push(compressor: Compressor, x: Tensor, row: int, start: int) -> Tensor:
    return compressor.extend(compressor.project(x), [(row, start, len(x))])[0]


def step(compressor: Compressor, x: Tensor, row: int, start: int) -> Tensor:
    """One step of consecutive tokens between two padding rows that hold NaN; the entries it completed."""
    padded = torch.cat((torch.full((1, HIDDEN), math.nan), x, torch.full((1, HIDDEN), math.nan)))
    rows = torch.tensor([0, *[row] * len(x), 0])
    positions = torch.tensor([0, *range(start, start + len(x)), -1])
    entries = compressor.advance(compressor.project(padded), rows, positions)
    assert entries.shape == (len(x) + 2, compressor.dim)
    return entries[1:-1][(positions[1:-1] + 1) % compressor.ratio == 0]


# Kills: A and B halves exchanged, ape of the wrong half or added twice, entry 0 reading overlap state, rope at the
# window's end, norm before pooling, a window that starts before the chunk taken from the chunk alone.
@pytest.mark.parametrize(("ratio", "dim"), KINDS)
def test_every_chunking_gives_the_entries_of_the_definition(ratio: int, dim: int) -> None:
    length = 4 * ratio + ratio // 2 + 1
    x = make_tokens(length)
    expected = expected_entries(ratio, dim, x)
    assert len(expected) == 4
    dice = random.Random(5)
    cuts = [sorted(dice.sample(range(1, length), dice.randint(1, 6))) for _ in range(4)]
    for cut in [[], list(range(1, length)), *cuts]:
        compressor = open_compressor(ratio, dim)
        ends = [*cut, length]
        parts = [push(compressor, x[a:b], 2, a) for a, b in zip([0, *cut], ends, strict=True)]
        assert_agrees(torch.cat(parts), expected)


# Kills: pooling before the step's own tokens are written, padding rows that write to a live row or raise, a ring that
# wraps within the window, positions before 0 taken from the ring's end.
@pytest.mark.parametrize(("ratio", "dim"), [(4, 128), (128, 128)])
@pytest.mark.parametrize("prefix", [0, 3, 5, 130])
@pytest.mark.parametrize("tokens", [1, 8])
def test_steps_continue_a_prefill(ratio: int, dim: int, prefix: int, tokens: int) -> None:
    x = make_tokens(prefix + 2 * ratio + 8)
    expected = expected_entries(ratio, dim, x)
    compressor = open_compressor(ratio, dim)
    parts = [push(compressor, x[:prefix], 3, 0)]
    parts += [step(compressor, x[at : at + tokens], 3, at) for at in range(prefix, len(x), tokens)]
    assert_agrees(torch.cat(parts), expected)


# Kills: a ring that drafts overwrite, state of rejected drafts read.
@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("eager", [True, False])
def test_rejected_drafts_leave_nothing_behind(ratio: int, eager: bool) -> None:
    x, drafts = make_tokens(3 * ratio + 20), make_tokens(8, seed=9)
    expected, dice = expected_entries(ratio, 128, x), random.Random(ratio)
    compressor, at, entries = open_compressor(ratio, 128), 0, torch.empty(0, 128)
    take = push if eager else step
    while at < len(x):
        accepted = min(dice.randint(0, 8), len(x) - at)
        guess = torch.cat((x[at : at + accepted], drafts[: 8 - accepted] * 50))
        entries = torch.cat((entries[: at // ratio], take(compressor, guess, 1, at)))
        assert compressor.can_resume(at + accepted, at + 8)
        at += accepted
    assert_agrees(entries[: len(expected)], expected)


# Kills: a claim that the ring holds what it has lost, or has lost what no window needs.
def test_what_can_be_taken_back_is_what_the_ring_still_holds() -> None:
    four, long = open_compressor(4, 128), open_compressor(128, 128)
    assert four.can_resume(92, 100) and not four.can_resume(84, 100) and four.can_resume(88, 100)
    assert not four.can_resume(87, 100) and four.can_resume(0, 100)
    assert long.can_resume(128, 1000) and long.can_resume(800, 1000) and not long.can_resume(766, 1000)
    for compressor in (four, long):
        for reached in range(9, 300):
            assert compressor.can_resume(reached - 8, reached)


# Kills: one sequence's history given to another, entries attributed to the wrong token, an offset left out.
@pytest.mark.parametrize("ratio", [4, 128])
def test_sequences_of_one_call_do_not_meet(ratio: int) -> None:
    lengths = [3 * ratio + 1, ratio - 1, 2 * ratio, 1]
    streams = [make_tokens(length, seed=20 + row) for row, length in enumerate(lengths)]
    cuts = [ratio + 2, ratio // 2, 2 * ratio - 1, 0]
    compressor = open_compressor(ratio, 128, rows=6)
    parts: list[list[Tensor]] = [[] for _ in streams]
    for chunks in (
        [(row, 0, cut) for row, cut in enumerate(cuts)],
        [(row, cut, length - cut) for row, (cut, length) in enumerate(zip(cuts, lengths, strict=True))][::-1],
    ):
        x = torch.cat([streams[row][start : start + n] for row, start, n in chunks])
        entries, index = compressor.extend(compressor.project(x), [(row + 1, start, n) for row, start, n in chunks])
        owner = [(row, start + k) for row, start, n in chunks for k in range(n)]
        closing = [owner[token] for token in index.tolist()]
        assert closing == [(row, p) for row, p in owner if (p + 1) % ratio == 0]
        for entry, (row, _) in zip(entries, closing, strict=True):
            parts[row].append(entry)
    for stream, found in zip(streams, parts, strict=True):
        expected = expected_entries(ratio, 128, stream)
        assert_agrees(torch.stack(found) if found else torch.empty(0, 128), expected)


# Kills: a step that mixes up the rows of a batch, or writes a row for another.
def test_a_step_of_several_sequences_is_their_steps_one_by_one() -> None:
    streams = [make_tokens(24, seed=30 + row) for row in range(3)]
    compressor = open_compressor(4, 128)
    starts = [0, 6, 11]
    for row, (start, x) in enumerate(zip(starts, streams, strict=True)):
        push(compressor, x[:start], row + 1, 0)
    found: list[list[Tensor]] = [[], [], []]
    for k in range(12):
        x = torch.stack([stream[start + k] for start, stream in zip(starts, streams, strict=True)])
        positions = torch.tensor([start + k for start in starts])
        entries = compressor.advance(compressor.project(x), torch.tensor([1, 2, 3]), positions)
        for row in range(3):
            if (starts[row] + k + 1) % 4 == 0:
                found[row].append(entries[row])
    for start, stream, ours in zip(starts, streams, found, strict=True):
        assert_agrees(torch.stack(ours), expected_entries(4, 128, stream[: start + 12])[start // 4 :])


# Hand-made: value = channel 0 of the token, all scores equal. Kills: entry 0 averaging 8 slots, halves exchanged.
def test_equal_scores_average_the_tokens() -> None:
    dim, wkv = 128, torch.zeros(256, 2)
    wkv[:dim, 0], wkv[dim:, 1] = 1.0, 1.0  # A = x[0], B = x[1], in every channel
    norm = torch.ones(dim)
    weights = CompressorWeights(wkv, torch.zeros(256, 2), torch.zeros(4, 256), norm)
    compressor = Compressor(weights, 4, dim, TABLE, 1.0, 2)
    x = torch.tensor([[8.0, 1.0], [8.0, 2.0], [8.0, 3.0], [8.0, 6.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    entries = push(compressor, x, 1, 0)
    # Means: 12 / 4 = 3 from four slots; (4 * 8 + 8) / 8 = 5 from eight. Norm with eps 1: v / sqrt(v^2 + 1).
    assert entries[:, 0].tolist() == pytest.approx([3 / math.sqrt(10), 5 / math.sqrt(26)], rel=1e-6)


# Kills: ring state at the cut only (the source is far beyond it), tails of drafts or of steps lost, a target that
# cannot be shared again at an earlier cut.
@pytest.mark.parametrize("by_steps", [True, False])
def test_a_prefix_cut_at_a_page_end_can_be_continued(by_steps: bool) -> None:
    x, other = make_tokens(600), make_tokens(300, seed=40)
    compressor = open_compressor(4, 128, rows=5, tail_pages=2)
    if by_steps:
        for at in range(0, 600, 8):
            step(compressor, x[at : at + 8], 1, at)
    else:
        push(compressor, x[:250], 1, 0)
        push(compressor, x[250:], 1, 250)
    compressor.import_tail(2, 512, compressor.export_tail(1, 512))
    compressor.import_tail(3, 256, compressor.export_tail(2, 256))
    for row, length in ((2, 512), (3, 256)):
        stream = torch.cat((x[:length], other))
        expected = expected_entries(4, 128, stream)[length // 4 :]
        assert_agrees(push(compressor, other, row, length), expected)


def test_prefixes_that_cannot_be_shared_are_refused() -> None:
    four, long = open_compressor(4, 128, tail_pages=1), open_compressor(128, 128, tail_pages=1)
    with pytest.raises(BadInput, match="cut it at a multiple of 256"):
        long.export_tail(1, 128)
    with pytest.raises(BadInput, match="open it with tail_pages of at least 2"):
        four.export_tail(1, 512)
    assert long.export_tail(1, 512).numel() == 0
    long.import_tail(2, 512, long.export_tail(1, 512))
    x = make_tokens(140)
    assert_agrees(push(long, x, 2, 512), expected_entries(128, 128, torch.cat((make_tokens(512), x)))[4:])


def test_bad_openings_and_chunks_are_refused() -> None:
    weights = make_weights(4, 128)
    with pytest.raises(BadInput, match="ratio 2 has no compressor; use 4 or 128"):
        Compressor(weights, 2, 128, TABLE, EPS, 2)
    with pytest.raises(BadInput, match="one window pools 8 tokens; use 16"):
        Compressor(weights, 4, 128, TABLE, EPS, 2, 7)
    compressor = open_compressor(4, 128)
    with pytest.raises(BadInput, match="the chunks hold 4 tokens and ug 5"):
        compressor.extend(compressor.project(make_tokens(5)), [(1, 0, 4)])
