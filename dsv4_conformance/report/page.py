"""The report as one HTML page that needs nothing else: no network, no fonts, no other file.

Three layers keep foreign texts inert: jinja2 escapes them, the script builds its rows from JSON with textContent, and a
Content-Security-Policy lets no script run but the page's own, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import jinja2
from markupsafe import Markup

from dsv4_conformance.report import accuracy, escaping, kinds, performance, plots, plots_time, sections
from dsv4_conformance.report.embedded import cases_data, script_json
from dsv4_conformance.report.faults import FaultTable
from dsv4_conformance.report.folding import Rule, Run
from dsv4_conformance.report.gathering import Gathered, adapter, build, day, device
from dsv4_conformance.report.measured import told
from dsv4_conformance.status import Status

ASSETS = resources.files("dsv4_conformance.report") / "assets"


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (ASSETS / name).read_text(encoding="utf-8")


def environment() -> jinja2.Environment:
    """Templates of this folder, all of them escaped; an undefined name is an error."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"told": told, "day": day, "name": escaping.name, "line": escaping.line}
    made.filters |= {"implementation": adapter, "build": build}
    made.globals |= {
        "device": device,
        "plots": plots,
        "plots_time": plots_time,
        "kinds": kinds,
        "glyph": glyph,
        "Status": Status,
    }
    return made


def shell(template: str, **values: Any) -> str:
    """A page from ``template``, which extends shell.html.j2: style, script, and the policy that allows only them."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_sha256(style)}'; script-src 'sha256-{_sha256(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        environment()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=policy,
            symbols=kinds.symbols(),
            **values,
        )
    )


def glyph(status: Status, small: bool = False) -> Markup:
    """A status as its sign."""
    return Markup('<svg class="glyph{}" role="img" aria-label="{}"><use href="#s-{}"/></svg>').format(
        " small" if small else "", status, status
    )


def render(gathered: Gathered, faults: Sequence[FaultTable] = ()) -> str:
    """The whole page."""
    rules = gathered.rules
    present = [status for status in Status if any(run.counts[status] for run in gathered.runs)]
    areas = [(area, list(mine)) for area, mine in groupby(rules, key=lambda rule: rule.area)]
    return shell(
        "report.html.j2",
        gathered=gathered,
        runs=gathered.runs,
        judged=list(zip(gathered.runs, gathered.verdicts, strict=True)),
        areas=_by_area(areas),
        present=[(status, sum(run.counts[status] for run in gathered.runs)) for status in present],
        groups=[(kind, kinds.KINDS[kind]) for kind in kinds.KINDS],
        facts=sections.facts(gathered),
        failures=sections.failures(gathered),
        debts=sections.debts(gathered),
        left_out=sections.left_out(gathered),
        declared=sections.declared(gathered),
        accuracies=accuracy.accuracies(gathered),
        performance=performance.performance(gathered),
        faults=faults,
        cells=_cells,
        errors=_errors,
        margins=_margins,
        data=Markup(script_json(_data(gathered))),
    )


def _by_area(areas: Sequence[tuple[str, list[Rule]]]) -> list[tuple[str, list[Rule]]]:
    """Requirements by suite, in the order in which the suites first occur."""
    merged: dict[str, list[Rule]] = {}
    for area, rules in areas:
        merged.setdefault(area, []).extend(rules)
    return list(merged.items())


def _data(gathered: Gathered) -> dict[str, Any]:
    return {
        "runs": [{"mark": run.mark, "label": run.label, "leftOut": run.left_out} for run in gathered.runs],
        "kinds": {str(status): kinds.kind_of(status) for status in Status},
        "margins": {
            rule.id: [
                None if (mine := run.rules.get(rule.id)) is None else _least_first(mine.margins)
                for run in gathered.runs
            ]
            for rule in gathered.rules
        },
        **cases_data(gathered),
    }


def _least_first(margins: dict[str, float]) -> list[list[Any]]:
    return [[name, float(f"{value:.3g}")] for name, value in sorted(margins.items(), key=lambda found: found[1])]


def _cells(runs: Sequence[Run], rule: str) -> list[dict[str, Any] | None]:
    """Per run the requirement's worst status and how many cases have it; None where it was not planned."""
    return [_cell(run.rules[rule]) if rule in run.rules else None for run in runs]


def _cell(rule: Rule) -> dict[str, Any]:
    status = rule.status
    told_ = ", ".join(f"{number} {name}" for name, number in sorted(rule.counts.items()) if number)
    return {"status": status, "count": rule.counts[status], "cases": rule.cases, "told": told_}


def _errors(runs: Sequence[Run], rule: str) -> Markup:
    mine = [run.rules.get(rule) for run in runs]
    if all(found is None or found.worst is None for found in mine):
        return Markup("")
    return plots.errors([None if found is None else (found.bins, found.worst) for found in mine])


def _margins(runs: Sequence[Run], rule: str) -> Markup:
    mine = [run.rules.get(rule) for run in runs]
    if not any(found and found.margins for found in mine):
        return Markup("")
    return plots.margin_dots([None if found is None else found.margins for found in mine])


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
