import io
import time
from dataclasses import replace

import pytest

from dsv4_conformance.accuracy import progress
from dsv4_conformance.accuracy.progress import Display, Score
from tests.accuracy.test_records import answer


def test_the_score_and_what_is_odd() -> None:
    score = Score()
    assert score.text() == "-"
    score.add(answer("a"), True)
    assert score.text() == "100.00 % right"
    score.add(answer("b", correct=False, status="truncated"), True)
    score.add(answer("c", correct=False, status="error", completion_tokens=None), False)
    assert score.text() == "33.33 % right, 1 truncated, 1 failed"
    assert (score.answered, score.new, score.tokens) == (3, 2, 40)


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Display("gsm8k", 4000, stream=stream) as display:
        display.add(answer("kept"), False)
        for n in range(400):
            now[0] += 0.1
            display.add(replace(answer(str(n)), correct=n % 2 == 0, status="ok"), True)
    # After 30 s, 300 were answered; 3699 are left at 10 a second.
    assert stream.getvalue() == "gsm8k: 301 of 4000, 50.17 % right, 6 min 9 s to go\n"


def test_quiet_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with Display("gsm8k", 4, quiet=True, stream=stream) as display:
        display.add(answer("a"), True)
    assert stream.getvalue() == ""
    with Display("gsm8k", 4, stream=stream) as display:
        display.add(answer("a"), True)
    assert stream.getvalue().startswith("gsm8k: 1 of 4, 100.00 % right")


def test_a_server_that_hangs_is_not_met_with_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WAIT_EVERY_S", 0.01)
    stream = io.StringIO()
    with Display("gsm8k", 4, stream=stream) as display:
        until = time.monotonic() + 5
        while stream.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
        display.add(answer("a"), True)
        time.sleep(0.05)
        lines = stream.getvalue().splitlines()
        time.sleep(0.05)
        assert stream.getvalue().splitlines() == lines, "after the first reply it is over"
        monkeypatch.setattr(progress, "LINE_EVERY_S", 0.02)
        time.sleep(0.2)
    assert set(lines) == {"gsm8k: waiting for the first reply, 0 s"}
    later = stream.getvalue().splitlines()[len(lines) :]
    assert later and set(later) == {"gsm8k: no reply for 0 s"}
    lines += later
    with progress.Waiting("probing", quiet=True, stream=stream):
        time.sleep(0.05)
    assert stream.getvalue().splitlines() == lines
