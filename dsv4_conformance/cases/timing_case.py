"""Cases whose times are compared: large enough that the device, not the host, sets the pace. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.cases.profiles import Size


@dataclass(frozen=True)
class TimingCase(_Described):
    """``rows``: sequences of a decode step, or query rows of a prefill. ``keys``: compressed keys that each row lists
    (prefill: all of its keys). ``tokens`` of context, where a layer or a gather has one, at compress ``ratio``."""

    surface: str
    rows: int
    h_q: int = 64
    keys: int = 1024
    tokens: int = 0
    ratio: int = 4
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        if self.tokens:
            return f"C{self.ratio}-rows{self.rows}-tokens{self.tokens}"
        kind = {"SparseDecode": "decode", "SparsePrefill": "prefill"}[self.surface]
        return f"{kind}-rows{self.rows}-h{self.h_q}-keys{self.keys}"


# Decode steps in the engine's graph buckets; prefill chunks of one to four thousand rows.
_ROWS = {"SparseDecode": (64, 128, 256), "SparsePrefill": (1024, 4096)}


def _heads(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Batch sizes around the one from which padding to 64 heads pays."""
    for rows in (1, 8, 32, 64, 128, 256):
        yield TimingCase(surface, rows, seed=seed)


def _lengths(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Long lists: 8,192 entries are what a C128 layer lists at a million tokens."""
    for rows in _ROWS[surface]:
        yield TimingCase(surface, rows, keys=8192 if surface == "SparseDecode" else 2048, seed=seed)


def _widths(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """The lists that an indexer fills."""
    for rows in _ROWS[surface]:
        yield TimingCase(surface, rows, keys=512 if surface == "SparseDecode" else 640, seed=seed)


def _roofline(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Heads of both models, short and long lists."""
    for h_q in (64, 128):
        for keys in (1024, 2048):
            for rows in _ROWS[surface][1:]:
                yield TimingCase(surface, rows, h_q, keys, seed=seed)


def _replays(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Decode steps of a layer, small and large."""
    for ratio in (4, 128):
        for rows in (1, 16, 64):
            yield TimingCase(surface, rows, tokens=256, ratio=ratio, seed=seed)


def _paths(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """One chunk of a prefill after contexts of several lengths."""
    for ratio in (4, 128):
        for tokens in (4096, 16384):
            yield TimingCase(surface, 4096, tokens=tokens, ratio=ratio, seed=seed)


def _extents(surface: str, size: Size, seed: int) -> Iterator[Any]:
    """Batches that are short under page tables for a million tokens."""
    for rows, tokens in ((2, 512), (8, 4096)):
        yield TimingCase(surface, rows, tokens=tokens, seed=seed)


TIMING_FAMILIES = {
    "timed_heads": _heads,
    "timed_lengths": _lengths,
    "timed_widths": _widths,
    "timed_roofline": _roofline,
    "timed_replays": _replays,
    "timed_paths": _paths,
    "timed_extents": _extents,
}
