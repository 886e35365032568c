"""Layers that hand a cached prefix on in a wrong way."""

from __future__ import annotations

from typing import Any

from dsv4_conformance.spec.weights import LayerSpec
from tests.miniatures.base import Miniature


class Prefixed(Miniature):
    """The built-in layer, right; subclasses change what a fork does to compressor state."""

    def open_layer(self, spec: LayerSpec) -> Any:
        layer: Any = super().open_layer(spec)
        self.rewire(layer)
        return layer

    def rewire(self, layer: Any) -> None:
        """Nothing."""


class PrefixWithoutState(Prefixed):
    """Starts from cached pages with whatever the state row holds."""

    def rewire(self, layer: Any) -> None:
        layer.caches.resume = lambda source, target, length: None


class PrefixWithTheLatestState(Prefixed):
    """Copies the other sequence's state as it is now, not as it was at the end of the prefix."""

    def rewire(self, layer: Any) -> None:
        def resume(source: int, target: int, length: int) -> None:
            for compressor in layer.caches._compressors():
                rows = compressor.state.view(compressor.rows, -1)
                rows[target] = rows[source]

        layer.caches.resume = resume


class PrefixOnTheOthersStateRow(Prefixed):
    """Goes on in the state row of the sequence that the prefix came from."""

    def rewire(self, layer: Any) -> None:
        fork = layer.sequences.fork

        def shared(source: int, target: int, length: int) -> Any:
            made = fork(source, target, length)
            made.state_row = layer.sequences[source].state_row
            return made

        layer.sequences.fork = shared
