"""Fingerprints of inputs and red zones of outputs: every change is seen, and no right call is accused."""

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.runner.guards import RED_ELEMENTS, Fingerprint, GuardedOutput, poison_allocator, storage_of

LARGE = (1 << 22) // 4 + 64  # int32 words: beyond the size up to which bytes are compared


def view_of(buffer: Tensor) -> Tensor:
    """The middle of a buffer."""
    return buffer[buffer.numel() // 4 : -(buffer.numel() // 4)]


# Kills: fingerprints of the view alone (a write beside it goes unseen), of a sum that a change of sign keeps.
@pytest.mark.parametrize("count", [1000, LARGE], ids=["bytes", "checksums"])
@pytest.mark.parametrize("place", [0, 1, -1, 500])
def test_any_changed_word_of_the_storage_is_seen(count: int, place: int) -> None:
    buffer = torch.arange(1, count + 1, dtype=torch.int32)
    fingerprint = Fingerprint.of("q", view_of(buffer))
    fingerprint.check("it")
    buffer[place] += 1
    with pytest.raises(ContractViolation, match=r"^it changed its input q \(or the red zone around it\)\.$"):
        fingerprint.check("it")
    buffer[place] -= 1
    fingerprint.check("it")


# Kills: one plain sum for large inputs, which swapped neighbours keep.
def test_swapped_neighbours_of_a_large_input_are_seen() -> None:
    buffer = torch.arange(LARGE, dtype=torch.int32)
    fingerprint = Fingerprint.of("indices", buffer)
    buffer[7], buffer[8] = 8, 7
    with pytest.raises(ContractViolation):
        fingerprint.check("it")


# Kills: storages whose size is no multiple of 4, comparisons of values (NaN differs from itself, -0 equals 0).
def test_bytes_are_compared_not_values() -> None:
    odd = torch.tensor([math.nan, 0.0, 1.0], dtype=torch.bfloat16)
    fingerprint = Fingerprint.of("q", odd)
    fingerprint.check("it")
    odd[1] = -0.0
    with pytest.raises(ContractViolation):
        fingerprint.check("it")
    assert storage_of(torch.zeros(5, dtype=torch.uint8)).shape == (5,)
    assert storage_of(torch.zeros(3, 4, dtype=torch.float32)[1]).shape == (12,)


# Kills: outputs that start as zeros (an unwritten row would pass), red zones on one side, of finite values.
def test_guarded_output_is_nan_between_red_zones() -> None:
    guard = GuardedOutput.allocate("out", (3, 5), torch.bfloat16, torch.device("cpu"))
    assert guard.view.shape == (3, 5) and guard.view.is_contiguous() and guard.view.isnan().all()
    assert guard.buffer.numel() == 15 + 2 * RED_ELEMENTS and guard.buffer.isnan().all()
    guard.view.fill_(1.0)
    guard.check("it")
    assert guard.buffer.isnan().sum() == 2 * RED_ELEMENTS


@pytest.mark.parametrize("place", [0, RED_ELEMENTS - 1, RED_ELEMENTS + 15, 2 * RED_ELEMENTS + 14])
def test_a_write_beside_the_output_is_seen(place: int) -> None:
    guard = GuardedOutput.allocate("lse", (3, 5), torch.float32, torch.device("cpu"))
    guard.buffer[place] = 0.0
    with pytest.raises(ContractViolation, match=r"^it wrote outside its output lse\.$"):
        guard.check("it")


# Kills: blocks of zeros, of another shape or dtype, or kept alive so that the kernel cannot get them.
def test_freed_blocks_of_the_promised_shapes_hold_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[int, ...], torch.dtype, bool]] = []
    alive: list[weakref.ref[torch.Tensor]] = []
    full = torch.full

    def watched(shape: tuple[int, ...], value: float, **options: Any) -> torch.Tensor:
        block = full(shape, value, **options)
        made.append((tuple(block.shape), block.dtype, bool(block.isnan().all())))
        alive.append(weakref.ref(block))
        return block

    monkeypatch.setattr(torch, "full", watched)
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [((64, 512), torch.float32), ((3, 5), torch.bfloat16)]
    poison_allocator(shapes, torch.device("cpu"))
    assert made == [(shape, dtype, True) for shape, dtype in shapes]
    assert all(reference() is None for reference in alive)


# Kills: checksums that do not depend on where a word stands.
@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (5, 4096 * 3 + 5), (4096, 8192), (7, 4100)])
def test_words_that_change_places_in_a_large_input_are_seen(one: int, other: int) -> None:
    words = torch.arange(LARGE, dtype=torch.int32)
    fingerprint = Fingerprint.of("q", words)
    words[[one, other]] = words[[other, one]]
    with pytest.raises(ContractViolation, match="changed its input q"):
        fingerprint.check("it")
