"""One dumped call as the oracle's problem, with what came out of the server beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.judge.names import METADATA
from dsv4_conformance.judge.reading import Contents, read
from dsv4_conformance.judge.stores import Store, page_store, row_store
from dsv4_conformance.oracle.attention import Problem, Scope

D = 512


@dataclass(frozen=True)
class Dump:
    """``problem``: all rows of the dump, decode rows in the order (batch row, query).

    ``got``: output name -> tensor, rows first: out ``(R, H, 512)``, lse and max_logits ``(R, H)``, natural logarithm,
    +inf lse in lonely rows. ``s_q``: queries per batch row (prefill: 1). ``all_sinks``: the sinks of the whole model,
    if given. ``notes``: metadata that the judge only repeats.
    """

    path: Path
    kind: str
    problem: Problem
    stores: tuple[Store, ...]
    got: dict[str, Tensor]
    s_q: int
    all_sinks: Tensor | None
    row_numbers: Tensor | None
    notes: dict[str, str]

    @property
    def rows(self) -> int:
        """Query rows in the dump."""
        return self.problem.q.shape[0]

    @property
    def heads(self) -> int:
        """Query heads in the dump."""
        return self.problem.q.shape[1]

    def row_name(self, row: int) -> str:
        """``row 5``, with what is known about where it comes from."""
        batch, query = divmod(row, self.s_q)
        if self.row_numbers is not None:
            batch = int(self.row_numbers[batch])
        known = [f"b {batch}", f"query {query}"] if self.s_q > 1 else []
        if self.s_q == 1 and self.row_numbers is not None:
            known = [f"row {batch} of the call"]
        return f"row {row}" + (f" ({', '.join(known)})" if known else "")


def load(path: Path) -> Dump:
    """Read a dump. Raises BadInput (one sentence) if it is unusable, as far as that does not depend on values."""
    contents = read(path)
    scale = contents.number("scale")
    if scale is None:
        raise BadInput(f"the dump has no scale; add the call's softmax scale, usually 512 ** -0.5 = {D**-0.5!r}.")
    if not math.isfinite(scale) or scale == 0:
        raise BadInput(f"scale is {scale}, which is no softmax scale; it is usually 512 ** -0.5 = {D**-0.5!r}.")
    decode = contents.kind == "decode"
    q, out = contents.tensors["q"], contents.tensors["out"]
    stores, scopes = _decode_scopes(contents) if decode else _prefill_scope(contents)
    problem = Problem(q.reshape(-1, *q.shape[-2:]), scopes, contents.tensors.get("sink"), scale)
    got = {"out": out.reshape(-1, *out.shape[-2:])}
    if "lse" in contents.tensors:
        got["lse"] = _normal_lse(contents, decode)
    if "max_logits" in contents.tensors:
        got["max_logits"] = contents.tensors["max_logits"]
    return Dump(
        path,
        contents.kind,
        problem,
        stores,
        got,
        q.shape[1] if decode else 1,
        contents.tensors.get("all_sinks"),
        contents.tensors.get("row_numbers"),
        {key: text for key, text in sorted(contents.metadata.items()) if key not in (*METADATA, "format")},
    )


def with_outputs(dump: Dump, chosen: Sequence[str]) -> Dump:
    """The dump with only some outputs."""
    return replace(dump, got={name: dump.got[name] for name in chosen})


def _normal_lse(contents: Contents, decode: bool) -> Tensor:
    """lse ``(R, H)`` float64 in natural logarithm, +inf in lonely rows.

    What the dump declares otherwise is converted, so that the declared convention is what is checked.
    """
    lse = contents.tensors["lse"].double()
    if decode:
        lse = lse.transpose(1, 2).flatten(0, 1)
    if contents.option("lse_base", "e") == "2":
        lse = lse * math.log(2)
    if contents.option("lonely_lse", "+inf") == "-inf":
        lse = lse.where(lse.isfinite(), -lse)
    return lse


def _prefill_scope(contents: Contents) -> tuple[tuple[Store, ...], tuple[Scope, ...]]:
    store = row_store("kv", contents.tensors["kv"])
    indices = contents.tensors["indices"]
    length = contents.tensors.get("topk_length")
    rows = indices.reshape(len(indices), -1)
    return (store,), (Scope(store.fetch, rows, length, store.slots, store.slots),)


def _decode_scopes(contents: Contents) -> tuple[tuple[Store, ...], tuple[Scope, ...]]:
    s_q = contents.tensors["q"].shape[1]
    stores, scopes = [], []
    for name in ("window", "extra"):
        store = _decode_store(contents, name)
        if store is None:
            continue
        length = contents.tensors.get(f"{name}_topk_length")
        rows = None if length is None else length.repeat_interleave(s_q)
        stores.append(store)
        scopes.append(Scope(store.fetch, contents.tensors[f"{name}_indices"].flatten(0, 1), rows, slots=store.slots))
    return tuple(stores), tuple(scopes)


def _decode_store(contents: Contents, name: str) -> Store | None:
    """The keys of a decode scope, or None if the dump says nothing about it."""
    given = sorted(key for key in (*contents.tensors, *contents.metadata) if key.startswith(f"{name}_"))
    pages, kv = contents.tensors.get(f"{name}_pages"), contents.tensors.get(f"{name}_kv")
    if not given:
        return None
    if f"{name}_indices" not in contents.tensors:
        raise BadInput(f"the dump has {given[0]} but no {name}_indices; a scope is given whole or not at all.")
    if (pages is None) == (kv is None):
        state = "neither of" if pages is None else "both"
        raise BadInput(
            f"the dump has {state} {name}_pages and {name}_kv; give the cache bytes or the dequantised rows."
        )
    if kv is not None:
        return row_store(name, kv)
    assert pages is not None
    size = contents.count(f"{name}_page_size")
    return page_store(name, pages, size, contents.tensors.get(f"{name}_page_ids"))
