"""Noise of right scores, and rows that are filled behind their entries: what selections are judged by."""

from dataclasses import replace

import pytest
import torch

from dsv4_conformance.cases.compressor_case import IndexerCase
from dsv4_conformance.cases.compressor_inputs import index_streams, indexer_spec
from dsv4_conformance.numerics import state_reference
from dsv4_conformance.numerics.selection import exact_scores, trailing_fill
from dsv4_conformance.oracle import indexer
from dsv4_conformance.spec.weights import IndexerSpec

Built = tuple[IndexerSpec, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def built(quantised: bool) -> Built:
    """Spec, x, qr, positions of the last 6 of 80 tokens, and stored keys."""
    case = IndexerCase("Indexer", "p0:80", quantised=quantised)
    spec = indexer_spec(case, "cpu")
    x, qr = (streams.take(0, 80) for streams in index_streams(case, "cpu"))
    positions = torch.arange(74, 80)
    return spec, x[positions], qr[positions], positions, indexer.keys(spec, x).float()


# Kills: scores over recomputed keys, noise of the whole call in place of the row's.
def test_scores_are_over_the_stored_keys_and_noise_is_each_row_s() -> None:
    spec, x, qr, positions, keys = built(False)
    found = exact_scores(spec, x, qr, positions, keys, "float32")
    assert torch.allclose(found.noise, 1e-5 * found.scores.abs().amax(1)) and torch.equal(found.band, 2 * found.noise)
    assert found.noise.unique().numel() == 6  # type: ignore[no-untyped-call]
    moved = keys.clone()
    moved[3] = 0
    other = exact_scores(spec, x, qr, positions, moved, "float32").scores
    assert bool((other[:, 3] == 0).all()) and torch.equal(other[:, :3], found.scores[:, :3])


# Kills: noise without the flips, of one flip, or so wide that it lets through what is no flip.
def test_two_flipped_codes_stay_within_the_noise_and_an_unscaled_key_does_not() -> None:
    spec, x, qr, positions, keys = built(True)
    iq, w = indexer.queries(spec, qr, positions), indexer.head_weights(spec, x)
    rows, head = torch.arange(6), (w.abs() * iq.abs().amax(-1)).argmax(1)
    loudest = iq[rows, head]
    aligned = loudest.sign()  # keys on which no element of the loudest head is lost
    worst = exact_scores(spec, x, qr, positions, aligned, "float32")
    flipped = iq.clone()
    flipped[rows, head, :2] += aligned[:, :2] * loudest.abs().amax(1, keepdim=True) * 32 / 448
    error = (indexer.scores(flipped, w, aligned) - worst.scores).abs()[rows, rows]
    assert bool((error <= worst.noise).all()) and bool((error > 0.99 * worst.noise).all())
    found = exact_scores(spec, x, qr, positions, keys, "float32")
    spread = found.scores.std(1)
    assert bool((found.noise < spread / 3).all())
    assert bool(
        (found.noise > 20 * exact_scores(replace(spec, quantised=False), x, qr, positions, keys, "float32").noise).all()
    )


# Kills: no allowance for bf16 activations, or the reference's own error alone.
def test_bfloat16_may_err_by_twice_its_reference() -> None:
    spec, x, qr, positions, keys = built(False)
    exact = exact_scores(spec, x, qr, positions, keys, "float32")
    low = exact_scores(spec, x, qr, positions, keys, "bfloat16")
    apart = (state_reference.scores(spec, x, qr, positions, keys) - exact.scores).abs().amax(1)
    assert torch.equal(low.scores, exact.scores) and bool((apart > 10 * exact.noise).all())
    assert torch.allclose(low.noise - exact.noise, 2 * apart)


# Kills: -1 in front or in between, counts beyond topk, numbers below -1.
@pytest.mark.parametrize(
    ("row", "seen", "right"),
    [
        ([4, 0, 2, -1], 3, True),
        ([-1, 0, 2, 4], 3, False),
        ([4, -1, 2, 0], 3, False),
        ([4, 0, 2, 1], 3, False),
        ([4, 0, 2, 1], 9, True),
        ([4, 0, 2, -2], 3, False),
        ([-1, -1, -1, -1], 0, True),
        ([-1, -1, -1, -1], 1, False),
    ],
)
def test_entries_stand_in_front_of_the_fill(row: list[int], seen: int, right: bool) -> None:
    assert bool(trailing_fill(torch.tensor([row]), torch.tensor([seen]), 4)[0]) is right


# Kills: the flips of another form measured on rotated vectors, or by the step of a float32 scale.
def test_flips_of_another_form_are_those_of_its_own_vectors() -> None:
    spec, x, qr, positions, keys = built(True)
    form = indexer.Form(rotated=False, power_of_two=True)
    found = exact_scores(spec, x, qr, positions, keys, "float32", form)
    iq, w = indexer.queries(spec, qr, positions, form=form), indexer.head_weights(spec, x)
    assert torch.equal(found.scores, indexer.scores(iq, w, keys.double()))
    own, own_keys = indexer.hadamard(iq), indexer.hadamard(keys)
    flips = 2 * 32 / 256 * (w.abs() * own.abs().amax(-1)).amax(1) * own_keys.abs().max()
    assert torch.allclose(found.noise, 1e-5 * found.scores.abs().amax(1) + flips)
