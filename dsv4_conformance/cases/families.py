"""Case families: named streams of cases, curated ones first, then seeded random draws without end. Torch-free."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from dsv4_conformance.cases.accuracy_case import ACCURACY_FAMILIES
from dsv4_conformance.cases.case import (
    AttentionCase,
    Case,
    FormatCase,
    HeadCase,
    Lengths,
    PaddedCase,
    RankCase,
    ScopeShape,
)
from dsv4_conformance.cases.compressor_families import COMPRESSOR_FAMILIES
from dsv4_conformance.cases.config_families import CONFIG_FAMILIES
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.extent_families import EXTENT_FAMILIES
from dsv4_conformance.cases.layer_families import LAYER_FAMILIES
from dsv4_conformance.cases.layer_turns import LAYER_TURNS
from dsv4_conformance.cases.menus import MENUS, Menu, curated
from dsv4_conformance.cases.model_families import MODEL_FAMILIES
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.cases.property_families import PROPERTY_FAMILIES
from dsv4_conformance.cases.state_families import STATE_FAMILIES
from dsv4_conformance.cases.timing_case import TIMING_FAMILIES
from dsv4_conformance.errors import HarnessError

Family = Callable[[str, Size, int], Iterator[Case]]

_FORMAT_DATA = ("normal", "tiny", "powers", "zeros", "huge", "wide")


def _draw(menu: Menu, surface: str, seed: int, draws: Draws) -> AttentionCase:
    """One random attention case from a menu."""
    prefill = surface == "SparsePrefill"
    window = draws.pick(menu.prefill if prefill else menu.window)
    extra = None if prefill or draws.chance(1, 4) else draws.pick(menu.extra)
    return AttentionCase(
        surface,
        1 if prefill else draws.pick(menu.b),
        draws.pick(menu.queries) if prefill else draws.pick(menu.s_q),
        draws.pick(menu.h_q),
        window,
        extra,
        data=draws.pick(("normal", "normal", "needle", "marker", "edge")),
        sink=draws.pick(("special", "special", "special", "finite", "zero", "none")),
        holes=draws.pick(("none", "some", "some", "many")),
        duplicates=draws.chance(1, 4),
        lonely=draws.chance(1, 4),
        poison=draws.pick(("nan", "nan", "nan", "inf", "none")),
        strided=draws.chance(3, 4),
        scale_bits=draws.pick((0, 0, 0, 1, -2)),
        seed=seed * 1_000_003 + draws.integer(1_000_003),
    )


def _stream(name: str, surface: str, size: Size, seed: int, **fixed: object) -> Iterator[AttentionCase]:
    """Endless draws of family ``name`` with some fields fixed."""
    index = 0
    while True:
        case = _draw(MENUS[size], surface, seed, Draws(name, surface, size, seed, index))
        yield case.with_(**fixed)
        index += 1


def _core(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Production shapes and odd ones, then draws: every field varies."""
    for case in curated(surface, size):
        yield case.with_(seed=seed)
    yield from _stream("core", surface, size, seed)


