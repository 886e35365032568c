"""Writes one case as a stand-alone Python script: the case as data, and the requirement's test from the suite."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.cli.suite_functions import SuiteFunction
from dsv4_conformance.plugin.collection import PlannedItem
from dsv4_conformance.plugin.settings import Settings

_SCRIPT = '''"""{title}

{text}

Written by: dsv4-conformance repro {case_id} --impl {impl} --script FILE. Needs dsv4-conformance, no pytest.
Where the test has a call, subject.build(CASE) gives its tensors, subject.run(call) what the adapter answers,
subject.truth(call) the float64 answer with its error budgets; subject.ask("NAME", ...) calls the adapter's method NAME.
"""

{imports}

IMPLEMENTATION = {impl!r}
DEVICE = {device!r}
CASE = {case}
PLANNED = PlannedCase({case_id!r}, {requirement!r}, {surface!r}, CASE)


{body}


if __name__ == "__main__":
    subject = Session(load(IMPLEMENTATION), DEVICE).subject(PLANNED)
    try:
        {function}(subject, CASE)
    except (ConformanceFailure, NotApplicable) as error:
        sys.exit(f"{case_id}: {{error}}")
    finally:
        for name, value in subject.record()["metrics"].items():
            print(f"{{name:24}} {{value}}")
    print("{case_id}: holds")
'''

_IMPORTS = (
    "import sys",
    "from dsv4_conformance.cases.plan import PlannedCase",
    "from dsv4_conformance.errors import ConformanceFailure, NotApplicable",
    "from dsv4_conformance.implementations.registry import load",
    "from dsv4_conformance.runner.session import Session",
)


def script_of(suite: SuiteFunction, item: PlannedItem, planned: PlannedCase, settings: Settings) -> str:
    """The script's text for a planned case of a suite function."""
    source = inspect.getsource(inspect.getmodule(suite.function) or suite.function)
    kept = _needed(ast.parse(source), suite.name)
    imports = [*_IMPORTS, *(ast.unparse(node) for node in kept if isinstance(node, ast.Import | ast.ImportFrom))]
    imports += [f"from {module} import {name}" for module, name in _classes(planned.case)]
    body = [_segment(source, node) for node in kept if not isinstance(node, ast.Import | ast.ImportFrom)]
    return _SCRIPT.format(
        title=f"{item.requirement.id} [{item.requirement.level}] {item.requirement.title}",
        text="\n".join(textwrap.wrap(item.requirement.text, 110)),
        imports="\n".join(_sorted(imports)),
        impl=settings.options.impl,
        device=settings.device,
        case=literal(planned.case),
        case_id=item.case_id,
        requirement=item.requirement.id,
        surface=item.surface,
        body="\n\n\n".join(body),
        function=suite.name,
    )


def literal(value: Any) -> str:
    """Python text that rebuilds a case; fields at their default are left out."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    told = [f for f in fields(value) if getattr(value, f.name) != f.default]
    return f"{type(value).__name__}({', '.join(f'{f.name}={literal(getattr(value, f.name))}' for f in told)})"


def _classes(value: Any) -> set[tuple[str, str]]:
    """Module and name of every class that ``literal`` writes."""
    if not is_dataclass(value):
        return set()
    inner = (_classes(getattr(value, f.name)) for f in fields(value))
    return {(type(value).__module__, type(value).__name__)}.union(*inner)


def _needed(tree: ast.Module, wanted: str) -> list[ast.stmt]:
    """Statements of a suite module that its function ``wanted`` needs, in their order; imports one name at a time."""
    defined = {name: node for node in tree.body for name, node in _names(node)}
    seen: set[str] = set()
    queue = [wanted]
    while queue:
        name = queue.pop()
        if name in seen or name not in defined:
            continue
        seen.add(name)
        node = defined[name]
        if name == wanted and isinstance(node, ast.FunctionDef):
            node.decorator_list = []  # @requirement speaks to pytest
        queue += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
        # Quoted annotations name classes too.
        queue += [p.value for p in ast.walk(node) if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    kept: list[ast.stmt] = []
    for name, node in defined.items():
        if name in seen and node not in kept:
            kept.append(node)
    return kept


def _names(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a module-level statement defines, each with the statement that defines it alone where that can be."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname or alias.name).split(".")[0], ast.Import([alias])
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, ast.ImportFrom(node.module, [alias], node.level)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node


def _segment(source: str, node: ast.stmt) -> str:
    """The statement as written, without a function's decorators."""
    return ast.get_source_segment(source, node) or ast.unparse(node)


def _sorted(imports: list[str]) -> list[str]:
    """Without repetition; plain imports first, the package's own last."""
    rank = {"import": 0, "from": 1}
    unique = list(dict.fromkeys(imports))
    return sorted(unique, key=lambda line: ("dsv4_conformance" in line, rank[line.split()[0]], line))
