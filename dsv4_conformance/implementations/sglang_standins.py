"""What SGLang's modules import and a machine without its CUDA stack lacks (none of it takes part in attention).

``torchvision`` and ``tilelang`` become empty modules where they are absent, or where torchvision is built for another
torch; on CUDA ``sgl_kernel``, ``deep_gemm`` and ``flash_mla`` as well. transformers' register of config names takes a
name twice, since releases up to 0.5.16 register names that newer transformers own. Nothing is stood in for that is
there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NOTES = (
    "stood in for, import only, where absent: torchvision, tilelang, on CUDA sgl_kernel, deep_gemm, flash_mla; "
    "transformers' config register takes names twice"
)
EVERYWHERE, ON_CUDA = ("torchvision", "tilelang"), ("sgl_kernel", "deep_gemm", "flash_mla")


def install(device: str = "cpu") -> None:
    """Make the stand-ins importable that the engine's modules need on this device; a second call does nothing."""
    if any(isinstance(finder, _Absent) for finder in sys.meta_path):
        return
    wanted = EVERYWHERE + (ON_CUDA if device == "cuda" else ())
    absent = [name for name in wanted if not _importable(name)]
    if importlib.util.find_spec("transformers") is not None:  # kernels alone can do without
        if "torchvision" in absent:
            # Asked first, transformers keeps saying that there is none, and takes no path that would need it.
            _ask_transformers()
        _relax_register()
    sys.meta_path.append(_Absent(absent))


@contextmanager
def while_importing(*names: str) -> Iterator[None]:
    """Stand in for these packages, where absent, in the block alone: elsewhere the engine asks whether they exist."""
    finder = _Absent([name for name in names if not _importable(name)])
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in [module for module in sys.modules if module.split(".")[0] in finder.packages]:
            del sys.modules[module]


def _importable(name: str) -> bool:
    """Whether the import works. torchvision from the index fails beside torch for CPUs: its operators are missing."""
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError, OSError):
        for half in {module for module in sys.modules if module.split(".")[0] == name} - before:
            del sys.modules[half]
        return False
    return True


def _ask_transformers() -> None:
    utils = importlib.import_module("transformers.utils.import_utils")
    for name in ("is_torchvision_available", "is_torchvision_v2_available"):
        getattr(utils, name, lambda: None)()


def _relax_register() -> None:
    mapping = type(importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING)
    register = mapping.register

    def tolerant(self: Any, key: str, value: Any, exist_ok: bool = False) -> None:
        register(self, key, value, exist_ok=True)

    mapping.register = tolerant


class _Absent:
    """Finder, asked last: any module below the given packages is there, and any name in it is a ``_Nothing``."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = frozenset(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    """Serves as annotation, base class and decorator, so that a module's definitions run; computes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __call__(self, *given: Any, **named: Any) -> Any:
        alone = len(given) == 1 and not named and callable(given[0]) and not isinstance(given[0], _Nothing)
        return given[0] if alone else _Nothing()

    def __getitem__(self, _key: Any) -> Any:
        return _Nothing()

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __or__(self, _other: Any) -> Any:
        return self

    __ror__ = __or__
