"""Red zones, poison and fingerprints around everything the harness allocates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.errors import ContractViolation

RED_ELEMENTS = 256
_RED_WORD = {2: 0x7FA5, 4: 0x7FA5A5A5}
"""NaN of a payload that no arithmetic gives, by element size: a NaN written over it shows."""
_EXACT_BYTES = 1 << 22
"""Storages up to this size are compared byte by byte; larger ones by checksums."""


def storage_of(tensor: Tensor) -> Tensor:
    """The whole storage of ``tensor`` as int32 (uint8 if its size is odd), red zones around the view included."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return raw.view(torch.int32) if raw.numel() % 4 == 0 else raw


@dataclass(frozen=True)
class Fingerprint:
    """What an input's storage held before the call."""

    name: str
    storage: Tensor
    copy: Tensor | None
    sums: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Fingerprint":
        """Take the fingerprint of the storage behind ``tensor``."""
        storage = storage_of(tensor)
        small = storage.nbytes <= _EXACT_BYTES
        return cls(name, storage, storage.clone() if small else None, () if small else _sums(storage))

    def check(self, who: str) -> None:
        """Raise ContractViolation if the storage changed."""
        same = torch.equal(self.storage, self.copy) if self.copy is not None else _sums(self.storage) == self.sums
        if not same:
            raise ContractViolation(f"{who} changed its input {self.name} (or the red zone around it).")


_BLOCK = 4096


def _sums(storage: Tensor) -> tuple[int, ...]:
    """Sum of all words and two weighted sums, by block and by place in it, so that moved words show, too."""
    whole = len(storage) // _BLOCK * _BLOCK
    table = storage[:whole].view(-1, _BLOCK)
    sums = []
    for part in (table.sum(1, dtype=torch.int64), table.sum(0, dtype=torch.int64), storage[whole:].to(torch.int64)):
        weight = torch.arange(1, len(part) + 1, device=part.device)
        sums += [part.sum(), (part * weight).sum()]
    return tuple(torch.stack(sums).tolist())


@dataclass(frozen=True)
class GuardedOutput:
    """An output tensor full of NaN between red zones."""

    name: str
    view: Tensor
    buffer: Tensor

    @classmethod
    def allocate(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "GuardedOutput":
        """``shape`` elements of NaN with RED_ELEMENTS of a marked NaN on each side."""
        count = 1
        for size in shape:
            count *= size
        buffer = torch.full((count + 2 * RED_ELEMENTS,), torch.nan, dtype=dtype, device=device)
        words = buffer.view(torch.int16 if buffer.element_size() == 2 else torch.int32)
        words[:RED_ELEMENTS] = words[-RED_ELEMENTS:] = _RED_WORD[buffer.element_size()]
        return cls(name, buffer[RED_ELEMENTS:-RED_ELEMENTS].view(shape), buffer)

    def check(self, who: str) -> None:
        """Raise ContractViolation if anything outside the view was written."""
        words = self.buffer.view(torch.int16 if self.buffer.element_size() == 2 else torch.int32)
        red = torch.cat((words[:RED_ELEMENTS], words[-RED_ELEMENTS:]))
        if not bool((red == _RED_WORD[self.buffer.element_size()]).all()):
            raise ContractViolation(f"{who} wrote outside its output {self.name}.")


def poison_allocator(shapes: list[tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
    """Leave NaN in freed blocks of these shapes, so that a kernel's own uninitialised outputs are likely to hold it."""
    for shape, dtype in shapes:
        torch.full(shape, torch.nan, dtype=dtype, device=device)
