"""Which goldens there are: few and small, one file each, together every edge of the kernel surfaces."""

from dataclasses import dataclass

from dsv4_conformance.cases.case import AttentionCase, Case, FormatCase, HeadCase
from dsv4_conformance.cases.case import ScopeShape as S

FOLDER = "tensors"


@dataclass(frozen=True)
class Golden:
    """One file: its surface, its case (several for a table of head layouts), and what it is there to show."""

    name: str
    about: str
    cases: tuple[Case, ...]

    @property
    def path(self) -> str:
        """The file relative to the golden folder."""
        return f"{FOLDER}/{self.name}.safetensors"

    @property
    def surface(self) -> str:
        """The surface that answers the cases."""
        return self.cases[0].surface


def _decode(name: str, about: str, b: int, s_q: int, window: S, extra: S | None, **more: object) -> Golden:
    return Golden(name, about, (AttentionCase("SparseDecode", b, s_q, 8, window, extra).with_(**more),))


def _prefill(name: str, about: str, queries: int, shape: S, **more: object) -> Golden:
    return Golden(name, about, (AttentionCase("SparsePrefill", 1, queries, 8, shape).with_(**more),))


def _format(surface: str, name: str, about: str, tokens: int, page: int, **more: object) -> Golden:
    return Golden(name, about, (FormatCase(surface, tokens, page).with_(**more),))


_HEADS = tuple(
    HeadCase("HeadLayout", n_heads, tp, rank)
    for n_heads in (128, 64, 8)
    for tp in (1, 2, 4, 8, 16)
    if n_heads % tp == 0
    for rank in sorted({0, 1, tp - 1} & set(range(tp)))
)

# Seeds are chosen so that each list shows what it is there for; tests/golden counts.
GOLDENS: tuple[Golden, ...] = (
    _decode(
        "decode-lists",
        "two scopes with holes, duplicates and garbage beyond the lengths; sinks of all kinds; a row without keys",
        3, 1, S(20, 16, 2), S(24, 16, 5), duplicates=True, lonely=True, seed=12,
    ),
    _decode(
        "decode-needle",
        "one key dominates each head; no lengths; two queries per row; Inf in unreferenced slots; a larger scale",
        1, 2, S(20, 16, 7, "none"), None, data="needle", poison="inf", scale_bits=1,
    ),
    _decode(
        "decode-marker",
        "half of the list holes, a loud channel per key, an extra scope of length 0, 16 heads",
        1, 1, S(30, 24, 3), S(8, 8, 2, "zero"), data="marker", holes="many", h_q=16,
    ),
    _decode(
        "decode-edge-codes",
        "e4m3 codes from subnormals to 448, the smallest scale byte that writers use, pages of 64 tokens, no sink",
        2, 1, S(30, 24, 64), None, data="edge", sink="none",
    ),
    _prefill(
        "prefill-lists",
        "holes of every form (< 0, >= s_kv), duplicates, lengths; sinks of all kinds; a query without keys",
        4, S(56, 32), duplicates=True, lonely=True, seed=93,
    ),
    _prefill(
        "prefill-needle",
        "one key dominates each head; no lengths; finite sinks; a larger scale",
        2, S(24, 20, 64, "none"), data="needle", sink="finite", scale_bits=1,
    ),
    _prefill(
        "prefill-edge",
        "values from 2**-23 to 2**2 in one row; no sink; a smaller scale",
        2, S(40, 32), data="edge", sink="none", scale_bits=-2,
    ),
    _format("KVPageFormat", "kv-page-normal", "pages of 64 tokens", 3, 64),
    _format("KVPageFormat", "kv-page-tiny", "tile maxima from 2**-30 on: floor rules differ", 7, 2, data="tiny"),
    _format("KVPageFormat", "kv-page-powers", "tile maxima 448 * 2**k and just above", 6, 3, data="powers"),
    _format("KVPageFormat", "kv-page-zeros", "tiles of 0 and -0", 4, 2, data="zeros"),
    _format("KVPageFormat", "kv-page-huge", "tile maxima up to 2**100", 4, 5, data="huge"),
    _format("KVPageFormat", "kv-page-wide", "codes down to fp8 subnormals and 0", 6, 7, data="wide"),
    _format("IndexKeyFormat", "index-keys-tiny", "keys below and around the floor 1e-4", 9, 64, data="tiny"),
    _format("IndexKeyFormat", "index-keys-wide", "codes down to fp8 subnormals and 0", 9, 64, data="wide"),
    _format("SlotMapping", "compressed-slots", "three requests over shuffled pages, with holes", 600, 256),
    Golden("head-layout", "kernel heads and the rank's share of heads and sinks, per (n_heads, tp, rank)", _HEADS),
)  # fmt: skip
