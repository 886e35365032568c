"""The SGLang adapter where the engine is absent or a few files: what it declares, what it refuses with which sentence.

tests/engines/ has the tests that need the engine.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import sglang, sglang_engine, sglang_release, sglang_standins
from dsv4_conformance.implementations.api import HeadConvention
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.state_api import ChunkCacheConvention

Files = Callable[[dict[str, str]], Path]
CHUNKS = "srt/layers/attention/dsv4/sparse_prefill_utils.py"
MODEL, BACKEND = "srt/models/deepseek_v4.py", "srt/layers/attention/deepseek_v4_backend.py"
OLD = {
    "_version.py": "__version__ = version = '0.5.14'\n",
    MODEL: "class MQALayer:\n    pass\n",
    BACKEND: "class DSV4Metadata:\n    def copy_(self):\n        pass\n",
    CHUNKS: "class SparsePrefillChunkCache:\n    def build(cls):\n        pass\n",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Makes a package of the given files the only sglang that can be found."""

    def make(files: dict[str, str]) -> Path:
        root = tmp_path / "site" / "sglang"
        for name, text in {"__init__.py": "", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.syspath_prepend(str(root.parent))
        importlib.invalidate_caches()
        return root

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


def test_the_adapter_is_known_and_declares_what_holds() -> None:
    found = load("sglang")
    assert found is sglang.SGLang and check_declarations("sglang", found) is found
    assert found.identity.kind == "engine" and any("stood in" in note for note in found.identity.notes)


# Kills: a version taken from the environment's metadata while another release lies on the path.
def test_the_version_is_that_of_the_files_on_the_path(installed: Files) -> None:
    installed(OLD)
    assert sglang_release.version() == "0.5.14"


# Kills: names found in comments or strings; methods that are not looked for in their class.
def test_names_are_those_that_a_module_defines(installed: Files) -> None:
    installed(OLD | {CHUNKS: OLD[CHUNKS] + "# def other(): pass\ntext = 'class Another'\n"})
    has = sglang_release.has
    assert has(sglang_release.CHUNKS, "SparsePrefillChunkCache", "SparsePrefillChunkCache.build")
    assert not has(sglang_release.CHUNKS, "other") and not has(sglang_release.CHUNKS, "Another")
    assert not has(sglang_release.CHUNKS, "build") and not has(sglang_release.HOOK, "build")


# Kills: declarations that follow the version, or that are the same for every release.
def test_declarations_follow_the_files(installed: Files) -> None:
    installed(OLD)
    old: dict[str, Any] = dict(sglang._surfaces())
    assert old["HeadLayout"] == HeadConvention("own place")
    assert old["SparsePrefillChunkCache"] == ChunkCacheConvention("rectangular", "rectangular")
    assert not {"SparsePrefillWorkspace", "GraphMetadata", "SparseDecode"} & set(old)


def test_declarations_follow_newer_files(installed: Files) -> None:
    chunks = OLD[CHUNKS] + "class CompressedGather: pass\nclass SparsePrefillKVBuffer: pass\nrepeat_interleave = 0\n"
    refresh = "    def refresh_for_breakable_cuda_graph_replay_(self): pass\n"
    model = OLD[MODEL] + "self._attn_sink_local = None\n"
    installed(
        OLD | {"_version.py": "__version__ = '0.5.14'", CHUNKS: chunks, BACKEND: OLD[BACKEND] + refresh, MODEL: model}
    )
    new: dict[str, Any] = dict(sglang._surfaces())
    assert new["HeadLayout"] == HeadConvention("first")
    assert new["SparsePrefillChunkCache"].gather == "ragged"
    assert {"SparsePrefillWorkspace", "GraphMetadata"} <= set(new)


# Kills: a missing, old, new or broken installation that ends in a traceback, or is taken.
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"_version.py": "__version__ = '0.5.11'", MODEL: None},
            "no DeepSeek-V4 attention in sglang 0.5.11, which is too old",
        ),
        (
            {"_version.py": "__version__ = '0.5.12'", CHUNKS: None},
            "no sparse prefill in sglang 0.5.12, which is too old",
        ),
        (
            {"_version.py": "__version__ = '0.9.0'", CHUNKS: "x = 1"},
            "no sparse prefill in sglang 0.9.0, which is too new",
        ),
        ({BACKEND: None}, "no DeepSeek-V4 attention in sglang 0.5.14, which is incomplete"),
        ({}, None),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(
    installed: Files, changes: dict[str, str | None], says: str | None
) -> None:
    installed({name: text for name, text in (OLD | changes).items() if text is not None})
    if says is None:
        sglang_engine.check_available()
        return
    with pytest.raises(BadInput, match=says) as raised:
        sglang_engine.check_available()
    assert "pip install --no-deps sglang" in str(raised.value) and "\n" not in str(raised.value)


