"""Families of property cases: compress ratio and flavour in turn, then the same with other weights. Torch-free."""

from collections.abc import Callable, Iterator
from typing import Literal

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.spec.weights import Precision

EXAMPLES = {"laptop": 8, "gpu": 16}
TOKENS = {"laptop": 320, "gpu": 1100}
"""More than a page, so that prefixes can be shared; on a GPU more than four, and 256 entries of which C4 selects 64."""
_TURNS: tuple[tuple[int, Precision, bool, Literal["sparse", "paged"]], ...] = (
    # Exact rows show most; quantised ones go through other code. Verify steps take the paged path in any case.
    (4, "float32", False, "sparse"),
    (128, "float32", False, "sparse"),
    (0, "bfloat16", True, "sparse"),
    (4, "bfloat16", True, "paged"),
    (128, "float32", True, "paged"),
    (0, "float32", False, "paged"),
    (4, "float32", True, "sparse"),
    (128, "bfloat16", True, "sparse"),
    (0, "float32", True, "sparse"),
)


def _layers(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """C4, C128 and C0 layers in turn."""
    for index in range(10**9):
        ratio, precision, quantised, path = _TURNS[index % len(_TURNS)]
        number = seed * 1_000_003 + index
        layer = LayerCase(surface, ratio, "", precision=precision, quantised=quantised, path=path, seed=number)
        yield PropertyCase(surface, layer, EXAMPLES[size], TOKENS[size])


def _compressors(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """The compressors of C4 layers, of C128 layers and of the indexer in turn."""
    for index in range(10**9):
        ratio, dim = ((4, 512), (128, 512), (4, 128))[index % 3]
        session = CompressorCase(surface, ratio, "", dim, seed=seed * 1_000_003 + index)
        # Cheap beside a layer: as many schedules again.
        yield PropertyCase(surface, session, 2 * EXAMPLES[size], TOKENS[size])


PROPERTY_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "layer_properties": _layers,
    "compressor_properties": _compressors,
}
