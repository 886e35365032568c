"""Small parts of isolation: how a death is read, memory that grows, last words, deadlines, messages."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.plugin import aftermath, watchdog
from dsv4_conformance.plugin.aftermath import Memory
from dsv4_conformance.plugin.deaths import OomKills, death
from dsv4_conformance.plugin.outcome import of_exception
from dsv4_conformance.plugin.wire import Wire
from dsv4_conformance.status import Status
from tests.plugin.conftest import Project

TIMEOUT = """Timeout (0:00:02)!
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3/gateway.py", line 7 in read

Thread 0x00007f02 (most recent call first):
  File "/home/me/kernel.py", line 12 in decode
  File "/home/me/suite.py", line 3 in test_it
"""
SEGFAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f02 (most recent call first):
  File "/home/me/kernel.py", line 40 in prefill
"""


@pytest.mark.parametrize(
    ("code", "words", "more", "status", "sentence"),
    [
        (-11, SEGFAULT, {}, "CRASH", "The worker process died of SIGSEGV while. It was at kernel.py:40 in prefill."),
        (1, TIMEOUT, {}, "TIMEOUT", "not end within 2 s; its process was ended. It was at kernel.py:12 in decode."),
        (3, TIMEOUT, {}, "CRASH", "exited with code 3"),
        (1, "", {}, "CRASH", "exited with code 1"),
        (-9, "", {"killed_late": True}, "TIMEOUT", "did not end within 2 s"),
        (-9, "", {"out_of_memory": True}, "OUT_OF_MEMORY", "The machine ran out of memory, and the kernel killed"),
        (-11, "", {"out_of_memory": True}, "CRASH", "died of SIGSEGV"),
        (-9, "", {}, "CRASH", "died of SIGKILL"),
        (-250, "", {}, "CRASH", "died of signal 250"),
        (None, "", {}, "CRASH", "The worker process died while."),
    ],
)
def test_how_a_process_died(code: int | None, words: str, more: dict[str, bool], status: str, sentence: str) -> None:
    died = death(code, words, **more)
    assert (died.status, died.told) == (status, False)
    assert sentence in died.sentence("while", 2.0)


def test_process_that_said_why_it_leaves_is_blameless() -> None:
    assert death(70, "").told and death(71, "").told and not death(72, "").told


