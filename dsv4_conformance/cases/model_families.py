"""Layers of the released models: Flash and Pro on a GPU; on a laptop the tiny model with their heads. Torch-free."""

from collections.abc import Iterator

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size

_MODELS = {"laptop": ("tiny64", "tiny128"), "gpu": ("flash", "pro")}
_SCHEDULES = {
    "laptop": ("p0:70+1:5 p0:194 d0+1 v0:2",),
    # Past 512 entries of ratio 4 (Flash selects 512), then past 1,024 (Pro).
    "gpu": ("p0:2043+1:130~3 p0:9+1:127 d0+1 v0:4+1:3 k0:2054 d0", "p0:4100 d0 p0:3"),
}


def _layer_models(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Each model at each ratio, as it is served: bfloat16 on fp8 pages; one of its ranks in every third case."""
    for place, text in enumerate(_SCHEDULES[size]):
        for index in range(6):
            tp = (1, 8, 2)[index % 3]
            yield LayerCase(
                surface,
                (4, 128, 0)[index // 2],
                text,
                geometry=_MODELS[size][(index + place) % 2],
                precision="bfloat16",
                quantised=True,
                tp=tp,
                rank=tp - 1,
                seed=seed * 1_000_003 + 6 * place + index,
            )


MODEL_FAMILIES = {"layer_models": _layer_models}
