"""Which SGLang release is there, found in its files: nothing of it is imported, so declarations can be read anywhere.

Releases move modules and rename classes. What an adapter declares follows from the names that a module's text defines,
never from the version.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = "sglang"
BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
CHUNKS = "sglang.srt.layers.attention.dsv4.sparse_prefill_utils"
HOOK = "sglang.srt.arg_groups.deepseek_v4_hook"
MODEL = "sglang.srt.models.deepseek_v4"
DEQUANTISERS = (
    "sglang.kernels.ops.attention.dsv4.dequant_k_cache",
    "sglang.srt.layers.attention.dsv4.dequant_k_cache",
)
DECODERS = (
    "sglang.kernels.ops.attention.dsv4.triton_sparse_decode",
    "sglang.kernels.ops.attention.nsa_triton_decode",
    "sglang.srt.layers.attention.nsa.triton_decode",
)


def folder() -> Path | None:
    """The folder of the package ``sglang`` on the path, or None."""
    try:
        found = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]) if places else None


def version() -> str:
    """The release as its own files say; else as the package's metadata say; "not installed" without either.

    A release may be a folder on PYTHONPATH while the environment's metadata tell of another one.
    """
    place = folder()
    if place is None:
        return "not installed"
    for name in ("_version.py", "version.py"):
        if (place / name).is_file():
            told = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", (place / name).read_text(), re.MULTILINE)
            if told:
                return told[1]
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"


def has(module: str, *names: str) -> bool:
    """Whether the text of ``module`` defines every name: functions and classes, methods as ``Class.method``."""
    return set(names) <= _names(module, folder()) if exists(module) else False


def mentions(module: str, name: str) -> bool:
    """Whether the text of ``module`` uses this name anywhere."""
    path = _file(module, folder())
    return path is not None and re.search(rf"\b{re.escape(name)}\b", path.read_text()) is not None


def exists(module: str) -> bool:
    """Whether the release has the module."""
    return _file(module, folder()) is not None


def first(modules: tuple[str, ...], *names: str) -> str | None:
    """The first of these modules that defines every name, or None."""
    return next((module for module in modules if has(module, *names)), None)


def _file(module: str, place: Path | None) -> Path | None:
    if place is None:
        return None
    path = place.joinpath(*module.split(".")[1:])
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _names(module: str, place: Path | None) -> frozenset[str]:
    path = _file(module, place)
    if path is None:
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(found)
