"""Prompts that begin alike: what a hit gives, what it must not share, and that there is one (INV-146 to INV-148)."""

from dsv4_conformance.cases.extent_case import PrefixCase
from dsv4_conformance.runner.prefixes import AGAIN, FIRST, OTHER_IDS, SECOND, PrefixRun, common
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

PREFIXES = ("PrefixReuse",)


@requirement("INV-146", on=PREFIXES, cases="shared_prefixes")
def test_output_after_a_hit_is_that_of_a_cold_start(subject: Subject, case: PrefixCase) -> None:
    """INV-146: with NaN in all that nobody owns, every row after a hit, decoded ones included, is right; so are those
    of the first sequence when it goes on, and of a third one with its prompt."""
    run = PrefixRun(subject, case)
    run.admit(FIRST)
    run.run(FIRST, decoded=0, judge=False)
    if not case.alive:
        run.session.finish(FIRST)
    run.session.poison()
    run.admit(SECOND)
    run.run(SECOND)
    if case.alive:
        run.advance(FIRST, 1, "decode")
        run.session.finish(FIRST)
    run.session.finish(SECOND)
    run.session.poison()
    run.admit(AGAIN)
    run.run(AGAIN, decoded=1)


@requirement("INV-147", on=PREFIXES, cases="shared_prefixes")
def test_prompts_share_nothing_beyond_their_common_tokens(subject: Subject, case: PrefixCase) -> None:
    """INV-147: a hit is no longer than what two prompts have in common from the start, whatever is equal later, and no
    entry that covers a later token has the same slot in both."""
    run = PrefixRun(subject, case.with_(alive=True))
    run.admit(FIRST)
    run.run(FIRST, decoded=0, judge=False)
    hit = run.admit(SECOND)
    common = min(case.shared, case.first)
    subject.expect(hit <= common, f"{hit} tokens were taken from a prompt that has {common} in common.")
    run.run(SECOND, decoded=1, judge=False)
    first, second = run.slots(FIRST), run.slots(SECOND)
    for entry, slot in enumerate(second):
        if slot in first:
            end = max(entry, first.index(slot)) * case.ratio + case.ratio
            subject.expect(end <= common, f"slot {slot} is shared and covers tokens to {end}; {common} are common.")
    subject.expect(len(set(second)) == len(second), "a sequence has two entries in one slot.")


@requirement("INV-147", on=PREFIXES, cases="pieced_prompts")
def test_a_prompt_pieced_together_hits_what_it_begins_with(subject: Subject, case: PrefixCase) -> None:
    """INV-147: beside three prompts that the cache may hold, others are looked up: their pages put together anew, and
    one of them with one token changed, at each of its places. A hit is no longer than what begins like one of the
    three: whatever a page is known by, all tokens before it are part of that."""
    run = PrefixRun(subject, case)
    unit = run.granularity
    first, second = (run.prompt(sequence) for sequence in (FIRST, SECOND))
    third = first[:unit] + second[unit : 2 * unit] + tuple(range(2 * OTHER_IDS, 2 * OTHER_IDS + len(first)))
    third = third[: len(first)]
    held = {FIRST: first, SECOND: second, AGAIN: third}
    for sequence, ids in held.items():
        run.hold(sequence, ids)
        if sequence != AGAIN:
            run.session.finish(sequence)
    ends = range(unit, len(first), unit)
    asked = [one[:end] + other[end:] for end in ends for one in held.values() for other in held.values()]
    asked += [(*first[:place], OTHER_IDS * 3, *first[place + 1 :]) for place in range(len(first))]
    for ids in dict.fromkeys(asked):
        found, begins = run.session.lookup(ids), max(common(ids, other) for other in held.values())
        subject.expect(
            isinstance(found, int) and found <= begins,
            f"{found} tokens were found of a prompt that begins like a held one for {begins}.",
        )


@requirement("INV-148", on=PREFIXES, cases="shared_prefixes")
def test_what_was_stored_is_found_again(subject: Subject, case: PrefixCase) -> None:
    """INV-148 (SHOULD): a prompt that is sent again at once hits all but its last token, in whole units, and one that
    shares a beginning hits that; rows after it are right."""
    run = PrefixRun(subject, case)
    run.admit(FIRST)
    run.run(FIRST, decoded=1, judge=False)
    run.session.finish(FIRST)
    run.session.poison()
    unit = run.granularity
    wanted = (case.first - 1) // unit * unit
    found = run.session.lookup(run.prompt(AGAIN))
    subject.expect(found >= wanted, f"a prompt of {case.first} tokens is sent again and {found} are found.")
    shared = min(case.shared, case.first, case.second - 1) // unit * unit
    found = run.admit(SECOND)
    subject.expect(found >= shared, f"{case.shared} tokens are the same and {found} are found.")
    run.run(SECOND, decoded=0, judge=False)
    run.session.finish(SECOND)
    run.session.poison()
    found = run.admit(AGAIN)
    subject.expect(found >= wanted, f"after another prompt, {found} of {case.first} tokens are found again.")
    run.run(AGAIN, decoded=0)
