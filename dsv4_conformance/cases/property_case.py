"""Cases of property tests: a session, and how many schedules to draw for it. Torch-free, and without Hypothesis."""

from dataclasses import dataclass

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.layer_case import LayerCase


@dataclass(frozen=True)
class PropertyCase(_Described):
    """``examples`` drawn schedules of at most ``tokens`` tokens, each in the place of the empty one of ``each``.

    The stream of schedules is that of the case's digest: the same in every process. ``each.seed``: weights and tokens.
    """

    surface: str
    each: LayerCase | CompressorCase
    examples: int
    tokens: int

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"{self.each.label().rstrip('-')}-any{self.examples}x{self.tokens}"
