"""NaN came out although none went in: which list entries, that nobody may read, hold it."""

from __future__ import annotations

import torch

from dsv4_conformance.judge.view import RowView


def poisoned_entries(view: RowView) -> list[str]:
    """Entries beyond the length, and slot 0 for holes, that hold NaN or infinity."""
    found = []
    for store, scope in zip(view.dump.stores, view.setting.problem.scopes, strict=True):
        entries, valid = scope.indices[0].to(torch.int64), scope.valid()[0]
        length = len(entries) if scope.length is None else int(scope.length[0])
        for place in (~valid).nonzero()[:, 0].tolist():
            hole = place < length
            slot = 0 if hole else int(entries[place])
            held = bool(store.holds(torch.tensor([slot]))[0])
            if held and not bool(store.fetch(torch.tensor([slot])).isfinite().all()):
                why = "a hole, where a reader of slot 0 meets" if hole else f"beyond the length {length}, which names"
                found.append(f"{store.name} place {place}: {why} NaN or infinity in {store.where(slot)}")
    return found
