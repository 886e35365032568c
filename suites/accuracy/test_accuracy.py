"""Accuracy of a served model against a golden (INV-130 to INV-134). Needs --dsv4-endpoint.

Each task is run once; its tests look at what the one run shows. A verdict is PASS, FAIL, INCONCLUSIVE or INVALID.
"""

from dsv4_conformance.cases.accuracy_case import AccuracyCase
from dsv4_conformance.runner.endpoint import EndpointSubject
from dsv4_conformance.suite import requirement

SERVER = ("Endpoint",)


@requirement("INV-130", on=SERVER, cases="accuracy_tasks")
def test_answers_are_as_often_right_as_the_goldens(subject: EndpointSubject, case: AccuracyCase) -> None:
    """INV-130: the paired difference per question, pooled over the looks, and broken questions by themselves."""
    subject.judge(case, "score")


@requirement("INV-131", on=SERVER, cases="accuracy_tasks")
def test_replies_are_not_cut_off_more_often(subject: EndpointSubject, case: AccuracyCase) -> None:
    """INV-131: the rate of replies that reach the token limit, against golden and cap."""
    subject.judge(case, "truncated")


@requirement("INV-132", on=SERVER, cases="accuracy_tasks")
def test_replies_hold_an_answer_that_can_be_read(subject: EndpointSubject, case: AccuracyCase) -> None:
    """INV-132: the rate of replies without an answer, filtered or malformed; the form of the others."""
    subject.judge(case, "no_answer", "malformed", "form")


@requirement("INV-133", on=SERVER, cases="accuracy_tasks")
def test_a_server_answers_what_it_is_asked_as_it_is_asked(subject: EndpointSubject, case: AccuracyCase) -> None:
    """INV-133: fingerprint, completeness, thinking, seeds, fresh replies, the rate of requests without a usable one."""
    subject.judge(case, "errors", "fresh")


@requirement("INV-134", on=SERVER, cases="accuracy_tasks")
def test_replies_are_as_long_as_the_goldens(subject: EndpointSubject, case: AccuracyCase) -> None:
    """INV-134: the mean number of completion tokens relative to the golden's."""
    subject.judge(case, "tokens")
