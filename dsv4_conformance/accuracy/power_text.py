"""Operating characteristics as a table: one per scenario, a row per gate, rates with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsv4_conformance.accuracy.power import Rates
from dsv4_conformance.accuracy.published_gates import Published

HEADINGS = ("gate", "PASS %", "FAIL %", "in doubt %", "passes")


def _rate(rates: Rates, count: int) -> str:
    low, high = rates.interval(count)
    return f"{100 * count / rates.trials:.2f} ({100 * low:.1f}-{100 * high:.1f})"


def _cells(name: str, rates: Rates) -> tuple[str, ...]:
    counts = (rates.passed, rates.failed, rates.doubtful)
    return (name, *(_rate(rates, count) for count in counts), f"{rates.passes:.1f}")


def plain(found: Mapping[str, Mapping[str, Rates]]) -> Iterator[str]:
    """For a terminal."""
    for scenario, gates in found.items():
        rows = [HEADINGS, *(_cells(name, rates) for name, rates in gates.items())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        yield ""
        yield scenario
        for row in rows:
            yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def markdown(found: Mapping[str, Mapping[str, Rates]]) -> Iterator[str]:
    """For a document."""
    for scenario, gates in found.items():
        yield ""
        yield f"**{scenario[:1].upper()}{scenario[1:]}**"
        yield ""
        yield f"| {' | '.join(HEADINGS)} |"
        yield f"|{'---|' * len(HEADINGS)}"
        for name, rates in gates.items():
            yield f"| {' | '.join(_cells(name, rates))} |"


def rules(gates: tuple[Published, ...]) -> Iterator[str]:
    """What the published gates demand, and where that is written."""
    for gate in gates:
        yield f"{gate.name}: {gate.rule}. {gate.source}"