def test_kill_for_memory_is_told_once(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 2\n")
    kills = OomKills([tmp_path / "nowhere", counter])
    assert not kills.one_more()
    counter.write_text("low 0\noom 5\noom_kill 4\n")
    assert [kills.one_more() for _ in range(3)] == [True, True, False]


HUNGRY = """
import os, signal
from pathlib import Path
from adapters import Good
from dsv4_conformance.plugin import deaths

COUNTER = Path(__file__).with_name("memory.events")
deaths._counters = lambda: [COUNTER]


class Starved(Good):
    '''In row 2 the kernel kills the process, and counts that it did.'''

    def second(self, row):
        COUNTER.write_text(f"oom_kill {int(COUNTER.read_text().split()[1]) + 1}")
        os.kill(os.getpid(), signal.SIGKILL)


class Leaking(Good):
    kept = []

    def unpack(self, row, slots):
        Leaking.kept.append(bytearray(os.urandom(1 << 20) * 40))
        if len(Leaking.kept) > 4:
            raise RuntimeError("a leak of earlier cases is left")
        return row


class Hungry(Good):
    def second(self, row):
        return len(bytearray(2 << 30))
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_process_that_the_kernel_kills_for_memory(project: Project, workers: str) -> None:
    project.write("hungry.py", HUNGRY)
    project.write("memory.events", "oom_kill 7")
    ran = project.run("-n", workers, "--dsv4-impl", "hungry:Starved", impl=None)
    assert ran.statuses["INV-01"] == [Status.PASS, Status.OUT_OF_MEMORY, Status.PASS], ran.out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_limit_of_memory_meets_the_hungry_case_only(project: Project, workers: str) -> None:
    project.write("hungry.py", HUNGRY)
    words = ("-n", workers, "--dsv4-impl", "hungry:Hungry", "--dsv4-memory", "1")
    ran = project.run(*words, impl=None)
    assert ran.statuses["INV-01"] == [Status.PASS, Status.OUT_OF_MEMORY, Status.PASS], ran.out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_process_that_has_grown_is_replaced_and_nobody_blamed(project: Project, workers: str) -> None:
    project.write("hungry.py", HUNGRY)
    limit = (
        "\nfrom dsv4_conformance.plugin import aftermath\naftermath.GROWTH_SHARE = (60 << 20) / aftermath._total()\n"
    )
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + limit)
    ran = project.run("-n", workers, "--dsv4-impl", "hungry:Leaking", "--junitxml", "junit.xml", impl=None)
    assert ran.code == 0, ran.out
    memory: list[Any] = [result.record["memory"] for result in ran.journal.results]
    assert min(found["host_growth_bytes"] for found in memory) > 30 << 20
    assert (project.folder / "junit.xml").read_text().count("<testcase ") == 7


def test_growth_counts_from_the_first_case_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 5000, 5000, 5060])
    monkeypatch.setattr(aftermath, "_resident", lambda: next(sizes))
    monkeypatch.setattr(aftermath, "_total", lambda: 100)
    memory = Memory(workers=1)
    for growth, outgrown in ((4900, False), (0, False), (60, True)):
        memory.begin()
        assert memory.record(None)["host_growth_bytes"] == growth
        assert memory.outgrown is outgrown


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "OUT_OF_MEMORY",
        ),
        (RuntimeError("CUDA error: out of memory"), "OUT_OF_MEMORY"),
        (RuntimeError("std::bad_alloc"), "OUT_OF_MEMORY"),
        (OSError(12, "Cannot allocate memory"), "OUT_OF_MEMORY"),
        (OSError(13, "Permission denied"), "HARNESS_ERROR"),
        (ValueError("cuda out of memory, said somebody"), "HARNESS_ERROR"),
    ],
)
def test_errors_that_mean_no_memory(error: Exception, status: str) -> None:
    assert of_exception(error, "MUST").status == status


def test_deadline_is_seen_from_outside(tmp_path: Path) -> None:
    dog = watchdog.Watchdog(tmp_path, "gw0", 0.05)
    assert not watchdog.overdue(tmp_path, "gw0")
    program = (
        "import os, signal, sys; from pathlib import Path; from dsv4_conformance.plugin.watchdog import Watchdog\n"
        f"Watchdog(Path({str(tmp_path)!r}), 'gw0', 0.05).arm(); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root})
    try:
        for _ in range(200):
            if watchdog.overdue(tmp_path, "gw0"):
                break
            time.sleep(0.05)
        assert watchdog.overdue(tmp_path, "gw0") and process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    dog.arm()
    dog.disarm()
    assert not watchdog.overdue(tmp_path, "gw0")


def test_last_words_of_a_hang_that_holds_the_gil(tmp_path: Path) -> None:
    program = (
        "import ctypes; from pathlib import Path; from dsv4_conformance.plugin.watchdog import Watchdog\n"
        f"def hang(): ctypes.PyDLL(None).sleep(60)\nWatchdog(Path({str(tmp_path)!r}), 'main', 0.2).arm(); hang()"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root}, timeout=30)
    words = watchdog.last_words(tmp_path, "main")
    assert done.returncode == 1 and watchdog.timed_out(words)
    assert watchdog.place(words) == "<string>:2 in hang"


def pair() -> tuple[Wire, Wire, socket.socket]:
    one, other = socket.socketpair()
    return Wire(one), Wire(other), other


def test_messages_arrive_whole_in_order_and_end_with_the_other_side() -> None:
    here, there, end = pair()
    there.send("report", {"a": (1, None, 2.5), "b": ["x" * 100_000]})
    there.send("done")
    end.close()
    assert here.receive() == ("report", {"a": (1, None, 2.5), "b": ["x" * 100_000]})
    assert here.receive(1.0) == ("done",)
    assert here.receive() is None and here.receive() is None


def test_silence_is_not_an_end() -> None:
    here, there, _ = pair()
    with pytest.raises(TimeoutError):
        here.receive(0.01)
    there.send("late")
    assert here.receive(1.0) == ("late",)


@pytest.mark.parametrize("junk", [b"\xff" * 64, b"\0" * 7 + b"\x03abc", b"\0" * 7 + b"\x09"])
def test_junk_is_an_end(junk: bytes) -> None:
    here, _, end = pair()
    end.sendall(junk)
    end.close()
    assert here.receive(1.0) is None
