"""Small pure parts: outcome of an exception, JSON-safe values, verdict, reproducer."""

import enum
from dataclasses import dataclass

import pytest

from dsv4_conformance.errors import (
    BadInput,
    ConformanceFailure,
    ContractViolation,
    ExitCode,
    HarnessError,
    NotApplicable,
)
from dsv4_conformance.plugin import outcome, verdict
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.options import Options
from dsv4_conformance.status import Status


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "must", "should"),
    [
        (ConformanceFailure("x"), Status.FAIL, Status.WARN),
        (AssertionError("x"), Status.FAIL, Status.WARN),
        (ContractViolation("x"), Status.FAIL, Status.FAIL),
        (caused(ConformanceFailure("x"), ValueError("y")), Status.FAIL, Status.FAIL),
        (caused(ConformanceFailure("x"), MemoryError("y")), Status.OUT_OF_MEMORY, Status.OUT_OF_MEMORY),
        (MemoryError(), Status.OUT_OF_MEMORY, Status.OUT_OF_MEMORY),
        (NotApplicable("x"), Status.NOT_APPLICABLE, Status.NOT_APPLICABLE),
        (HarnessError("x"), Status.HARNESS_ERROR, Status.HARNESS_ERROR),
        (BadInput("x"), Status.HARNESS_ERROR, Status.HARNESS_ERROR),
        (RuntimeError("CUDA error: invalid argument"), Status.HARNESS_ERROR, Status.HARNESS_ERROR),
        (
            caused(ConformanceFailure("x"), RuntimeError("CUDA error: device-side assert triggered\nmore")),
            Status.CRASH,
            Status.CRASH,
        ),
    ],
)
def test_outcome_of_an_exception(error: Exception, must: Status, should: Status) -> None:
    assert (outcome.of_exception(error, "MUST").status, outcome.of_exception(error, "SHOULD").status) == (must, should)


def test_only_a_dead_context_ends_the_process() -> None:
    dead = outcome.of_exception(RuntimeError("CUDA error: misaligned address"), "MUST")
    assert dead.context_dead
    assert not outcome.of_exception(RuntimeError("an illegal memory access, said the CPU"), "MUST").context_dead


def test_bad_input_is_marked_so_that_the_run_stops() -> None:
    assert outcome.of_exception(BadInput("x"), "MUST").bad_input
    assert not outcome.of_exception(HarnessError("x"), "MUST").bad_input


def test_return_without_a_check_is_never_a_pass() -> None:
    assert outcome.of_return({}).status is Status.HARNESS_ERROR
    assert outcome.of_return({"checked": False, "status_hint": "PASS"}).status is Status.HARNESS_ERROR
    assert outcome.of_return({"checked": True}).status is Status.PASS
    assert outcome.of_return({"checked": True, "status_hint": "WARN", "reason": "slow"}).status is Status.WARN


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Pair:
    left: float
    right: tuple[int, ...]


class Scalar:
    """Like a 0-dim tensor."""

    ndim = 0

    def item(self) -> float:
        return float("-inf")


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1.5, 1.5),
        (True, True),
        (None, None),
        (Colour.RED, "red"),
        ({1: (float("-inf"), {3, 2})}, {"1": ["-inf", [2, 3]]}),
        (Pair(float("nan"), (1,)), {"left": "nan", "right": [1]}),
        (Scalar(), "-inf"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_json_safe(value: object, safe: object) -> None:
    made = json_safe(value)
    assert made == safe and type(made) is type(safe)


P, F, N = Status.PASS, Status.FAIL, Status.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([P], ExitCode.QUALIFIES),
        ([P, N, Status.WARN, Status.WAIVED], ExitCode.QUALIFIES),
        ([N, N], ExitCode.NOTHING_CHECKED),
        ([], ExitCode.NOTHING_CHECKED),
        ([P, Status.NOT_RUN], ExitCode.FAILED),
        ([P, Status.HARNESS_ERROR, Status.NOT_RUN], ExitCode.HARNESS_ERROR),
        ([F, Status.HARNESS_ERROR], ExitCode.FAILED),
        *[
            ([P, status], ExitCode.FAILED)
            for status in (
                F,
                Status.CRASH,
                Status.TIMEOUT,
                Status.OUT_OF_MEMORY,
                Status.UNSUPPORTED_REQUIRED,
                Status.STALE_WAIVER,
                Status.QUARANTINED,
            )
        ],
    ],
)
def test_exit_code(statuses: list[Status], code: ExitCode) -> None:
    assert verdict.exit_code(statuses) is code


def test_failed_harness_is_never_green() -> None:
    assert verdict.exit_code([P], harness_failed=True) is ExitCode.HARNESS_ERROR
    assert verdict.exit_code([F], harness_failed=True) is ExitCode.FAILED


def test_severity_orders_every_status() -> None:
    assert sorted(verdict.SEVERITY) == sorted(Status)


def test_requirement_has_the_worst_status_of_its_cases() -> None:
    found = verdict.by_requirement([("INV-100", P), ("INV-02", P), ("INV-02", F), ("INV-02", N), ("INV-100", N)])
    assert list(found.items()) == [("INV-02", F), ("INV-100", P)]


def test_reproducer_has_the_words_that_are_not_default() -> None:
    assert Options().reproducer("INV-01-0") == "dsv4-conformance repro INV-01-0"
    given = Options(impl="a:B", profile="kill", seed=3, device="cpu")
    assert given.reproducer("X") == "dsv4-conformance repro X --impl a:B --profile kill --seed 3 --device cpu"
