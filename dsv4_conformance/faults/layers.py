"""The built-in layer with parts that can be exchanged: what faults of whole layers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.sessions import LayerSession
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.step import Run
from dsv4_conformance.spec.weights import LayerSpec


class Layered(Builtin):
    """The built-in layer, right; subclasses open it otherwise, name classes for its parts, or change a part."""

    touches: ClassVar[tuple[str, ...]] = ("AttentionLayer",)
    made: ClassVar[type[AttentionLayer]] = AttentionLayer
    attends: ClassVar[type[Attention]] = Attention

    def spec(self, spec: LayerSpec) -> LayerSpec:
        """What the layer is opened with."""
        return spec

    def change(self, layer: AttentionLayer) -> None:
        """Change a part of the opened layer."""

    def open_layer(self, spec: LayerSpec) -> LayerSession:
        """AttentionLayer with the parts exchanged."""
        layer: Any = super().open_layer(self.spec(spec))
        layer.__class__, layer.attention.__class__ = self.made, self.attends
        self.change(layer)
        opened: LayerSession = layer
        return opened


class Stepping(AttentionLayer):
    """A layer whose metadata is changed before it is used."""

    kind: ClassVar[type[DSV4Metadata]] = DSV4Metadata

    def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
        """Change what a step goes by; ``runs`` are its sequences, in the order of rows."""

    def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
        """The step's metadata, changed."""
        meta = super().metadata(runs, padded_rows)
        meta.__class__ = self.kind
        self.listed(meta, runs)
        return meta


class Kernels:
    """A layer's own kernels, right; subclasses change the queries before, or the output after."""

    def __init__(self, right: Any) -> None:
        self._right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    def before(self, q: Tensor) -> Tensor:
        """The queries that are attended with."""
        return q

    def after(self, out: Tensor) -> Tensor:
        """The output that is returned."""
        return out

    def paged(self, q: Tensor, *rest: Any) -> Tensor:
        """Over lists of slots."""
        return self.after(self._right.paged(self.before(q), *rest))

    def rows(self, q: Tensor, *rest: Any) -> Tensor:
        """Over rows."""
        return self.after(self._right.rows(self.before(q), *rest))


def patch(part: Any, **attributes: Any) -> None:
    """Give one object attributes, methods among them, in place of its own or its class's."""
    vars(part).update(attributes)
