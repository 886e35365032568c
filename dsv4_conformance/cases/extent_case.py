"""Cases about extents: formulas, plans over a bounded workspace, prompts that begin alike. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_conformance.cases.case import _Described
from dsv4_conformance.spec.weights import Precision


@dataclass(frozen=True)
class FormulaCase(_Described):
    """The formula ``name`` of spec/formulas.py at points around every width that an integer or a float may have."""

    surface: str
    name: str
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return self.name


@dataclass(frozen=True)
class PlannerCase(_Described):
    """A batch of requests, and a workspace that holds 1 / ``parts`` of what it gathers at once, or, if that is more,
    what its largest token gathers alone; ``ratios``: of the layers that the workspace serves."""

    surface: str
    seq_lens: tuple[int, ...]
    extend_lens: tuple[int, ...]
    parts: int = 2
    ratios: tuple[int, ...] = (0, 4, 128)
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        ratios = ".".join(map(str, self.ratios))
        return f"plan{len(self.seq_lens)}-to{max(self.seq_lens)}-new{max(self.extend_lens)}-of{self.parts}-C{ratios}"


@dataclass(frozen=True)
class PrefixCase(_Described):
    """Two prompts of ``first`` and ``second`` tokens on a layer of ``ratio``, ``shared`` of them the same in both;
    ``again``: after the first difference the ids are the same again, not so what they stand for. ``alive``: the first
    sequence still lives when the second begins."""

    surface: str
    ratio: int
    first: int
    second: int
    shared: int
    again: bool = False
    alive: bool = False
    precision: Precision = "float32"
    quantised: bool = False
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        flavour = ("fp32" if self.precision == "float32" else "bf16") + ("-fp8" if self.quantised else "")
        more = ("-again" if self.again else "") + ("-alive" if self.alive else "")
        return f"C{self.ratio}-{flavour}-{self.first}and{self.second}share{self.shared}{more}"
