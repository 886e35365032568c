"""Caches of prefixes that find too much, too little, or the wrong thing (spec §6, §9.4)."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import ClassVar, cast

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.extent_api import PrefixSession
from dsv4_conformance.mla.prefix_cache import PrefixCache, page_names
from dsv4_conformance.mla.sequences import PAGE
from dsv4_conformance.spec.weights import LayerSpec


class Cached(Builtin):
    """The built-in cache of prefixes; subclasses name another one."""

    touches: ClassVar[tuple[str, ...]] = ("PrefixReuse",)
    cache: ClassVar[type[PrefixCache]] = PrefixCache

    def open_prefix_cache(self, spec: LayerSpec) -> PrefixSession:
        """PrefixReuse of the class's own kind."""
        return cast("PrefixSession", self.cache(spec, self.device))


@fault("T12", breaks="INV-147")
class LongestMatchOfAnyGroupWins(Cached):
    """Each cache group sets the reused length by its own match, and the last one wins: the window's group compares the
    last 128 tokens alone, and knows nothing of an earlier difference."""

    class cache(PrefixCache):
        """Pages known by their own end."""

        def _found(self, ids: Sequence[int]) -> list[bytes]:
            names = [_window_name(ids[:end]) for end in range(PAGE, max(len(ids), 1), PAGE)]
            return list(itertools.takewhile(lambda name: name in self._owners, names))

        def _name_pages(self, number: int) -> None:
            ids = self._ids[number]
            for end in range(PAGE, len(ids) + 1, PAGE):
                self._owners.setdefault(_window_name(ids[:end]), number)


def _window_name(ids: Sequence[int]) -> bytes:
    """A hash of the last 128 tokens."""
    return hashlib.sha256(",".join(map(str, ids[-128:])).encode()).digest()


@fault("S58", breaks="INV-146")
class FinestGranularityWins(Cached):
    """Of the components' boundaries the finest is taken, a group of 128 tokens, and pools that share whole pages have
    half a page of it: the rest is taken for computed."""

    class cache(PrefixCache):
        """Half pages count as there."""

        def admit(self, sequence: int, ids: Sequence[int]) -> int:
            """128 tokens more than are shared, where the prompt is long enough."""
            hit = super().admit(sequence, ids)
            if hit and hit + 128 < len(ids):
                number = self._living[sequence]
                self._layer.sequences.grow(number, 128)
                self._ids[number] += ids[hit : hit + 128]
                return hit + 128
            return hit

        def lookup(self, ids: Sequence[int]) -> int:
            """As admit."""
            hit = super().lookup(ids)
            return hit + 128 if hit and hit + 128 < len(ids) else hit


@fault("V55", breaks="INV-148")
class KeepsOnePageTooFew(Cached):
    """What a finished prompt leaves lacks the page that a look-up asks for last."""

    class cache(PrefixCache):
        """Forgets the last whole page."""

        def finish(self, sequence: int) -> None:
            """End a sequence, its last page unnamed."""
            number = self._number(sequence)
            super().finish(sequence)
            for name in page_names(self._ids[number])[-1:]:
                if self._owners.get(name) == number:
                    del self._owners[name]


@fault("S59", breaks="INV-148")
class WindowsVetoEveryMatch(Cached):
    """A match needs window rows on every node of its path; those of finished sequences are given back by design."""

    class cache(PrefixCache):
        """Only living sequences are found."""

        def finish(self, sequence: int) -> None:
            """End a sequence and everything it left."""
            number = self._number(sequence)
            super().finish(sequence)
            self._forget(number)


@fault("V22", breaks="INV-148")
class PoolsOfLargeUnits(Cached):
    """Groups of blocks of 4 to 4096 tokens share a pool in units of the largest: shorter prompts are never found."""

    class cache(PrefixCache):
        """Whole units of 4096 tokens."""

        def _found(self, ids: Sequence[int]) -> list[bytes]:
            found = super()._found(ids)
            return found[: len(found) // 16 * 16]
