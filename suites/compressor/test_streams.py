"""Compressed entries of token streams, however they are cut into calls and shared out (INV-20, 21, 26, 27)."""

import torch

from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.compressor_inputs import Streams, compressor_spec, token_streams
from dsv4_conformance.cases.generator import below
from dsv4_conformance.cases.schedule import longest
from dsv4_conformance.runner.driving import LedCompressor
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

COMPRESSOR = ("Compressor",)


def led(subject: Subject, case: CompressorCase, streams: Streams | None = None) -> LedCompressor:
    """The case's session after its schedule."""
    spec = compressor_spec(case, subject.device)
    return LedCompressor(subject, spec, streams or token_streams(case, subject.device), case.schedule)


@requirement("INV-20", on=COMPRESSOR, cases="cut_streams")
def test_entries_do_not_depend_on_how_the_stream_is_cut(subject: Subject, case: CompressorCase) -> None:
    """INV-20: whatever the calls, each entry is the one that the whole stream defines."""
    led(subject, case).judge()


@requirement("INV-20", on=COMPRESSOR, cases="rejected_drafts")
def test_rejected_drafts_leave_no_trace(subject: Subject, case: CompressorCase) -> None:
    """INV-20: after a verify step of which any number of drafts is kept, entries are those of the kept stream."""
    led(subject, case).judge()


@requirement("INV-21", on=COMPRESSOR, cases="sequences_together")
def test_sequences_in_one_call_stay_apart(subject: Subject, case: CompressorCase) -> None:
    """INV-21: sequences that share calls, at any places of their windows and in any order, have their own entries."""
    led(subject, case).judge()


@requirement("INV-21", on=COMPRESSOR, cases="pooling")
def test_an_entry_depends_on_the_tokens_of_its_slots_alone(subject: Subject, case: CompressorCase) -> None:
    """INV-21: a changed token changes the entries that pool it, at ratio 4 the next one too, and no bit of others."""
    base, length = led(subject, case), longest(case.schedule)
    ((_, _, entries),) = base.entries()
    for token in below(case.digest(), "changed", (3,), length, "cpu").tolist():

        def change(rows: torch.Tensor, token: int = token) -> torch.Tensor:
            return torch.where(torch.arange(len(rows), device=rows.device)[:, None] == token, -rows, rows)

        streams = Streams(case.digest(), case.hidden, length, subject.device, change)
        ((_, _, changed),) = led(subject, case, streams).entries()
        own = token // case.ratio
        pooling = {own, own + 1} if case.ratio == 4 else {own}
        differs = (changed != entries).any(1)
        for entry in range(len(entries)):
            subject.expect(
                bool(differs[entry]) == (entry in pooling),
                f"token {token} changed, and entry {entry} of ratio {case.ratio} "
                + ("did not." if entry in pooling else "did too."),
            )


@requirement("INV-26", on=COMPRESSOR, cases="entry_counts")
def test_an_entry_appears_with_its_last_token(subject: Subject, case: CompressorCase) -> None:
    """INV-26: after S tokens there are floor(S / r) entries; the first comes with token r - 1, also after a cut."""
    session = led(subject, case)  # each call is held to the entries that its tokens complete
    session.judge()


@requirement("INV-27", on=COMPRESSOR, cases="stale_state")
def test_state_of_nan_does_not_reach_a_new_sequence(subject: Subject, case: CompressorCase) -> None:
    """INV-27: state storage that holds NaN before a sequence starts changes none of its entries."""
    led(subject, case).judge()


@requirement("INV-27", on=COMPRESSOR, cases="reused_state")
def test_state_of_a_released_sequence_does_not_reach_the_next(subject: Subject, case: CompressorCase) -> None:
    """INV-27: a sequence that starts in the state of a released one has the entries of a fresh one."""
    led(subject, case).judge()