def _rows(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Several rows with keys in each, sinks special: for relations between two calls."""
    for case in _stream("rows", surface, size, seed, sink="special", lonely=False):
        groups = "s_q" if surface == "SparsePrefill" else "b"  # what has lists and a length of its own
        yield case if getattr(case, groups) > 1 else case.with_(**{groups: 3 if surface == "SparsePrefill" else 2})


def _sinks(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """At least 8 heads, so that -inf, +inf and finite sinks stand side by side."""
    for case in _rows(surface, size, seed):
        assert isinstance(case, AttentionCase)
        yield case.with_(h_q=max(case.h_q, 8))


def _lonely(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """The last row has no key: all holes, or lengths 0 in every scope."""
    for index, case in enumerate(_rows(surface, size, seed)):
        assert isinstance(case, AttentionCase)
        lengths: Lengths = "none" if index % 2 else "mixed"
        window = ScopeShape(case.window.slots, case.window.topk, case.window.page_size, lengths)
        extra = case.extra
        if extra is not None:
            extra = ScopeShape(extra.slots, extra.topk, extra.page_size, lengths)
        yield case.with_(window=window, extra=extra, lonely=True)


def _clean_lists(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """No holes and no duplicates: lists that a test rearranges itself."""
    for case in _rows(surface, size, seed):
        assert isinstance(case, AttentionCase)
        yield case.with_(holes="none", duplicates=False)


def _lengths(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """topk_length given in every scope, garbage beyond it; a prefill of more than 64 queries is among the first."""
    for index, case in enumerate(_rows(surface, size, seed)):
        assert isinstance(case, AttentionCase)
        if index == 1 and surface == "SparsePrefill":
            case = case.with_(s_q=70, h_q=min(case.h_q, 16))
        window = ScopeShape(case.window.slots, case.window.topk, case.window.page_size, "mixed")
        extra = case.extra
        if extra is not None:
            extra = ScopeShape(extra.slots, extra.topk, extra.page_size, "mixed")
        yield case.with_(window=window, extra=extra)


def _two_scopes(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Window and extra scope both present."""
    for case in _clean_lists(surface, size, seed):
        assert isinstance(case, AttentionCase)
        if case.extra is not None:
            yield case


def _poisoned(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Unreferenced slots, pads and tails hold NaN or Inf patterns in turn."""
    for index, case in enumerate(_rows(surface, size, seed)):
        yield case.with_(poison=("nan", "inf")[index % 2])


def _ranks(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """First, second and last rank of every tp in {1, 2, 4, 8, 16}, 128 and 64 heads; another call for each."""
    shares = [
        HeadCase("HeadLayout", n_heads, tp, rank, seed)
        for n_heads in (128, 64)
        for tp in (1, 2, 4, 8, 16)
        for rank in sorted({0, 1, tp - 1} & set(range(tp)))
    ]
    for index, attention in enumerate(_stream("ranks", surface, size, seed, sink="special", lonely=False)):
        heads = shares[index % len(shares)]
        small = attention.with_(h_q=heads.n_heads, b=min(attention.b, 2), s_q=min(attention.s_q, 8))
        if index == 0:  # the only one of profile smoke: every mistake must show in it
            small = small.with_(data="marker", holes="some")
        yield RankCase(surface, small, heads)


def _padding(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """1, 8, 16, 32 and 64 real heads padded to 64 and 128; padded queries hold each fill in turn."""
    pairs = [(1, 64), (8, 64), (16, 64), (32, 64), (64, 128), (8, 128), (32, 128), (127, 128)]
    for index, attention in enumerate(_stream("padding", surface, size, seed, lonely=False)):
        real, padded = pairs[index % len(pairs)]
        fill = ("nan", "inf", "random", "zero")[(index + index // len(pairs)) % 4]
        yield PaddedCase(surface, attention.with_(h_q=real), padded, fill)  # type: ignore[arg-type]


def _head_counts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """h_q in {1, 8, 16, 32, 64, 128}, one after the other."""
    for index, case in enumerate(_stream("head_counts", surface, size, seed)):
        yield case.with_(h_q=(64, 128, 1, 8, 16, 32)[index % 6])


def _heads(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Head layouts of Flash, Pro and the tiny model over every tp that divides them, every rank."""
    for n_heads in (128, 64, 8):
        for tp in (1, 2, 4, 8, 16):
            if n_heads % tp == 0:
                for rank in range(tp):
                    yield HeadCase(surface, n_heads, tp, rank, seed)


def _kv_tokens(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Every kind of data in pages of 2, 64 and 256 tokens and odd ones."""
    index = 0
    while True:
        page = (64, 2, 256, 61, 53, 69)[index % 6]
        data = _FORMAT_DATA[(index + index // 6) % 6]
        tokens = (97, 130, 300, 1, 515, 1030)[index % 6] if size == "laptop" else (300, 1000, 4097, 1)[index % 4]
        yield FormatCase(surface, tokens, page, data, seed * 1_000_003 + index)  # type: ignore[arg-type]
        index += 1


def _plans(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Decode calls whose shapes every sparse kernel is built for: 64 and 128 heads, widths in multiples of 64."""
    for index, case in enumerate(_stream("plans", "SparseDecode", size, seed, lonely=False)):
        lengths: Lengths = ("full", "mixed", "none")[index // 2 % 3]
        scopes = [
            scope and replace(scope, topk=-(-scope.topk // 64) * 64, lengths=lengths)
            for scope in (case.window, case.extra)
        ]
        window, extra = scopes
        yield case.with_(surface=surface, h_q=(64, 128)[index % 2], window=window, extra=extra)


FAMILIES: dict[str, Family] = {
    "plans": _plans,
    "core": _core,
    "rows": _rows,
    "launches": _rows,
    "sinks": _sinks,
    "lonely": _lonely,
    "clean_lists": _clean_lists,
    "lengths": _lengths,
    "two_scopes": _two_scopes,
    "poisoned": _poisoned,
    "ranks": _ranks,
    "padding": _padding,
    "head_counts": _head_counts,
    "heads": _heads,
    "kv_tokens": _kv_tokens,
    **ACCURACY_FAMILIES,
    **COMPRESSOR_FAMILIES,
    **CONFIG_FAMILIES,
    **EXTENT_FAMILIES,
    **LAYER_FAMILIES,
    **LAYER_TURNS,
    **MODEL_FAMILIES,
    **PROPERTY_FAMILIES,
    **STATE_FAMILIES,
    **TIMING_FAMILIES,
}


def family(name: str, surface: str, size: Size, seed: int) -> Iterator[Case]:
    """The cases of family ``name`` for ``surface``: the same stream in every process."""
    if name not in FAMILIES:
        raise HarnessError(f"A suite asks for the unknown case family {name!r}; known: {', '.join(FAMILIES)}.")
    return FAMILIES[name](surface, size, seed)