def test_an_absent_engine_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_release, "folder", lambda: None)
    with pytest.raises(BadInput, match=r"is not installed; install `dsv4-conformance\[sglang\]`"):
        sglang_engine.check_available()


# Kills: a requirement that is missing ends in a traceback, or is blamed on the release; a name that a newer release
# lacks is blamed on the installation.
def test_missing_requirements_and_missing_names_are_told_apart(installed: Files) -> None:
    installed(OLD | {MODEL: "import no_such_requirement\n", "srt/__init__.py": "", "srt/models/__init__.py": ""})
    with pytest.raises(BadInput, match="without the module 'no_such_requirement', which it imports; install what"):
        sglang_engine.module(sglang_release.MODEL)
    with pytest.raises(BadInput, match=r"does not fit sglang 0\.5\.14 \(there is no module sglang\.other\)"):
        sglang_engine.module("sglang.other")
    with pytest.raises(BadInput, match=r"does not fit sglang 0\.5\.14 \(sglang has no wanted and no needed\)"):
        sglang_engine.attribute("sglang", "wanted", "needed")


# Kills: an absent package whose submodules, decorators, annotations or base classes stop an import.
def test_absent_packages_can_be_imported_and_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks.py").write_text(
        "import absent_one.language as language\n"
        "from absent_one.deep import Base, jit\n"
        "@jit\ndef kept(x: language.Tensor | None) -> 'int':\n    return 7\n"
        "@language.tuned(key=1)\ndef wrapped():\n    return 8\n"
        "class Derived(Base):\n    shape = language.shapes[3]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = sglang_standins._Absent(["absent_one"])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    asks = importlib.import_module("asks")
    assert asks.kept(1) == 7 and asks.Derived() is not None
    for name in ("asks", "absent_one", "absent_one.language", "absent_one.deep"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_two")


# Kills: CUDA's packages stood in for on a CPU, where the engine asks whether they exist; one that is there hidden.
def test_what_is_stood_in_for_depends_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_standins, "_importable", lambda name: name == "deep_gemm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for device, absent in (("cpu", set()), ("cuda", {"sgl_kernel", "flash_mla"})):
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        sglang_standins.install(device)
        (finder,) = (finder for finder in sys.meta_path if isinstance(finder, sglang_standins._Absent))
        assert finder.packages == {"torchvision", "tilelang"} | absent
        sys.meta_path.remove(finder)


# Kills: a package that stays importable behind the block, in the table of modules or by the finder.
def test_a_package_can_be_stood_in_for_in_a_block_alone() -> None:
    with sglang_standins.while_importing("absent_three", "json"):
        importlib.import_module("absent_three.deep")
        assert importlib.import_module("json").loads("[1]") == [1]
    assert not any(name.split(".")[0] == "absent_three" for name in sys.modules)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_three")


# Kills: another adapter's name in the sentence; kernels that the release lacks asked for.
@pytest.mark.parametrize("name", ["sglang_unified_decode", "sglang_unified_prefill"])
def test_what_the_unified_kernels_need_is_told_in_their_name(
    name: str, installed: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load(name)
    assert check_declarations(name, adapter) is adapter
    with monkeypatch.context() as patch:
        patch.setattr(sglang_release, "folder", lambda: None)
        with pytest.raises(BadInput, match=f"^implementation '{name}' needs the package sglang"):
            adapter.check_available()
    installed(OLD)
    with pytest.raises(
        BadInput, match=rf"^implementation '{name}' finds no sparse_attn_v4_\w+ in sglang 0\.5\.14; inst"
    ):
        adapter.check_available()
