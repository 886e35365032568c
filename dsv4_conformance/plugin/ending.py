"""How a run ended, beside what its cases say: from there to the exit code, the verdict and the footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin import verdict
from dsv4_conformance.plugin.journal import Footer, Header, Result, count_statuses, results_hash
from dsv4_conformance.plugin.results_folder import now
from dsv4_conformance.status import Status

INTERRUPTED = 130


@dataclass(frozen=True)
class Ending:
    """``bad_input``: the sentence that stopped the run. ``broken``: what failed of the harness. ``problems``: what is
    wrong with the run as a whole, a sentence each."""

    bad_input: str = ""
    interrupted: bool = False
    broken: str = ""
    others_failed: bool = False
    problems: tuple[str, ...] = ()

    def judge(self, header: Header, statuses: Sequence[Status]) -> tuple[int, str]:
        """Exit code, and what the verdict has to say beyond the counts."""
        if self.bad_input:
            return ExitCode.BAD_INPUT, self.bad_input
        if self.interrupted:
            return INTERRUPTED, "interrupted"
        code = verdict.exit_code(statuses, harness_failed=bool(self.broken))
        part = f"shard {header.shard.index} of {header.shard.count}" if header.shard else ""
        notes = [self.broken or ", ".join(filter(None, [part, header.partial]))]
        green = code in (ExitCode.QUALIFIES, ExitCode.NOTHING_CHECKED)
        if self.others_failed and green:
            code, notes = ExitCode.FAILED, ["a test outside the suites failed"]
        if self.problems:
            code = ExitCode.FAILED if green else code
            notes += [problem.rstrip(".") for problem in self.problems]
        return code, "; ".join(filter(None, notes))


def footer(header: Header, results: Sequence[Result], ending: Ending) -> Footer:
    """The last line of a journal with these results."""
    code, note = ending.judge(header, [result.status for result in results])
    counts = count_statuses(results)
    return Footer(
        finished=now(),
        counts=counts,
        requirements=verdict.by_requirement((result.requirement, result.status) for result in results),
        exit_code=code,
        qualifies=code == ExitCode.QUALIFIES and not note,
        verdict=verdict.sentence(code, header.profile, counts, note),
        results_hash=results_hash(results),
        problems=list(ending.problems),
    )
