"""A disk that fills up during a run ends it with one sentence and exit code 2, never green and never in a traceback."""

import pytest

from tests.plugin.conftest import CONFTEST, Project

FULL = """
import builtins, errno, os
from dsv4_conformance.plugin import results_folder


def fill(cls, method, after):
    original, calls = getattr(cls, method), []

    def full(self, *words):
        calls.append(words)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(self, *words)

    setattr(cls, method, full)


fill(results_folder.{where}, {after})
"""

# Seven cases: the header is the first line of the journal and the footer its ninth.
PLACES = {
    "header": ("JournalWriter, 'write'", 0),
    "a result": ("JournalWriter, 'write'", 3),
    "footer": ("JournalWriter, 'write'", 8),
    "start log": ("StartLog, 'starting'", 1),
    "older journal": ("ResultsFolder, 'retire'", 0),
}


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["single", "xdist"])
@pytest.mark.parametrize("place", PLACES)
def test_full_disk_is_one_sentence(project: Project, place: str, words: tuple[str, ...]) -> None:
    where, after = PLACES[place]
    project.write("conftest.py", CONFTEST + FULL.format(where=where, after=after))
    ran = project.run(*words)
    told = ran.out + ran.err
    assert ran.code == 2, told
    assert "can no longer be written (No space left on device); make room" in told
    assert "Traceback" not in told and "INTERNALERROR" not in told and "QUALIFIES" not in told, told
