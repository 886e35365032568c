"""From a golden's inputs, as bytes, to its results: the exact arithmetic applied to every surface."""

from collections.abc import Callable, Iterator
from functools import cache, partial

from dsv4_conformance.golden.exact import attention, kv_format
from dsv4_conformance.golden.exact.budgets import EXACT, Rules, allowed
from dsv4_conformance.golden.exact.numbers import GRID, bf16_on_grid
from dsv4_conformance.golden.stored import Stored, Tensors
from dsv4_conformance.spec.kv_layout import PageLayout, Ue8m0Floor

ORACLE = "exact-1"
"""Names the definition of the results; a change of it is a change of every golden."""

KERNEL_HEADS = 64
"""A rank of a tensor-parallel layer calls its kernel with this many heads where its own fit (spec §15)."""


def results_of(surface: str, inputs: Tensors, rules: Rules) -> Tensors:
    """The results for the inputs of one golden; ``rules`` sets the error budgets of attention."""
    if surface in ("SparseDecode", "SparsePrefill"):
        return _attention(inputs, _decode_rows(inputs) if surface == "SparseDecode" else _prefill_rows(inputs), rules)
    make: dict[str, Callable[[Tensors], Tensors]] = {
        "KVPageFormat": _kv_pages,
        "IndexKeyFormat": _index_keys,
        "SlotMapping": _slots,
        "HeadLayout": _heads,
    }
    return make[surface](inputs)


def _listed(inputs: Tensors, prefix: str, per_length: int) -> Iterator[tuple[int, ...]]:
    """Per query row, the entries inside its length; ``per_length`` consecutive rows share one."""
    lists, lengths = inputs[f"{prefix}indices"].rows(), inputs.get(f"{prefix}topk_length")
    for row, entries in enumerate(lists):
        yield entries if lengths is None else entries[: lengths.values()[row // per_length]]


def _decode_rows(inputs: Tensors) -> list[list[attention.Row]]:
    """Per query row (batch row first, then query), the keys of the window and of the extra scope (spec §10)."""
    s_q = inputs["q"].shape[1]
    found: list[list[attention.Row]] = [[] for _ in range(inputs["q"].shape[0] * s_q)]
    for prefix in ("window_", "extra_"):
        if f"{prefix}pages" in inputs:
            (size,) = inputs[f"{prefix}page_size"].values()
            read = cache(partial(kv_format.read_row, inputs[f"{prefix}pages"].data, size))
            for keys, entries in zip(found, _listed(inputs, prefix, s_q), strict=True):
                keys += [read(slot) for slot in entries if slot != -1]
    return found


def _prefill_rows(inputs: Tensors) -> list[list[attention.Row]]:
    """Per query, the kv rows it names (spec §11)."""
    rows = inputs["kv"].rows()

    @cache
    def read(place: int) -> attention.Row:
        return tuple(map(bf16_on_grid, rows[place]))

    return [[read(place) for place in entries if 0 <= place < len(rows)] for entries in _listed(inputs, "", 1)]


def _attention(inputs: Tensors, keys_of: list[list[attention.Row]], rules: Rules) -> Tensors:
    queries, heads = inputs["q"].rows(), inputs["q"].shape[-2]
    sink = inputs["sink"].values() if "sink" in inputs else (None,) * heads
    (scale,) = inputs["scale"].values()
    columns: dict[str, list[float]] = {name: [] for name in ("out", "lse", "max_logits")}
    budgets: dict[str, list[float]] = {name: [] for name in columns}
    for row, rows in enumerate(keys_of):
        keys = attention.Keys(rows)
        for h in range(heads):
            answer, room = attention.LONELY, EXACT
            if rows:
                q = tuple(map(bf16_on_grid, queries[row * heads + h]))
                head = attention.head_of(q, keys, sink[h], scale)
                answer = attention.attended(head)
                room = allowed(head, answer, rules)
            columns["out"] += answer.out
            for name in ("lse", "max_logits"):
                columns[name].append(getattr(answer, name))
            for name in budgets:
                budgets[name].append(getattr(room, name))
    shape = (len(keys_of), heads)
    wide = {"out": (*shape, PageLayout.HEAD_DIM)}
    answers = {f"expected_{n}": Stored.of("F64", wide.get(n, shape), x) for n, x in columns.items()}
    return answers | {f"budget_{n}": Stored.of("F64", shape, x) for n, x in budgets.items()}


def _kv_pages(inputs: Tensors) -> Tensors:
    """The pages under each floor rule (those of the other rules only where they differ from the model's), and the
    values of the written rows under the model's rule."""
    pages, (size,), slots = inputs["pages"], inputs["page_size"].values(), inputs["unpack_slots"].values()
    tokens = list(zip(inputs["slots"].values(), inputs["tokens"].rows(), strict=True))
    packed = {floor: kv_format.write_rows(pages.data, size, tokens, floor) for floor in Ue8m0Floor}
    ours = packed.pop(Ue8m0Floor.AMAX_1E_4)
    values = [x / (1 << GRID) for slot in slots for x in kv_format.read_row(ours, size, slot)]
    others = {f"expected_pages_{floor.value}": data for floor, data in packed.items() if data != ours}
    return {
        **{name: Stored("U8", pages.shape, data) for name, data in {"expected_pages": ours, **others}.items()},
        "expected_values": Stored.of("F64", (len(slots), PageLayout.HEAD_DIM), values),
    }


def _index_keys(inputs: Tensors) -> Tensors:
    slots, keys, pages = inputs["slots"].values(), inputs["keys"], inputs["pages"]
    packed = kv_format.write_index_keys(pages.data, list(zip(slots, keys.rows(), strict=True)))
    values = [x for slot in slots for x in kv_format.read_index_key(packed, slot)]
    return {
        "expected_pages": Stored("U8", pages.shape, packed),
        "expected_values": Stored.of("F64", keys.shape, values),
    }


def _slots(inputs: Tensors) -> Tensors:
    tables, found = inputs["page_table"].rows(), {}
    for name, entries in inputs.items():
        if name.startswith("entries_"):
            ratio = int(name.removeprefix("entries_"))
            listed = zip(tables, entries.rows(), strict=True)
            slots = [kv_format.compressed_slot(table, entry, ratio) for table, row in listed for entry in row]
            found[f"expected_slots_{ratio}"] = Stored.of("I64", entries.shape, slots)
    return found


def _heads(inputs: Tensors) -> Tensors:
    """Per (n_heads, tp, rank): the kernel's head count, and the rank's share of heads and sinks (spec §15)."""
    layouts = list(zip(*(inputs[name].values() for name in ("n_heads", "tp", "rank")), strict=True))
    count = [n // tp for n, tp, _ in layouts]
    padded = [n if tp == 1 or n // tp > KERNEL_HEADS else KERNEL_HEADS for n, tp, _ in layouts]
    first = [rank * (n // tp) for n, tp, rank in layouts]
    shape = (len(layouts),)
    named = {"padded_heads": padded, "first_head": first, "local_heads": count}
    return {f"expected_{name}": Stored.of("I64", shape, values) for name, values in named.items()}
