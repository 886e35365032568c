"""Compressed entries for schedules drawn at random and found again from the case alone (INV-20)."""

from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.runner.properties import judge_schedules
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

COMPRESSOR = ("Compressor",)


@requirement("INV-20", on=COMPRESSOR, cases="compressor_properties")
def test_entries_of_drawn_schedules_are_those_of_the_kept_streams(subject: Subject, case: PropertyCase) -> None:
    """INV-20: calls of any tokens, rejected drafts, sequences that come and go: each entry is its stream's own."""
    judge_schedules(subject, case)
