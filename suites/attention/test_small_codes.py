"""Keys whose fp8 codes are all subnormal or zero: converters that are fast for normal codes often leave these out."""

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.repack import live_slots
from dsv4_conformance.implementations.api import DecodeCall, KVScope
from dsv4_conformance.oracle.kv_format import page_views
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import PageLayout
from dsv4_conformance.suite import DECODE, requirement

SIGN_AND_MANTISSA = 0x87


def _made_small(scope: KVScope) -> None:
    """Every live row keeps signs and mantissas of its codes; their exponents, and its rope values, become 0."""
    slots = live_slots(scope)
    page, row = slots // scope.page_size, slots % scope.page_size
    data, _ = page_views(scope.pages)
    rows = data[page, row]
    rows[:, : PageLayout.NOPE] &= SIGN_AND_MANTISSA
    rows[:, PageLayout.NOPE :] = 0
    data[page, row] = rows


@requirement("INV-01", on=DECODE, cases="rows")
def test_keys_of_subnormal_codes_follow_the_formula(subject: Subject, case: AttentionCase) -> None:
    """INV-01: a code without an exponent is its mantissa times 2^-9 under the scale, in logits and in values."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    for scope in (call.window, call.extra):
        if scope is not None:
            _made_small(scope)
    subject.judge(call)
