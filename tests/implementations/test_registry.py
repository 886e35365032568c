"""Names, modules and devices: what the registry finds, and the one sentence it says when it finds nothing."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import gpus, registry
from dsv4_conformance.implementations.api import Identity, Implementation
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.flash_mla import FlashMLA

ROOT = Path(__file__).resolve().parents[2]

ADAPTER = """
from dsv4_conformance.implementations.api import AttentionConvention, Identity, Implementation

class MyKernel(Implementation):
    identity = Identity("mine", "3.1", "https://example.org")
    devices = ("cpu",)
    surfaces = {"SparseDecode": AttentionConvention(h_q=(64,), topk_multiple=64)}

    def decode(self, call):
        return call

not_a_class = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def sentence(name: str) -> str:
    """What load says about ``name``; always one line that ends in a full stop."""
    with pytest.raises(BadInput) as caught:
        registry.load(name)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return said


def test_shipped_names() -> None:
    assert registry.load("builtin") is Builtin
    assert registry.load("flash_mla") is FlashMLA


def test_adapter_in_the_working_directory(here: Path) -> None:
    (here / "my_adapter.py").write_text(ADAPTER)
    found = registry.load("my_adapter:MyKernel")
    assert (found.__name__, found.identity.version) == ("MyKernel", "3.1")
    assert registry.check_device(found, "auto") == "cpu"


def test_adapter_in_a_package_s_nested_class(here: Path) -> None:
    (here / "vendor").mkdir()
    (here / "vendor" / "kernels.py").write_text(f"{ADAPTER}\nclass Holder:\n    Kernel = MyKernel\n")
    assert registry.load("vendor.kernels:Holder.Kernel").identity.name == "mine"


# Kills: entry points ignored, and entry points that may replace a shipped adapter.
def test_entry_points_add_names_and_cannot_take_over_shipped_ones(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "my_adapter.py").write_text(ADAPTER)
    announced = [
        metadata.EntryPoint(name, "my_adapter:MyKernel", registry.GROUP) for name in ("vendor_kernel", "builtin")
    ] + [metadata.EntryPoint("broken", "nowhere:Kernel", registry.GROUP)]
    asked = []

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return announced

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert registry.load("vendor_kernel").__name__ == "MyKernel"
    assert registry.load("builtin") is Builtin
    listed = dict(registry.list_implementations())
    assert list(listed) == sorted({*registry.BUILT_IN, "broken", "vendor_kernel"})
    assert listed["flash_mla"] is FlashMLA
    assert "no module 'nowhere'" in str(listed["broken"])
    assert set(asked) == {"dsv4_conformance.implementations"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bultin", ["'bultin'", "did you mean 'builtin'?", "builtin, flash_mla", "module:attr"]),
        ("zzz", ["no implementation is called 'zzz'; known are"]),
        (":Kernel", ["no module:attr"]),
        ("my_adapter:", ["no module:attr"]),
        ("absent:Kernel", ["no module 'absent'", "install it or change directory"]),
        ("my_adapter:MyKernal", ["has no 'MyKernal'", "did you mean 'MyKernel'?"]),
        ("my_adapter:MyKernel.inner", ["has no 'MyKernel.inner'"]),
        ("my_adapter:not_a_class", ["is a int, no class", "derive a class from api.Implementation"]),
        ("my_adapter:Identity", ["class Identity, no adapter"]),
        ("needs_engine:Kernel", ["needs_engine raised ModuleNotFoundError: No module named 'some_engine'"]),
        ("raises:Kernel", ["raises raised RuntimeError: two lines of it"]),
        ("exits:Kernel", ["exits raised SystemExit: 3"]),
        ("typo:Kernel", ["typo raised SyntaxError"]),
    ],
)
def test_what_cannot_be_loaded_is_explained(here: Path, name: str, says: list[str]) -> None:
    (here / "my_adapter.py").write_text(ADAPTER)
    (here / "needs_engine.py").write_text("import some_engine")
    (here / "raises.py").write_text("raise RuntimeError('two lines\\nof it')")
    (here / "exits.py").write_text("raise SystemExit(3)")
    (here / "typo.py").write_text("def")
    said = sentence(name)
    assert [part for part in says if part not in said] == [], said


