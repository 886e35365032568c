"""A whole layer against its definition, for schedules drawn at random and found again from the case alone (INV-42)."""

from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.runner.properties import judge_schedules
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)


@requirement("INV-42", on=LAYER, cases="layer_properties")
def test_drawn_schedules_give_what_the_definition_gives(subject: Subject, case: PropertyCase) -> None:
    """INV-42: chunks, decode, rejected drafts, sequences that join, leave and share prefixes: rows and state hold."""
    judge_schedules(subject, case)
