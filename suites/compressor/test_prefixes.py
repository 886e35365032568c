"""Compressed entries of sequences that start from cached pages (INV-30)."""

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.oracle import compressor, layer_stages
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

QUANTISED_ROW = 0.08
"""Error of a quantised row in units of its length, at most: 1/16 of each element, and bf16 roundings. An entry that
lacks its overlap, or pools other tokens, is off by about its own length."""


@requirement("INV-30", on=("AttentionLayer",), cases="compressed_prefixes")
def test_a_cached_prefix_continues_like_the_whole(subject: Subject, case: LayerCase) -> None:
    """INV-30: after a fork at a multiple of 256 every sequence stores the entries of its own whole stream."""
    run = LayerRun(subject, case).run(judge=False)
    for sequence in run.streams:
        x = run.x(sequence)
        want = compressor.entries(layer_stages.main_compressor(run.spec), x)
        rows = subject.promised(
            "compressed_rows", run.session.compressed_rows(sequence), (len(x) // case.ratio, 512), torch.float32
        )
        if case.quantised:
            apart = (rows.to(torch.float64) - want).norm(dim=1) / want.norm(dim=1)
            subject.expect(
                (apart <= QUANTISED_ROW).all(),
                f"entry {int(apart.argmax())} of sequence {sequence} is off by {float(apart.max()):.3g} of its length.",
            )
        else:
            subject.close("entries", rows, want, where=f" of sequence {sequence}")
