"""The name of a case: what reports, journals and ``repro`` call it."""

import hashlib

from dsv4_conformance.cases.case import Case


def case_id(test_name: str, requirement: str, case: Case) -> str:
    """``INV-02-1a2b3c4d``: requirement and 32 bits of SHA-256 over test name, requirement and case."""
    text = f"{test_name}\n{requirement}\n{case.canonical()}"
    return f"{requirement}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