class Anywhere(Implementation):
    identity: ClassVar[Identity] = Identity("anywhere", "1", "https://example.org")


class GpuOnly(Anywhere):
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    compute_capabilities: ClassVar[tuple[tuple[int, int], ...]] = ((9, 0), (10, 0))


class CpuOnly(Anywhere):
    devices: ClassVar[tuple[str, ...]] = ("cpu",)


@pytest.mark.parametrize(
    ("cls", "requested", "visible", "device"),
    [
        (Anywhere, "auto", {}, "cpu"),
        (Anywhere, "auto", {"GPU-1": (7, 5)}, "cuda"),
        (Anywhere, "cpu", {"GPU-1": (7, 5)}, "cpu"),
        (Anywhere, "cuda", {"GPU-1": (7, 5)}, "cuda"),
        (CpuOnly, "auto", {"GPU-1": (9, 0)}, "cpu"),
        (GpuOnly, "auto", {"GPU-1": (9, 0), "GPU-2": (10, 0)}, "cuda"),
    ],
)
def test_device(
    monkeypatch: pytest.MonkeyPatch,
    cls: type[Implementation],
    requested: str,
    visible: dict[str, tuple[int, int]],
    device: str,
) -> None:
    see(monkeypatch, visible)
    assert registry.check_device(cls, requested) == device


@pytest.mark.parametrize(
    ("cls", "requested", "visible", "says"),
    [
        (GpuOnly, "auto", {}, "'anywhere' needs a GPU"),
        (GpuOnly, "cuda", {}, "none is visible"),
        (Anywhere, "cuda", {}, "CUDA_VISIBLE_DEVICES"),
        (GpuOnly, "cpu", {"GPU-1": (9, 0)}, "does not run on cpu; use cuda"),
        (CpuOnly, "cuda", {"GPU-1": (9, 0)}, "does not run on cuda; use cpu"),
        (
            GpuOnly,
            "auto",
            {"GPU-1": (9, 0), "GPU-2": (8, 6)},
            "declares compute capability 9.0, 10.0, and GPU-2 has 8.6",
        ),
        (Anywhere, "cuda:1", {"GPU-1": (9, 0)}, "'cuda:1' is unknown; use auto, cpu or cuda"),
    ],
)
def test_device_that_is_not_there_is_explained(
    monkeypatch: pytest.MonkeyPatch,
    cls: type[Implementation],
    requested: str,
    visible: dict[str, tuple[int, int]],
    says: str,
) -> None:
    see(monkeypatch, visible)
    with pytest.raises(BadInput) as caught:
        registry.check_device(cls, requested)
    assert says in str(caught.value)


def see(monkeypatch: pytest.MonkeyPatch, visible: dict[str, tuple[int, int]]) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: list(visible))
    monkeypatch.setattr(gpus, "compute_capability", lambda uuid: visible[uuid])


def test_resolving_shipped_adapters_imports_neither_torch_nor_an_engine() -> None:
    program = (
        "import sys; from dsv4_conformance.implementations import registry;"
        "listed = registry.list_implementations();"
        "assert all(isinstance(found, type) for _, found in listed), listed;"
        "sys.exit('torch' in sys.modules or 'flash_mla' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_long_complaint_of_an_import_is_cut(here: Path) -> None:
    (here / "verbose_adapter.py").write_text("raise RuntimeError('why \\udcff ' * 10_000)\n")
    said = sentence("verbose_adapter:MyKernel")
    assert len(said) < 500 and r"RuntimeError: why \udcff why" in said


# Kills: the class blamed where the name before the colon is that of a folder.
def test_a_folder_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"a_folder is a folder and no module; .* such as a_folder_adapter:MyKernel\.$"):
        registry.load("a_folder:MyKernel")
