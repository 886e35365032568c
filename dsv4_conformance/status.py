"""Statuses of a case and which of them let an implementation qualify."""

from enum import StrEnum


class Status(StrEnum):
    """Outcome of one planned case; every report uses these words."""

    PASS = "PASS"
    WARN = "WARN"  # a SHOULD is not met: slower or larger than need be, never wrong
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"  # accuracy or time: measured, and neither a pass nor a failure can be told
    INVALID = "INVALID"  # accuracy: not comparable with the golden, so nothing can be told
    WAIVED = "WAIVED"
    STALE_WAIVER = "STALE_WAIVER"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    UNSUPPORTED_REQUIRED = "UNSUPPORTED_REQUIRED"
    NOT_RUN = "NOT_RUN"
    QUARANTINED = "QUARANTINED"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    HARNESS_ERROR = "HARNESS_ERROR"


QUALIFYING = frozenset({Status.PASS, Status.WARN, Status.WAIVED, Status.NOT_APPLICABLE})
CHECKED = frozenset({Status.PASS, Status.WARN, Status.WAIVED, Status.FAIL, Status.INCONCLUSIVE, Status.STALE_WAIVER})
"""Statuses in which the implementation's output was compared with something."""
