"""Is what is compared one build's, asked anew, and of the whole set? Runs and goldens made by hand."""

from dataclasses import replace

import pytest

from dsv4_conformance.accuracy.data import pinned
from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.gate import judge
from dsv4_conformance.accuracy.golden_record import golden_of
from dsv4_conformance.accuracy.reading import Unclosed
from dsv4_conformance.accuracy.records import Session
from dsv4_conformance.accuracy.soundness import SYSTEM
from dsv4_conformance.accuracy.verdict_text import paragraph
from dsv4_conformance.errors import BadInput

from .made import FINGERPRINT, golden, run_of
from .test_gate import RULE, N, candidate, verdict


def test_words_that_chance_repeats_are_no_cache() -> None:
    """A sharp model says the same of an easy question time and again; what its golden repeats, a run may."""
    before = candidate(passes=4, model="golden model")
    same = tuple(replace(a, text="short" if int(a.item[1:]) < N // 2 else a.text) for a in before.answers)
    own = golden_of(replace(before, answers=same), 4, "own", {}, simulated=False)
    run = candidate(passes=1)
    said = [replace(a, text="short" if i < N // 2 else a.text) for i, a in enumerate(run.answers)]
    run = replace(run, answers=tuple(said))
    assert verdict(run, golden=own).verdict == Verdict.PASS


def test_the_same_words_at_temperature_0_are_told() -> None:
    greedy = {**FINGERPRINT, "temperature": "0.0"}
    run = candidate(passes=4, fingerprint=greedy)
    own = golden_of(run, 4, "own", {}, simulated=False)
    again = replace(run, answers=tuple(replace(a, seconds=a.seconds + 1) for a in run.answers))
    found = verdict(again, golden=own)
    assert found.verdict == Verdict.PASS and [f.gate for f in found.warns] == ["fresh"]
    assert "or a cache answers in its place" in paragraph(found)


def test_a_golden_of_copies_is_neither_recorded_nor_used() -> None:
    run = candidate(passes=4)
    copied = replace(run, answers=tuple(replace(a, text=f"the same {a.item}") for a in run.answers))
    with pytest.raises(BadInput, match="100 % of the questions got byte-identical replies in all 4 passes"):
        golden_of(copied, 4, "copies", {}, simulated=False)
    own = golden_of(run, 4, "copies", {}, simulated=False)
    rows = tuple(replace(row, marks=row.marks[:8] * 4) for row in own.rows)
    for copies in (replace(own, rows=rows), replace(own, rows=tuple(replace(row, marks="") for row in own.rows))):
        found = verdict(candidate(model="other"), golden=copies)
        assert "golden: the 4 passes of 'copies' are copies of one" in found.invalid[0]


def test_a_part_of_a_set_is_no_golden_of_it() -> None:
    (known,) = pinned("aime25")["texts"]
    part = golden([[1] * 4] * 3, task="aime25", fingerprint={**FINGERPRINT, "dataset": known})
    run = run_of([[1]] * 3, task="aime25", fingerprint={**FINGERPRINT, "dataset": known})
    assert "the golden has 3 of the 30 questions of aime25" in judge(part, run, RULE, "pre-merge").invalid[0]
    with pytest.raises(BadInput, match="asked 3 of the 30 questions of gsm8k; a golden is of all"):
        golden_of(run_of([[1] * 4] * 3, of=30), 4, "part", {}, simulated=False)
    with pytest.raises(BadInput, match="A golden of 2 questions has no noise of its own"):
        golden([[1] * 4] * 2)


def test_builds_that_change_in_mid_run_are_invalid() -> None:
    def session(run: str, version: str, ended: str | None, system: str = "") -> Session:
        build = {"the server's version": version} | ({SYSTEM: system} if system else {})
        return Session(run, "T", build, 10, {"the server's version": ended} if ended else None)

    run = candidate()
    for sessions, told in (
        ((session("a", "1", "2"),), "the server's version was 1 when asking began (T) and was 2"),
        ((session("a", "1", "1"),), ""),
        ((session("a", "1", None), session("a", "2", "2")), ""),  # said to be the same by --same-build
    ):
        found = verdict(replace(run, sessions=sessions))
        assert (told in " ".join(found.invalid)) if told else found.verdict == Verdict.PASS
    named = [replace(a, system="fp1" if i < 9 else "fp2") for i, a in enumerate(run.answers)]
    mixed = replace(run, answers=tuple(named))
    assert "system_fingerprint: the replies have 'fp2' in 391, 'fp1' in 9" in verdict(mixed).invalid[0]
    assert verdict(replace(mixed, sessions=(session("a", "1", "1", "fp1"),))).verdict == Verdict.INVALID
    both = (session("a", "1", "1", "fp1"), session("b", "1", "1", "fp2"))
    assert verdict(replace(mixed, sessions=both)).verdict == Verdict.PASS, "said to be the same by --same-build"
    each = replace(run, answers=tuple(replace(a, system=f"fp{i}") for i, a in enumerate(run.answers)))
    assert verdict(each).verdict == Verdict.PASS, "a word of its own in every reply is no build's"
    two = candidate(passes=2)
    two = replace(two, answers=tuple(replace(a, system=f"fp{a.repeat}") for a in two.answers))
    with pytest.raises(BadInput, match=r"System_fingerprint: .*; a golden is of one model and build"):
        golden_of(two, 2, "mixed", {}, simulated=False)


def test_a_run_without_a_closing_line_is_invalid() -> None:
    run = replace(candidate(passes=2), path="r.jsonl")
    cut, closed = Session("a", "T0", {}, 400), Session("a", "T1", {}, 400, {})
    for sessions in ((cut,), (closed, cut)):
        found = verdict(replace(run, sessions=sessions))
        assert found.verdict == Verdict.INVALID and len(found.invalid) == 1
        assert "end: r.jsonl has no closing line" in paragraph(found)
        assert "run the same command again: it asks nothing twice" in paragraph(found)
        with pytest.raises(Unclosed, match=r"^r\.jsonl has no closing line"):
            golden_of(replace(run, sessions=sessions), 2, "cut", {}, simulated=False)
    assert verdict(replace(run, sessions=(cut, closed))).verdict == Verdict.PASS, "killed, and gone on with"
    unfinished = replace(run, sessions=(cut,), answers=run.answers[:-401])
    assert "missing" in verdict(unfinished).invalid[0] and len(verdict(unfinished).invalid) == 1


def test_answers_that_an_earlier_run_left_are_told() -> None:
    run = candidate()
    for sessions, told in (
        (
            (Session("a", "T0", {}, 400), Session("b", "T1", {}, 0, {})),
            "400 of the 400 answers were there when the last",
        ),
        ((Session("a", "T0", {}, 100), Session("b", "T1", {}, 300, {})), "(T1; 300 were asked then)"),
        ((Session("a", "T0", {}, 100), Session("a", "T1", {}, 300, {})), ""),
    ):
        said = paragraph(verdict(replace(run, sessions=sessions)))
        assert (told in said) if told else "were there when" not in said
