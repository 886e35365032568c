"""A layer whose prefixes are found again by content: prompts that begin alike share pages (spec §9.4).

Prefixes are shared in whole pages of 256 tokens, on which window rows, entries of either ratio and index keys agree: a
page ends a group of 4 and of 128. A page is named by all tokens up to its end, so equal pages after different
beginnings are different pages. A finished sequence keeps its pages and its compressor's page ends until its place is
needed.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.sequences import PAGE
from dsv4_conformance.spec.weights import LayerSpec

KEPT = 2
"""Finished sequences beyond those that may live, so that a full batch does not empty the cache."""


class Tokens(Protocol):
    """New tokens of one sequence."""

    @property
    def sequence(self) -> int:
        """Number of the sequence."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids."""

    @property
    def x(self) -> Tensor:
        """Their rows ``(n, hidden)``."""


class _Rows(NamedTuple):
    sequence: int
    x: Tensor


class PrefixCache:
    """One layer of ``spec`` behind a cache of the pages of its living and its last finished sequences."""

    def __init__(self, spec: LayerSpec, device: torch.device | str, kept: int = KEPT) -> None:
        self._layer = AttentionLayer(replace(spec, max_sequences=spec.max_sequences + kept), device)
        self._living: dict[int, int] = {}
        """Caller's number -> the layer's."""
        self._finished: list[int] = []
        """The layer's numbers, the one that was finished first in front."""
        self._ids: dict[int, list[int]] = {}
        self._owners: dict[bytes, int] = {}
        """Name of a page -> a sequence of the layer that holds it."""
        self._numbers = itertools.count()

    def lookup(self, ids: Sequence[int]) -> int:
        """Tokens of the prompt that are there, whole pages, and at least one token less than the prompt."""
        return len(self._found(ids)) * PAGE

    def admit(self, sequence: int, ids: Sequence[int]) -> int:
        """Start ``sequence`` with what the cache has of the prompt ``ids``; the number of tokens that it has.

        Raises BadInput for a sequence that is alive, or where all places are taken by living ones.
        """
        if sequence in self._living:
            raise BadInput(f"sequence {sequence} is alive; finish it before it is admitted again.")
        pages = self._found(ids)
        source = self._owners[pages[-1]] if pages else None
        self._make_room(source)
        number = self._living[sequence] = next(self._numbers)
        self._ids[number] = list(ids[: len(pages) * PAGE])
        if source is not None:
            self._layer.fork(source, number, len(pages) * PAGE)
            self._name_pages(number)
        return len(pages) * PAGE

    def step(self, segments: Sequence[Tokens], mode: str = "prefill") -> Any:
        """Run new tokens of admitted sequences, as AttentionLayer.step."""
        rows = [_Rows(self._number(segment.sequence), segment.x) for segment in segments]
        for segment in segments:
            if len(segment.ids) != len(segment.x):
                raise BadInput(
                    f"sequence {segment.sequence} has {len(segment.ids)} ids and {len(segment.x)} rows; give as many."
                )
        done = self._layer.step(rows, mode)
        for row, segment in zip(rows, segments, strict=True):
            self._ids[row.sequence] += segment.ids
            self._name_pages(row.sequence)
        return done

    def finish(self, sequence: int) -> None:
        """End a sequence; its whole pages can be found until its place is needed."""
        self._finished.append(self._number(sequence))
        del self._living[sequence]

    def poison(self) -> None:
        """Fill with NaN every byte that neither a living nor a finished sequence owns."""
        self._layer.poison()

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Stored keys at positions int64 ``(n,)``: float32 ``(n, 512)``."""
        return self._layer.window_rows(self._number(sequence), positions)

    def compressed_rows(self, sequence: int) -> Tensor:
        """Stored entries float32 ``(S // ratio, 512)``."""
        return self._layer.compressed_rows(self._number(sequence))

    def compressed_slots(self, sequence: int) -> Tensor:
        """int64 ``(S // ratio,)``: slots of the stored entries."""
        return self._layer.compressed_slots(self._number(sequence))

    def _number(self, sequence: int) -> int:
        if sequence not in self._living:
            raise BadInput(f"sequence {sequence} is not alive; admit it first.")
        return self._living[sequence]

    def _found(self, ids: Sequence[int]) -> list[bytes]:
        """Names of the prompt's first pages, up to the first that nobody holds."""
        names = page_names(ids[: max(len(ids) - 1, 0)])
        return list(itertools.takewhile(lambda name: name in self._owners, names))

    def _name_pages(self, number: int) -> None:
        for name in page_names(self._ids[number]):
            self._owners.setdefault(name, number)

    def _make_room(self, spared: int | None) -> None:
        """Give up finished sequences, the oldest first, until there is a place; not the one that is shared from."""
        while not self._layer.sequences.free:
            oldest = next((number for number in self._finished if number != spared), None)
            if oldest is None:
                raise BadInput("all places are taken by living sequences; finish one, or open the cache for more.")
            self._forget(oldest)

    def _forget(self, number: int) -> None:
        self._finished.remove(number)
        self._layer.release(number)
        lost = self._ids.pop(number)
        for name in page_names(lost):
            if self._owners.get(name) == number:
                del self._owners[name]
        for other in self._ids:  # a page that it shared may have another holder
            self._name_pages(other)


def page_names(ids: Sequence[int]) -> list[bytes]:
    """The name of each whole page of a token stream: a hash of all tokens up to its end."""
    names, running = [], hashlib.sha256()
    for end in range(PAGE, len(ids) + 1, PAGE):
        running.update(b"".join(int(token).to_bytes(8, "little") for token in ids[end - PAGE : end]))
        names.append(running.digest())
    return names
