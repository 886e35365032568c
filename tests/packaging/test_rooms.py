"""The house's import rules: which room may import which, and how large a module may grow."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "dsv4_conformance"
SHARED = {f"{PACKAGE}.errors", f"{PACKAGE}.status"}
ENGINES = {"flash_mla", "sgl_kernel", "sglang", "transformers", "vllm"}
MAX_LINES = 350


def imports(source: str, module: str, *, top_level_only: bool = False) -> set[str]:
    """Absolute dotted names that ``source``, the text of ``module``, imports; both a and a.b of ``from a import b``.

    With ``top_level_only`` what functions and ``if TYPE_CHECKING:`` blocks import does not count.
    """
    found = set()
    for node in _nodes(ast.parse(source), top_level_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def _nodes(tree: ast.AST, top_level_only: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        if not (top_level_only and deferred):
            yield from _nodes(node, top_level_only)


def within(name: str, room: str) -> bool:
    """Whether the dotted ``name`` is ``room`` or lies in it."""
    return name == room or name.startswith(f"{room}.")


def modules(folder: str) -> list[tuple[Path, str]]:
    """(path, dotted name) of every Python file below ``folder``; an ``__init__`` keeps its last part."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder}/ has no Python files, so the rule checks nothing"
    return [(path, ".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in files]


def outside(names: set[str], room: str, engines: set[str]) -> set[str]:
    """Which of ``names`` a module of the room ``oracle`` or ``mla`` may not import."""
    packages = set(sys.stdlib_module_names) | {"torch"} | engines
    rooms = {f"{PACKAGE}.spec", f"{PACKAGE}.{room}", *SHARED}
    stem = {PACKAGE}  # `from dsv4_conformance import spec` names the package as well
    return {
        name
        for name in names - stem
        if name.split(".")[0] not in packages and not any(within(name, allowed) for allowed in rooms)
    }


@pytest.mark.parametrize("room", ["oracle", "mla"])
def test_oracle_and_mla_import_only_spec(room: str) -> None:
    broken = {
        str(path.relative_to(ROOT)): names
        for path, module in modules(f"{PACKAGE}/{room}")
        # mla/kernels/ is where an engine's kernel is called.
        if (names := outside(imports(path.read_text(), module), room, ENGINES if "kernels" in path.parts else set()))
    }
    assert not broken


def test_suites_import_no_implementation() -> None:
    forbidden = [f"{PACKAGE}.implementations", f"{PACKAGE}.mla", *ENGINES]
    # The types of calls and sessions; no adapter behind them.
    contract = [f"{PACKAGE}.implementations.{name}" for name in ("api", "state_api", "extent_api", "sessions")]
    broken = {
        str(path.relative_to(ROOT)): names
        for path, module in modules("suites")
        if (
            names := {
                name
                for name in imports(path.read_text(), module) - {f"{PACKAGE}.implementations"}
                if any(within(name, room) for room in forbidden)
                and not any(within(name, allowed) for allowed in contract)
            }
        )
    }
    assert not broken


def test_adapters_import_their_engine_lazily() -> None:
    broken = {
        str(path.relative_to(ROOT)): names
        for path, module in modules(f"{PACKAGE}/implementations")
        if (names := {n for n in imports(path.read_text(), module, top_level_only=True) if n.split(".")[0] in ENGINES})
    }
    assert not broken


@pytest.mark.parametrize("room", ["plugin", "cli"])
def test_importing_it_does_not_import_torch(room: str) -> None:
    program = f"import sys, {PACKAGE}.{room}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{PACKAGE}.{room} imports torch when it is imported"


def test_modules_are_small() -> None:
    files = [path for folder in (PACKAGE, "suites", "tests") for path, _ in modules(folder)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


# The checks above are only as good as the import reader.


@pytest.mark.parametrize(
    "source",
    [
        "import dsv4_conformance.mla.heads",
        "from dsv4_conformance import mla",
        "from dsv4_conformance.mla import heads",
        "from ..mla import heads",
        "from ..mla.heads import pad",
        "def f():\n    from dsv4_conformance.mla import heads",
        "if True:\n    import numpy",
    ],
)
def test_reader_sees_a_forbidden_import(source: str) -> None:
    assert outside(imports(source, f"{PACKAGE}.oracle.attention"), "oracle", set())


@pytest.mark.parametrize(
    "source",
    ["from dsv4_conformance import spec", "from . import rope", "from ..spec.layout import PAGE", "import math, torch"],
)
def test_reader_accepts_an_allowed_import(source: str) -> None:
    assert not outside(imports(source, f"{PACKAGE}.oracle.attention"), "oracle", set())


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import vllm", True),
        ("class A:\n    import vllm", True),
        ("try:\n    import vllm\nexcept ImportError:\n    vllm = None", True),
        ("def f():\n    import vllm", False),
        ("if TYPE_CHECKING:\n    import vllm", False),
    ],
)
def test_reader_tells_lazy_imports_apart(source: str, seen: bool) -> None:
    assert ("vllm" in imports(source, "m", top_level_only=True)) is seen
