"""Layers that are wrong at an edge only, or in what they do to what they were given; one is right, and frugal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import Convention
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.spec.weights import LayerSpec
from tests.miniatures.layer import Layered


class WeightsRoundedInPlace(Layered):
    """Rounds the weights it was opened with to fp8 at its first step, where they lie."""

    class made(AttentionLayer):
        def before(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
            w = self.spec.weights
            for matrix in (w.wq_a, w.wkv, w.wo_a, w.wo_b):
                matrix.copy_(matrix.to(torch.float8_e4m3fn).float())
            return super().before(x, *rest, **named)


class AnglesShiftedInPlace(Layered):
    """Moves its rope table by a few positions, where it lies."""

    class made(AttentionLayer):
        def before(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
            if not getattr(self, "shifted", False):
                self.shifted = True
                self.table.copy_(self.table * torch.tensor([1.0, -1.0]).repeat(32))
            return super().before(x, *rest, **named)


class FullGraphIsWrong(Layered):
    """A replay that fills its graph gives zeros."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            right = graph.replay

            def replay(segments: Sequence[Any], *rest: Any) -> Any:
                result = right(segments, *rest)
                full = sum(len(segment.x) for segment in segments) == rows
                return result._replace(o=result.o * 0) if full else result

            graph.replay = replay
            return graph


class CaptureWritesLivePages(Layered):
    """Warms its kernels up on the first page that a sequence may own."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            for name, tensor in self.caches.storage().items():
                if not name.startswith("state"):
                    count = len(tensor) // self.sequences.pages.num_pages
                    tensor[count : 2 * count].zero_()
            return graph


class ServedInOneFlavour(Layered):
    """The built-in layer as an engine serves it, bfloat16 on fp8 pages, whose forks and graphs are wrong."""

    surfaces: ClassVar[Mapping[str, Convention]] = {
        **Builtin.surfaces,
        "AttentionLayer": LayerConvention(precisions=("bfloat16",), quantised=(True,)),
    }

    class made(AttentionLayer):
        def fork(self, source: int, target: int, length: int) -> None:
            super().fork(source, target, length)
            self.caches.window.buffer[self.sequences[target].pages] = 0

        def after(self, o: Tensor, meta: Any) -> tuple[Tensor, Tensor]:
            o, out = super().after(o, meta)
            return o.roll(1, 1), out


class ExactRowsInsteadOfPages(Layered):
    """Stores rows as they are where fp8 pages were asked for."""

    def spec(self, spec: LayerSpec) -> LayerSpec:
        return replace(spec, quantised=False)


class GivesOldWindowRowsBack(Layered):
    """Right: keeps the last 136 window rows of a sequence and the ends of its pages, and says so."""

    surfaces: ClassVar[Mapping[str, Convention]] = {
        **Builtin.surfaces,
        "AttentionLayer": LayerConvention(window_history="window"),
    }

    class made(AttentionLayer):
        def step(self, *given: Any, **named: Any) -> Any:
            result = super().step(*given, **named)
            for number, sequence in self.sequences._alive.items():
                old = torch.arange(max(0, sequence.length - 136))
                old = old[old % 256 < 112]
                slots, pool = self._slots(number, old, 1), self.caches.window
                if pool.quantised:
                    kv_format.page_views(pool.pages)[0][slots // 256, slots % 256] = 0x7F
                else:
                    pool.buffer[slots] = math.nan
            return result
