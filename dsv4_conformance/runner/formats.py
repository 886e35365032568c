"""The byte form that an adapter declares for a format surface."""

from __future__ import annotations

from dsv4_conformance.implementations.api import FormatConvention
from dsv4_conformance.oracle.kv_format import Form
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import DIALECTS


def declared_form(subject: Subject, surface: str) -> Form:
    """Floor rule, fp8 dialect and divisor of scales of KVPageFormat or IndexKeyFormat."""
    convention = subject.implementation.surfaces[surface]
    assert isinstance(convention, FormatConvention)
    dialect = DIALECTS[convention.fp8]
    return Form(convention.ue8m0_floor, dialect, convention.fp8_max or dialect.largest)
