"""A right layer that writes down what is asked of it, for tests of how layer cases are led."""

from typing import Any, ClassVar

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.subject import Subject
from tests.miniatures.base import Miniature

CPU = torch.device("cpu")
CASE = LayerCase("AttentionLayer", 0, "p0:3")


class Recording(Miniature):
    """The built-in layer; what is asked of it is written down, what it returns can be changed."""

    calls: ClassVar[list[tuple[str, Any]]] = []
    changed: ClassVar[dict[str, Any]] = {}

    def open_layer(self, spec: Any) -> Any:
        layer: Any = super().open_layer(spec)
        right, calls = layer.step, self.calls
        calls.clear()

        def step(segments: Any, mode: str = "prefill", padded_rows: int = 0, path: str = "auto") -> Any:
            sent = [(s.sequence, s.x.clone()) for s in segments]
            calls.append(("step", (sent, mode, padded_rows, path)))
            result = right(segments, mode, padded_rows, path)
            return result._replace(**{name: change(getattr(result, name)) for name, change in self.changed.items()})

        def noted(name: str) -> Any:
            method = getattr(layer, name)

            def note(*given: Any) -> Any:
                calls.append((name, given))
                return method(*given)

            return note

        layer.step = step
        for name in ("truncate", "fork", "release", "poison", "capture"):
            setattr(layer, name, noted(name))
        return layer


def subject(adapter: type[Builtin] = Recording) -> Subject:
    return Subject(adapter("cpu"), CPU, "INV-42")
