"""Chunks of a prefill over a workspace of fixed size: they fit, they cover, and nothing is cut (INV-143 to INV-145)."""

from typing import Any

from dsv4_conformance.cases.extent_case import PlannerCase
from dsv4_conformance.cases.extent_inputs import budget, needed_rows, smallest_budget
from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

PLANNER = ("Planner",)
Chunk = list[tuple[int, int, int]]


def _planned(planner: Opened, case: PlannerCase) -> list[tuple[Any, Chunk]]:
    """Each chunk as the planner gave it, and its (request, start, count) pieces."""
    found = []
    for chunk in planner.plan(case.seq_lens, case.extend_lens):
        try:
            pieces = [(int(piece.request), int(piece.start), int(piece.count)) for piece in chunk]
        except (AttributeError, TypeError, ValueError) as error:
            raise ContractViolation(f"plan returned no chunks of pieces (request, start, count): {error}.") from error
        found.append((chunk, pieces))
    return found


@requirement("INV-143", on=PLANNER, cases="planned_batches")
def test_every_planned_chunk_fits_the_workspace(subject: Subject, case: PlannerCase) -> None:
    """INV-143: counted as the gather counts, entries and window rows in the layer that gathers most; what is asked
    of the workspace never exceeds what was reserved, batch after batch."""
    rows = budget(case)
    planner = subject.open("open_planner", rows, case.ratios)
    subject.expect(planner.reserved() <= rows, f"{planner.reserved()} rows were reserved; {rows} were given.")
    reserved = planner.reserved()
    for parts in (case.parts, 1):  # the second batch is another
        batch = (
            case if parts == case.parts else case.with_(seq_lens=case.seq_lens[:1], extend_lens=case.extend_lens[:1])
        )
        for chunk, pieces in _planned(planner, batch):
            needed = needed_rows(case.ratios, [(start + count, count) for _, start, count in pieces])
            subject.expect(needed <= reserved, f"chunk {pieces[:3]} gathers {needed} rows; {reserved} are reserved.")
            asked = planner.rows(chunk)
            subject.expect(
                needed <= asked <= reserved, f"chunk {pieces[:3]} asks for {asked} rows and gathers {needed}."
            )
        subject.expect(planner.reserved() == reserved, "the workspace was reserved anew while batches ran.")


@requirement("INV-144", on=PLANNER, cases="planned_batches")
def test_a_plan_takes_every_new_token_once(subject: Subject, case: PlannerCase) -> None:
    """INV-144: the chunks, in their order, take the new tokens of each request one after the other, all of them."""
    planner = subject.open("open_planner", budget(case), case.ratios)
    next_of = [length - new for length, new in zip(case.seq_lens, case.extend_lens, strict=True)]
    for _, pieces in _planned(planner, case):
        subject.expect(bool(pieces), "a chunk is empty.")
        requests = [request for request, _, _ in pieces]
        subject.expect(len(set(requests)) == len(requests), f"a chunk names a request twice: {pieces[:6]}.")
        for request, start, count in pieces:
            subject.expect(0 <= request < len(next_of), f"request {request} is none of {len(next_of)}.")
            subject.expect(
                count > 0 and start == next_of[request],
                f"request {request} goes on at {start} with {count} tokens; {next_of[request]} is next.",
            )
            next_of[request] = start + count
    left = [f"{r} at {at}" for r, (at, end) in enumerate(zip(next_of, case.seq_lens, strict=True)) if at != end]
    subject.expect(not left, f"requests {', '.join(left[:4])} are not finished, or have tokens too many.")


@requirement("INV-145", on=PLANNER, cases="planned_batches")
def test_what_fits_no_chunk_is_refused(subject: Subject, case: PlannerCase) -> None:
    """INV-145: one row less than a token gathers alone is an error, as are no rows; a batch that fits runs after it."""
    smallest = smallest_budget(case)
    longest = max(range(len(case.seq_lens)), key=lambda r: needed_rows(case.ratios, [(case.seq_lens[r], 1)]))
    planner = subject.open("open_planner", smallest, case.ratios)
    subject.expect(bool(_planned(planner, case)), "a workspace that holds each token was planned without a chunk.")
    subject.refused("open_planner", 0, case.ratios)
    if smallest > 1:
        tight = subject.open("open_planner", smallest - 1, case.ratios)
        tight.refused("plan", case.seq_lens, case.extend_lens)
        others = [r for r in range(len(case.seq_lens)) if case.seq_lens[r] < case.seq_lens[longest]]
        fitting = [r for r in others if needed_rows(case.ratios, [(case.seq_lens[r], 1)]) < smallest]
        if fitting:
            lens, new = ([row[r] for r in fitting] for row in (case.seq_lens, case.extend_lens))
            chunks = tight.plan(lens, new)
            taken = sum(int(piece.count) for chunk in chunks for piece in chunk)
            subject.expect(taken == sum(new), "after a refused batch another one is planned in part.")
