"""Lets Hypothesis draw the schedules of a property case and, when one fails, look for a short one that fails.

Nothing depends on chance, on time or on what ran before: the schedules follow from the case, each is tried once, and
the search for a shorter one ends after a fixed number of tries. Torch-free.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.cases.shorter import shorter

TRIES = 100
"""Schedules that Hypothesis may try once one has failed; half of all searches end on their own after 50."""
LAST_TRIES = 40
"""Schedules that are tried when Hypothesis has done."""


class _Fails(Exception):
    """Tells Hypothesis that a schedule fails."""


class Search:
    """``fails`` says whether a schedule fails. ``tried``: every schedule that was tried, in order, and its answer.

    If ``fails`` raises, nothing is tried any more, and ``run`` raises that.
    """

    def __init__(self, fails: Callable[[str], bool], tries: int = TRIES, last_tries: int = LAST_TRIES) -> None:
        self.tried: dict[str, bool] = {}
        self._fails, self._left, self._polish = fails, tries, last_tries
        self._stopped: Exception | None = None

    def run(self, strategy: SearchStrategy[str], case: PropertyCase) -> str | None:
        """The shortest schedule found that fails, None if all hold."""

        @settings(
            max_examples=case.examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @seed(case.digest())
        @given(strategy)
        def every_schedule_holds(schedule: str) -> None:
            if self._try(schedule):
                raise _Fails(schedule)

        found = None
        with _notes_elsewhere():
            try:
                every_schedule_holds()
            except _Fails as failure:
                self._left = self._polish
                found = self._polished(str(failure), case.surface)
        if self._stopped is not None:
            raise self._stopped
        return found

    def stream(self) -> str:
        """Short hash of the schedules that were tried, in their order: equal where two runs tried the same."""
        return hashlib.sha256("\n".join(self.tried).encode()).hexdigest()[:16]

    def _try(self, schedule: str) -> bool:
        """Whether a schedule fails; one that cannot be tried any more does not."""
        if schedule not in self.tried:
            failed = any(self.tried.values())
            if self._stopped is not None or (failed and self._left < 1):
                return False
            self._left -= failed
            try:
                self.tried[schedule] = self._fails(schedule)
            except Exception as error:
                self._stopped = error
                return False
        return self.tried[schedule]

    def _polished(self, schedule: str, surface: str) -> str:
        """The first of the ``shorter`` schedules that fails, and so on until none does."""
        for candidate in shorter(schedule, surface):
            if self._try(candidate):
                return self._polished(candidate, surface)
        return schedule


@contextmanager
def _notes_elsewhere() -> Iterator[None]:
    """Hypothesis keeps notes about the modules it sees; not in the folder that the user is in."""
    with tempfile.TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)
