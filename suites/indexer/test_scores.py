"""Index keys and scores of the indexer, led through token streams (INV-33, 36)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.compressor_case import IndexerCase
from dsv4_conformance.cases.compressor_inputs import indexer_spec
from dsv4_conformance.cases.generator import below
from dsv4_conformance.oracle import indexer
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.linear import project, turned
from dsv4_conformance.runner.indexing import (
    crowded,
    exact,
    fitted,
    judge_keys,
    judge_scores,
    judge_selections,
    led,
    queries,
    scores_of,
)
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

INDEXER = ("Indexer",)


@requirement("INV-33", on=INDEXER, cases="index_streams")
def test_index_keys_are_the_rotated_entries_of_their_compressor(subject: Subject, case: IndexerCase) -> None:
    """INV-33: stored keys are the index compressor's entries times the Hadamard matrix, or half an fp8 step off."""
    case = fitted(subject, case)
    session = led(subject, case)
    for stretch in session.finish():
        judge_keys(subject, session, stretch)


@requirement("INV-33", on=INDEXER, cases="index_streams")
def test_scores_are_those_of_vectors_that_were_not_rotated(subject: Subject, case: IndexerCase) -> None:
    """INV-33: unquantised scores and selections are those of queries and keys before the Hadamard rotation."""
    session = led(subject, case.with_(quantised=False))
    spec = session.spec
    for stretch in session.finish():
        rows = crowded(session, stretch)
        if not rows.any():
            continue
        assert stretch.qr is not None and stretch.keys is not None
        positions = stretch.positions[rows]
        iq = project(stretch.qr[positions], spec.weights.wq_b).view(len(positions), -1, 128)
        ik = indexer.hadamard(stretch.keys)  # its own inverse: the stored keys before their rotation
        w = indexer.head_weights(spec, stretch.x[positions])
        want = indexer.scores(turned(iq, spec.table, positions), w, ik)
        judge_scores(subject, stretch, rows, want, exact(subject, spec, stretch, rows).noise)
    judge_selections(subject, session)


@requirement("INV-33", on=INDEXER, cases="index_streams")
def test_permuting_the_index_heads_changes_nothing(subject: Subject, case: IndexerCase) -> None:
    """INV-33: heads and their weights in another order give the same scores and selections."""
    case = fitted(subject, case)
    spec = indexer_spec(case, subject.device)
    order = torch.argsort(below(case.digest(), "order", (spec.geometry.index_n_heads,), 2**31, subject.device))
    weights = replace(
        spec.weights,
        wq_b=spec.weights.wq_b.view(len(order), -1)[order].view_as(spec.weights.wq_b),
        weights_proj=spec.weights.weights_proj[order].contiguous(),
    )
    session = led(subject, case, replace(spec, weights=weights))
    for stretch in session.finish():
        rows = crowded(session, stretch)
        if rows.any():
            right = exact(subject, spec, stretch, rows)
            judge_scores(subject, stretch, rows, right.scores, right.noise)
    judge_selections(subject, session, right=spec)


@requirement("INV-36", on=INDEXER, cases="index_opposite")
def test_a_negative_product_contributes_nothing(subject: Subject, case: IndexerCase) -> None:
    """INV-36: heads in pairs of opposite queries: a score is the sum of weight times |product| of the pairs."""
    case = fitted(subject, case)
    spec = indexer_spec(case, subject.device)
    paired = spec.weights.weights_proj.clone()
    paired[1::2] = paired[::2]
    session = led(subject, case, replace(spec, weights=replace(spec.weights, weights_proj=paired)))
    for stretch in session.finish():
        rows = crowded(session, stretch)
        if not rows.any():
            continue
        assert stretch.qr is not None and stretch.keys is not None
        positions = stretch.positions[rows]
        iq = queries(subject, session.spec, stretch.qr[positions], positions)[:, ::2]
        products = (iq @ stretch.keys.to(torch.float64).T).abs()
        w = indexer.head_weights(session.spec, stretch.x[positions])[:, ::2]
        want = (w[..., None] * products).sum(1)
        judge_scores(subject, stretch, rows, want, exact(subject, session.spec, stretch, rows).noise)
    judge_selections(subject, session)


@requirement("INV-36", on=INDEXER, cases="index_opposite")
def test_a_head_of_negative_products_counts_nothing_at_any_weight(subject: Subject, case: IndexerCase) -> None:
    """INV-36: raising the weight of a head 64-fold leaves the scores of keys on its negative side as they are."""
    case = fitted(subject, case)
    spec, found = indexer_spec(case, subject.device), []
    for factor in (1.0, -64.0):
        weights = torch.zeros_like(spec.weights.weights_proj)
        weights[0], weights[1] = spec.weights.weights_proj[0], spec.weights.weights_proj[0] * factor
        session = led(subject, case, replace(spec, weights=replace(spec.weights, weights_proj=weights)))
        judge_selections(subject, session)
        found.append(session.finish())
    for one, other in zip(*found, strict=True):
        rows = crowded(session, one)
        first, second = scores_of(one, rows), scores_of(other, rows)
        if first is None or second is None or not rows.any():
            continue
        assert one.qr is not None and one.keys is not None
        positions = one.positions[rows]
        iq = queries(subject, spec, one.qr[positions], positions)[:, 0]
        product = iq @ one.keys.to(torch.float64).T
        seen = torch.arange(product.shape[1], device=product.device) < visible(positions, 4)[:, None]
        # Head 1 looks the other way: where head 0's product is clearly positive, head 1's is negative.
        silent = seen & (product > product.abs().max() / 20)
        subject.expect(
            torch.equal(first[silent], second[silent]),
            "the weight of a head with a negative product reaches the score.",
        )
