"""What the oracle cannot answer: values in a dump for which no output is right or wrong (spec §8, §10)."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.judge.stores import Store
from dsv4_conformance.oracle.attention import Scope

BATCH = 1 << 16
"""Keys looked at together."""


def check_values(dump: Dump, rows: Tensor) -> None:
    """Raise BadInput with one sentence if the rows int64 ``rows`` of the dump have no defined answer.

    That is: a length outside its list, an index inside the length that the dump holds no key for (decode), NaN or
    infinity in a query or in a key that is named, or NaN in a sink.
    """
    sink = dump.problem.sink
    if sink is not None and bool(sink.isnan().any()):
        head = int(sink.isnan().nonzero()[0])
        raise BadInput(f"sink holds NaN at head {head}, so the answer is undefined; {_REAL_HEADS}.")
    broken = ~dump.problem.q[rows].isfinite().all(-1)
    if bool(broken.any()):
        row, head = broken.nonzero()[0].tolist()
        where = f"{dump.row_name(int(rows[row]))}, head {head}"
        raise BadInput(f"q holds NaN or infinity at {where}, so the answer is undefined; {_REAL_HEADS}.")
    for store, scope in zip(dump.stores, dump.problem.scopes, strict=True):
        _check_scope(dump, store, scope.rows(rows), rows)


_REAL_HEADS = "if that is a padded head, save the real heads only"


def list_name(store: Store) -> str:
    """The tensor that holds a scope's lists."""
    return "indices" if store.name == "kv" else f"{store.name}_indices"


def _check_scope(dump: Dump, store: Store, scope: Scope, rows: Tensor) -> None:
    lists, width = list_name(store), scope.indices.shape[1]
    if scope.length is not None:
        off = (scope.length < 0) | (scope.length > width)
        if bool(off.any()):
            at = int(off.nonzero()[0])
            name = lists.replace("indices", "topk_length")
            raise BadInput(
                f"{name} is {int(scope.length[at])} at {dump.row_name(int(rows[at]))}, but {lists} has {width} entries "
                "per row; a length lies between 0 and that."
            )
    valid = scope.valid()
    missing = valid & ~store.holds(scope.indices.to(torch.int64))
    if bool(missing.any()):
        row, place = missing.nonzero()[0].tolist()
        slot = int(scope.indices[row, place])
        where = f"{dump.row_name(int(rows[row]))}, place {place}, inside the length"
        raise BadInput(f"{lists} names {store.where(slot)} at {where}, but {_held(store)}.")
    slots = torch.unique(scope.indices[valid].to(torch.int64))
    for part in torch.split(slots, BATCH):
        bad = ~store.fetch(part).isfinite().all(-1)
        if bool(bad.any()):
            slot = int(part[bad][0])
            row, place = (valid & (scope.indices == slot)).nonzero()[0].tolist()
            raise BadInput(
                f"the key in {store.where(slot)} of the {store.name} holds NaN or infinity, and {lists} names it "
                f"at {dump.row_name(int(rows[row]))}, place {place}, so the answer is undefined: see who wrote it."
            )


def _held(store: Store) -> str:
    """What the dump holds instead, and what that means."""
    count = len(store.ids)
    if not count:
        return f"the dump holds no key of the {store.name}; save the pages or rows that the lists name"
    if count * store.size == store.slots:
        what = "slots" if store.paged else "rows"
        return (
            f"the cache in the dump has {what} 0 to {store.slots - 1}, and what a kernel reads outside it is undefined"
        )
    return f"that page is not among the {count} of {store.name}_page_ids; save every page that the lists name"
