"""Exceptions that cross room boundaries, and the exit codes they end in."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes, shared by the pytest plugin and the command line."""

    QUALIFIES = 0
    FAILED = 1
    BAD_INPUT = 2
    HARNESS_ERROR = 3
    NOTHING_CHECKED = 5
    INCONCLUSIVE = 6
    INVALID_COMPARISON = 7


class BadInput(Exception):
    """The user gave something unusable; the message is one sentence: what, and the remedy. Exit code 2."""


class ConformanceFailure(AssertionError):
    """The implementation under test broke a requirement (status FAIL)."""


class ContractViolation(ConformanceFailure):
    """The adapter broke its own declaration: a lie about a capability, a mutated input, a wrong shape."""


class Inconclusive(ConformanceFailure):
    """A measurement was taken and cannot tell (status INCONCLUSIVE): too noisy, or too close to its limit."""


class NotApplicable(Exception):
    """The case lies outside what the adapter declares (status NOT_APPLICABLE, never a silent pass)."""


class HarnessError(Exception):
    """The suite itself is at fault (status HARNESS_ERROR, exit code 3)."""
