"""Cases: frozen descriptions of one input. Tensors are derived from them (cases/tensors.py), never stored in them."""

import hashlib
import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

Lengths = Literal["none", "full", "mixed", "zero"]
Data = Literal["normal", "needle", "marker", "edge"]
Sinks = Literal["none", "special", "finite", "zero", "minus_inf", "plus_inf"]
Holes = Literal["none", "some", "many"]
Poison = Literal["nan", "inf", "none"]


def _told(described: Any) -> dict[str, Any]:
    """Fields of a dataclass that differ from their defaults, nested ones likewise."""
    told = {field.name: getattr(described, field.name) for field in fields(described)}
    told = {field.name: told[field.name] for field in fields(described) if told[field.name] != field.default}
    return {name: _told(value) if is_dataclass(value) else value for name, value in told.items()}


class _Described:
    """Canonical text and hash of a frozen dataclass; fields at their default are left out, so that a field added
    later does not rename every case."""

    surface: str

    def label(self) -> str:
        """Short readable form for test ids."""
        raise NotImplementedError

    def canonical(self) -> str:
        """Stable JSON text of the fields that differ from their defaults, class name included."""
        return json.dumps({"kind": type(self).__name__, **_told(self)}, sort_keys=True, separators=(",", ":"))

    def digest(self) -> int:
        """64-bit key of this case: the root of every random stream it uses."""
        return self._digest

    @cached_property
    def _digest(self) -> int:
        return int.from_bytes(hashlib.sha256(self.canonical().encode()).digest()[:8], "little")

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[type-var]


@dataclass(frozen=True)
class ScopeShape:
    """One key scope: ``slots`` stored tokens per batch row, list width ``topk``, tokens per page ``page_size``
    (unused in prefill), and how ``topk_length`` is set: absent, full, mixed (few-key first row), or all zero."""

    slots: int
    topk: int
    page_size: int = 64
    lengths: Lengths = "mixed"


@dataclass(frozen=True)
class AttentionCase(_Described):
    """One call of SparseDecode or SparsePrefill (prefill: b = 1, ``window`` describes the flat kv rows)."""

    surface: str
    b: int
    s_q: int
    h_q: int
    window: ScopeShape
    extra: ScopeShape | None = None
    data: Data = "normal"
    sink: Sinks = "special"
    holes: Holes = "some"
    duplicates: bool = False
    lonely: bool = False
    """The last batch row (prefill: the last query) has no key at all."""
    poison: Poison = "nan"
    strided: bool = True
    """q and indices are non-contiguous views into a buffer with red zones."""
    scale_bits: int = 0
    """Softmax scale = 512**-0.5 * 2**scale_bits."""
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        kind = {"SparseDecode": "decode", "SparsePrefill": "prefill"}.get(self.surface, self.surface)
        scopes = [f"w{self.window.topk}of{self.window.slots}p{self.window.page_size}"]
        if self.extra is not None:
            scopes.append(f"x{self.extra.topk}of{self.extra.slots}p{self.extra.page_size}")
        return f"{kind}-b{self.b}-s{self.s_q}-h{self.h_q}-{'-'.join(scopes)}-{self.data}"


@dataclass(frozen=True)
class FormatCase(_Described):
    """One use of KVPageFormat, IndexKeyFormat or SlotMapping: ``tokens`` rows stored in pages of ``page_size``."""

    surface: str
    tokens: int
    page_size: int
    data: Literal["normal", "tiny", "powers", "zeros", "huge", "wide"] = "normal"
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"{self.surface.lower()}-n{self.tokens}-p{self.page_size}-{self.data}"


@dataclass(frozen=True)
class HeadCase(_Described):
    """One rank's share of the heads: ``n_heads`` over ``tp`` attention-TP ranks, seen from ``rank``."""

    surface: str
    n_heads: int
    tp: int
    rank: int
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"heads{self.n_heads}-tp{self.tp}-rank{self.rank}"


@dataclass(frozen=True)
class RankCase(_Described):
    """An attention call made by one rank: ``heads`` describes the share, ``attention`` the call over all heads."""

    surface: str
    attention: AttentionCase
    heads: HeadCase

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"{self.attention.label()}-{self.heads.label()}"


@dataclass(frozen=True)
class PaddedCase(_Described):
    """An attention call whose ``attention.h_q`` real heads are followed by heads nobody reads, up to ``padded``, whose
    queries hold ``fill`` and whose sinks hold 0, random values or NaN."""

    surface: str
    attention: AttentionCase
    padded: int
    fill: Literal["zero", "random", "nan", "inf"]

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"{self.attention.label()}-padded{self.padded}-{self.fill}"


Case = _Described
"""Any case; those of stateful surfaces are in modules of their own (cases/*_case.py)."""
