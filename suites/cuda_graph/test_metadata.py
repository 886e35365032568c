"""Metadata of a step and what a graph replay does to it (INV-78, INV-79, INV-81)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.state_case import MetadataCase
from dsv4_conformance.cases.state_inputs import step_batch
from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.implementations.api import MetadataConvention
from dsv4_conformance.implementations.state_api import StepBatch
from dsv4_conformance.oracle import sparse_prefill as definition
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

METADATA = ("GraphMetadata",)
EVENTS = {"copy": "copy_", "refresh": "refresh_"}
READ_IN_GRAPHS = {"raw_out_loc", "seq_lens", "positions", "c4_out_loc", "c128_out_loc"}
"""Fields, by the last part of their name, that captured kernels read in either kind of graph (spec §14.1)."""
SELECTED_IN_GRAPHS = {"c4_sparse_page_indices", "c4_sparse_raw_indices"}
"""Fields that a captured indexer has written when a graph breaks for attention (spec §14.1)."""


def _declared(subject: Subject) -> MetadataConvention:
    convention = subject.implementation.surfaces["GraphMetadata"]
    return convention if isinstance(convention, MetadataConvention) else MetadataConvention()


def _steps(subject: Subject, case: MetadataCase) -> tuple[StepBatch, StepBatch]:
    """The case's steps, with an index_topk that the adapter takes."""
    topk = _declared(subject).index_topk
    chosen = case.index_topk if topk is None or case.index_topk in topk else topk[0]
    before, after = (step_batch(case, step, subject.device) for step in ("before", "after"))
    return replace(before, index_topk=chosen), replace(after, index_topk=chosen)


def _lists(metadata: Opened, ratio: int) -> list[Tensor]:
    """The tensors of ``lists``, None left out."""
    return [tensor for tensor in metadata.lists(ratio) if tensor is not None]


def _named(what: str, slots: Any, lengths: Any, batch: StepBatch) -> list[tuple[int, list[int]]]:
    """Per row its length and the sorted slots within it, holes left out; ContractViolation for the wrong shapes."""
    rows = len(batch.seq_lens)
    for name, tensor, ndim in (("slots", slots, 2), ("lengths", lengths, 1)):
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.int32 or tensor.ndim != ndim or len(tensor) != rows:
            raise ContractViolation(f"{what} {name} are no int32 tensor with one row for each of {rows} rows.")
    return [
        (length, sorted(slot for slot in row[: max(length, 0)] if slot != -1))
        for row, length in zip(slots.tolist(), lengths.tolist(), strict=True)
    ]


def _describes(subject: Subject, metadata: Opened, batch: StepBatch, why: str) -> None:
    """Fail unless the lists of every ratio name each row's keys, and none for rows of nobody."""
    pages = batch.page_table.tolist()
    nobody = [0] if _declared(subject).nobody == "page 0" else []
    for ratio in batch.ratios:
        window, lengths, compressed, counts = metadata.lists(ratio)
        named = _named("window", window, lengths, batch)
        entries = _named("compressed", compressed, counts, batch) if compressed is not None else None
        if ratio and (not isinstance(counts, Tensor) or counts.shape != (len(batch.seq_lens),)):
            raise ContractViolation(f"compressed lengths of ratio {ratio} are no tensor with one for each row.")
        told = counts.tolist() if ratio else []
        for row, seq_len in enumerate(batch.seq_lens):
            where = f"row {row} of {seq_len} tokens, ratio {ratio}, {why}"
            right = [definition.slot(pages[row], p) for p in definition.window(seq_len - 1)] if seq_len else nobody
            subject.expect(named[row][1] == sorted(right), f"{where}: the window names other slots than its own.")
            subject.expect(
                named[row][0] == len(right) or (not seq_len and named[row][0] == 1),
                f"{where}: window length {named[row][0]} where {len(right)} is right.",
            )
            if not ratio:
                continue
            held = definition.entries(seq_len, ratio)
            count = min(held, batch.index_topk) if ratio == 4 else held
            # 1 for none is what kernels that cannot process 0 entries are given: the list holds -1 there.
            right_length = told[row] in {count, max(count, 1)}
            subject.expect(right_length, f"{where}: length {told[row]} where {count} is right.")
            if entries is not None:
                slots = [definition.slot(pages[row], entry, ratio) for entry in range(held)]
                subject.expect(entries[row][1] == sorted(slots), f"{where}: other entries than its own are named.")


