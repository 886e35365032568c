"""The recorded files as calls: everything is read from the file, nothing from the generator."""

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.resources import golden_dir

Tensors = dict[str, Tensor]


def paths(surface: str) -> list[Path]:
    """The recorded files of a surface."""
    found = []
    for path in sorted((golden_dir() / "tensors").glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if file.metadata()["surface"] == surface:
                found.append(path)
    assert found, f"no golden of surface {surface}"
    return found


def read(path: Path) -> Tensors:
    """Tensors by name."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def kernel_view(pages: Tensor, page_size: int) -> Tensor:
    """``(num_pages, P, 1, 584)`` over whole pages ``(num_pages, page_bytes)``."""
    return pages.as_strided((pages.shape[0], page_size, 1, 584), (pages.shape[1], 584, 584, 1))


def call_of(stored: Tensors) -> DecodeCall | PrefillCall:
    """The attention call of a file."""
    scale, sink = float(stored["scale"]), stored.get("sink")
    if "kv" in stored:
        return PrefillCall(stored["q"], stored["kv"], stored["indices"], stored.get("topk_length"), sink, scale)
    window, extra = _scope(stored, "window"), _scope(stored, "extra")
    assert window is not None
    return DecodeCall(stored["q"], window, extra, sink, scale)


def _scope(stored: Tensors, name: str) -> KVScope | None:
    if f"{name}_pages" not in stored:
        return None
    pages = kernel_view(stored[f"{name}_pages"], int(stored[f"{name}_page_size"]))
    return KVScope(pages, stored[f"{name}_indices"], stored.get(f"{name}_topk_length"))
