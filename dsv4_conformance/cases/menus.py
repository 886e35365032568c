"""Shape menus per size class, and the curated cases that open the core family. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.profiles import Size

S = ScopeShape


@dataclass(frozen=True)
class Menu:
    """What random draws choose from. Repeated entries weigh more."""

    b: tuple[int, ...]
    s_q: tuple[int, ...]
    h_q: tuple[int, ...]
    window: tuple[ScopeShape, ...]
    extra: tuple[ScopeShape, ...]
    prefill: tuple[ScopeShape, ...]
    queries: tuple[int, ...]


MENUS: dict[Size, Menu] = {
    "laptop": Menu(
        b=(1, 2, 3, 5, 9),
        s_q=(1, 1, 2, 3, 5),
        h_q=(1, 8, 16, 16, 32, 64, 128, 24, 80),
        window=(
            S(128, 128, 256),
            S(150, 128, 64),
            S(200, 64, 61),
            S(128, 100, 53),
            S(40, 64, 2),
            S(140, 128, 69, "none"),
            S(70, 64, 16),
            S(200, 192, 32, "full"),
        ),
        extra=(
            S(64, 64, 64),
            S(130, 128, 2),
            S(300, 256, 64),
            S(90, 70, 61),
            S(200, 64, 2, "none"),
            S(64, 64, 64, "zero"),
            S(200, 192, 64, "full"),
            S(1300, 1216, 128),
            S(20, 64, 1),
        ),
        prefill=(
            S(200, 128),
            S(300, 256),
            S(64, 33),
            S(700, 384),
            S(130, 128, 64, "none"),
            S(512, 640),
            S(2000, 1216),
            S(256, 256, 64, "full"),
        ),
        queries=(1, 3, 5, 8, 13),
    ),
    "gpu": Menu(
        b=(1, 2, 4, 7, 16, 33, 74),
        s_q=(1, 1, 2, 3),
        h_q=(64, 64, 128, 128, 8, 16, 32, 1, 96, 48),
        window=(
            S(128, 128, 256), S(256, 128, 256), S(128, 128, 64), S(512, 64, 2), S(512, 64, 69), S(1024, 576, 61),
            S(300, 128, 53, "none"), S(640, 640, 256, "full"), S(300, 192, 32),
        ),
        extra=(
            S(512, 512, 64), S(1024, 1024, 64), S(2046, 512, 64), S(512, 512, 2), S(1024, 576, 61), S(512, 64, 2),
            S(1000, 1024, 2, "none"), S(512, 64, 69), S(512, 512, 64, "zero"), S(512, 512, 64, "full"), S(600, 320, 16),
            S(130, 64, 1),
        ),
        prefill=(
            S(640, 640), S(4096, 640), S(8192, 1152), S(2048, 128), S(1000, 256, 64, "none"), S(512, 640), S(300, 100),
        ),
        queries=(1, 7, 64, 130, 257),
    ),
}  # fmt: skip


def _decode(size: Size) -> Iterator[AttentionCase]:
    if size == "laptop":
        yield AttentionCase("SparseDecode", 3, 2, 16, S(150, 128, 64), S(300, 256, 64), lonely=True)
        yield AttentionCase("SparseDecode", 2, 1, 64, S(128, 128, 256), S(512, 512, 64), data="needle")  # Flash C4
        yield AttentionCase("SparseDecode", 2, 1, 128, S(128, 128, 256), S(90, 64, 2), data="marker")  # C128
        yield AttentionCase("SparseDecode", 2, 2, 8, S(128, 128, 256), None, data="marker")  # C0
        for page in (2, 53, 61, 64, 69, 256):
            yield AttentionCase("SparseDecode", 2, 1, 16, S(130, 128, page), S(80, 64, page), data="marker")
        return
    for b in (1, 2, 64, 128):
        yield AttentionCase("SparseDecode", b, 1, 64, S(128, 128, 256), S(512, 512, 64), data="needle")  # Flash C4
        yield AttentionCase("SparseDecode", b, 1, 128, S(128, 128, 256), S(1024, 1024, 64), data="marker")  # Pro C4
        for h_q in (64, 128):
            yield AttentionCase("SparseDecode", b, 2, h_q, S(128, 128, 256), S(1024, 1024, 2))  # C128
            yield AttentionCase("SparseDecode", b, 1, h_q, S(128, 128, 256), None, data="marker")  # C0
    for page in (2, 53, 61, 64, 69, 256):
        yield AttentionCase("SparseDecode", 4, 2, 64, S(1024, 576, page), S(512, 64, page), data="marker")
    yield AttentionCase("SparseDecode", 200, 1, 64, S(256, 128, 256), S(600, 512, 64))
    yield AttentionCase("SparseDecode", 2, 1, 64, S(8192, 4096, 256), S(16384, 8192, 64))


def _prefill(size: Size) -> Iterator[AttentionCase]:
    def case(queries: int, h_q: int, shape: ScopeShape, **more: object) -> AttentionCase:
        return AttentionCase("SparsePrefill", 1, queries, h_q, shape).with_(**more)

    if size == "laptop":
        yield case(6, 16, S(300, 256), lonely=True)
        yield case(3, 64, S(700, 640), data="needle")
        yield case(3, 128, S(400, 384), data="marker")
        yield case(8, 8, S(128, 128, 64, "none"), data="marker")
        return
    for h_q in (64, 128):
        for queries in (1, 62, 500):
            yield case(queries, h_q, S(4096, 640), data="needle")  # Flash C4 width
            yield case(queries, h_q, S(8192, 1152), data="marker")  # Pro C4 width
            yield case(queries, h_q, S(592, 128))
    yield case(40, 128, S(49152, 2048), data="marker")


def curated(surface: str, size: Size) -> Iterator[AttentionCase]:
    """Named production shapes (window 128 in pages of 256; C4 512 or 1024 in 64; C128 in 2) and odd page sizes."""
    yield from _prefill(size) if surface == "SparsePrefill" else _decode(size)
