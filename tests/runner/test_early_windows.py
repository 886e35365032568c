"""Window rows of engines that forget them: read after each step, and judged from what was read."""

from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.runner.layer_run import LayerRun
from tests.runner.recording import CASE, Recording, subject


class Forgets:
    """A layer's session that answers for the last 128 window rows alone."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def window_rows(self, sequence: int, positions: torch.Tensor) -> torch.Tensor:
        assert int(positions.min()) >= self._layer.sequences[sequence].length - 128
        rows: torch.Tensor = self._layer.window_rows(sequence, positions)
        return rows


class Forgetting(Recording):
    """Declares that it forgets."""

    surfaces: ClassVar[Any] = {**Builtin.surfaces, "AttentionLayer": LayerConvention(window_history="window")}

    def open_layer(self, spec: Any) -> Any:
        return Forgets(super().open_layer(spec))


# Kills: window rows read once they are gone; rows judged without the windows that were read; judgement given up; rows
# of rejected drafts taken for those of the tokens that came in their place.
@pytest.mark.parametrize(
    "schedule", ["p0:100 p0:60 d0 v0:3 k0:162 d0", "p0:256 f0>1:256 p1:3+0:2", "p0:10 v0:4 k0:11 p0:200"]
)
def test_window_rows_are_read_while_they_are_there(schedule: str) -> None:
    case = CASE.with_(schedule=schedule, quantised=True)
    assert LayerRun(subject(Forgetting), case).run().subject.record()["checked"]
    Recording.changed = {"o": lambda o: o * 1.5}
    try:
        with pytest.raises(ConformanceFailure, match="o: error"):
            LayerRun(subject(Forgetting), case).run()
    finally:
        Recording.changed = {}


# Kills: stored rows that are read and not looked at.
def test_window_rows_that_are_read_in_time_are_judged() -> None:
    led = LayerRun(subject(Forgetting), CASE.with_(schedule="p0:9", quantised=True))
    layer = led.session.unwrap()
    stored = layer.window_rows
    layer.window_rows = lambda sequence, positions: stored(sequence, positions).roll(1, 0)
    with pytest.raises(ConformanceFailure, match="stored window row 0"):
        led.run()


# Kills: rows of NaN taken for rows that are gone: then nothing that reads them is judged.
def test_window_rows_that_are_read_in_time_are_numbers() -> None:
    led = LayerRun(subject(Forgetting), CASE.with_(schedule="p0:100 d0", quantised=True))
    first, second = steps(led.case.schedule)
    led.do(first)
    layer = led.session.unwrap()
    stored = layer.window_rows
    layer.window_rows = lambda sequence, positions: stored(sequence, positions).masked_fill(
        (positions == 40)[:, None], torch.nan
    )
    with pytest.raises(ConformanceFailure, match="stored window row 40 of sequence 0 is NaN, and the next token sees"):
        led.do(second)