def _addresses(metadata: Opened, ratios: tuple[int, ...]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [(x.data_ptr(), tuple(x.shape), x.stride()) for r in ratios for x in _lists(metadata, r)]


@requirement("INV-78", on=METADATA, cases="steps")
def test_refresh_resets_the_chunk_cache(subject: Subject, case: MetadataCase) -> None:
    """INV-78: after copy_ or refresh_ no chunk cache is left, and the metadata describe the new step as metadata made
    for it do, be it longer, shorter or padded."""
    before, after = _steps(subject, case)
    for event, method in EVENTS.items():
        metadata, other = subject.open("build_metadata", before), subject.open("build_metadata", after)
        _describes(subject, metadata, before, "as built")
        subject.expect(metadata.chunk_cache() is None, "metadata just built carry a chunk cache.")
        metadata.attach_chunk_cache(object())
        subject.expect(metadata.chunk_cache() is not None, "an attached chunk cache is not there.")
        getattr(metadata, method)(other.unwrap())
        subject.expect(metadata.chunk_cache() is None, f"the chunk cache of the step before survives {method}.")
        _describes(subject, metadata, after, f"after {event}")


def _mark(fields: dict[str, Any], by: int) -> None:
    """Change the content of every tensor, so that no two steps agree by chance."""
    for tensor in {x.data_ptr(): x for x in fields.values() if isinstance(x, Tensor)}.values():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif tensor.is_contiguous():
            tensor.add_(by)


@requirement("INV-79", on=METADATA, cases="steps")
def test_each_field_changes_as_its_class_says(subject: Subject, case: MetadataCase) -> None:
    """INV-79: a copied field has the new content at its old address, a referenced one is the other's object, a kept one
    is what it was; every field has one class, and what both kinds of graphs read is copied."""
    before, after = _steps(subject, case)
    for event, method in EVENTS.items():
        metadata, other = subject.open("build_metadata", before), subject.open("build_metadata", after)
        mine, theirs, classes = dict(metadata.fields()), dict(other.fields()), dict(metadata.classes(event))
        if set(classes) != set(mine):
            odd = sorted(set(classes) ^ set(mine))
            raise ContractViolation(f"classes({event!r}) and fields() differ in {', '.join(odd)}.")
        for name in mine:
            told, last = f"{name} is declared {classes[name]} at {event}", name.split(".")[-1]
            if last.removesuffix("_casual") in READ_IN_GRAPHS:
                subject.expect(classes[name] == "copied", f"{told}, and captured kernels hold its address.")
            if event == "refresh" and last in SELECTED_IN_GRAPHS:
                subject.expect(classes[name] == "kept", f"{told}, and the captured indexer has just written it.")
        _mark(theirs, 3)
        was = {name: x.clone() if isinstance(x, Tensor) else x for name, x in mine.items()}
        getattr(metadata, method)(other.unwrap())
        for name, now in metadata.fields().items():
            _changed(subject, f"{name} at {event}", classes[name], (mine[name], was[name], theirs[name], now))


def _changed(subject: Subject, where: str, change: str, states: tuple[Any, Any, Any, Any]) -> None:
    """Judge one field: the object before, its content before, the other's object, the object now."""
    mine, was, theirs, now = states
    if not isinstance(mine, Tensor):
        right = {"copied": now == theirs, "referenced": now is theirs, "kept": now == mine}
        subject.expect(right.get(change, False), f"{where} is declared {change} and became {now!r}.")
        return
    same = isinstance(now, Tensor) and now.data_ptr() == mine.data_ptr() and now.shape == mine.shape
    if change == "referenced":
        adopted = isinstance(now, Tensor) and now.data_ptr() == theirs.data_ptr()
        subject.expect(adopted, f"{where} is declared referenced and is not the other's tensor.")
        return
    subject.expect(same, f"{where} is declared {change} and lies at another address.")
    content = was if change == "kept" else theirs
    subject.expect(torch.equal(now, content), f"{where} is declared {change} and holds something else.")


@requirement("INV-79", on=METADATA, cases="steps")
def test_lists_stay_where_captured_kernels_read_them(subject: Subject, case: MetadataCase) -> None:
    """INV-79: shapes and strides follow from rows and page-table width alone, and copy_ leaves every list at its
    address, since a full graph has attention inside."""
    before, after = _steps(subject, case)
    metadata, other = subject.open("build_metadata", before), subject.open("build_metadata", after)
    captured, fresh = _addresses(metadata, before.ratios), _addresses(other, after.ratios)
    subject.expect(
        [a[1:] for a in captured] == [a[1:] for a in fresh],
        "a list has another shape or stride in another step of the same rows and page-table width.",
    )
    metadata.copy_(other.unwrap())
    subject.expect(_addresses(metadata, before.ratios) == captured, "copy_ moved a list that a captured kernel reads.")


@requirement("INV-81", on=METADATA, cases="steps")
def test_padding_rows_of_a_step_name_no_key(subject: Subject, case: MetadataCase) -> None:
    """INV-81: a row of nobody has lengths of 0 (1 at most, with -1 in that place, or with the slot of page 0
    that is declared) and leaves other rows as they are."""
    _, after = _steps(subject, case)
    lens = tuple(n if row % 2 else 0 for row, n in enumerate(after.seq_lens))
    padded = StepBatch(lens, after.page_table, after.index_topk)
    _describes(subject, subject.open("build_metadata", padded), padded, "with rows of nobody")
