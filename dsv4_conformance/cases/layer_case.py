"""Cases of the AttentionLayer surface: one layer, one rank, one schedule. Torch-free."""

from dataclasses import dataclass
from typing import Literal

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.cases.compressor_case import short
from dsv4_conformance.spec.weights import Precision

Sinks = Literal["finite", "special"]


@dataclass(frozen=True)
class LayerCase(_Described):
    """One layer of ``geometry`` with compress ``ratio`` on rank ``rank`` of ``tp``, run through ``schedule``
    (cases/schedule.py). ``sinks``: distinct finite ones, or with -inf and +inf among them. ``path``: the attention path
    that prefills are sent on. ``capacity``: tokens a sequence may reach, 0 = what the schedule needs in whole pages.
    ``workspace_rows``: rows of the workspace that prefills must make do with, 0 = as many as they need."""

    surface: str
    ratio: int
    schedule: str
    geometry: str = "tiny"
    precision: Precision = "float32"
    quantised: bool = False
    tp: int = 1
    rank: int = 0
    sinks: Sinks = "special"
    path: Literal["auto", "paged", "sparse"] = "auto"
    capacity: int = 0
    workspace_rows: int = 0
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        kind = f"C{self.ratio}-{self.geometry}-{'fp32' if self.precision == 'float32' else 'bf16'}"
        cache = "-fp8" if self.quantised else ""
        rank = f"-tp{self.tp}r{self.rank}" if self.tp > 1 else ""
        path = "" if self.path == "auto" else f"-{self.path}"
        rows = f"-rows{self.workspace_rows}" if self.workspace_rows else ""
        return f"{kind}{cache}{rank}{path}{rows}-{short(self.schedule)}"
