"""``dsv4-conformance ab``: bits, errors and times of two builds; whatever a build does, only its case pays."""

import math
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.report import ab_text
from dsv4_conformance.report.ab import Bits, Compared, bits_between
from dsv4_conformance.report.ab_process import Build, SideProcess
from tests.report.conftest import Command
from tests.report.malice import STRINGS
from tests.report.test_hostile_texts import CONTROL, STRUCTURE, Page

ROOT = Path(__file__).resolve().parents[2]

# A side that speaks the protocol and needs no torch: what a case does is its name.
FAKE = """
import json, os, signal, sys, time
replies = os.fdopen(int(sys.argv[-1]), "w")
def reply(value):
    replies.write(json.dumps(value) + chr(10)); replies.flush()
print("noise on stdout")
if sys.argv[-3] == "refused":
    reply({"refused": "no such engine."}); sys.exit()
if sys.argv[-3] == "dies":
    sys.exit(3)
reply({"name": "fake", "pid": os.getpid()})
for line in sys.stdin:
    case = json.loads(line)["case"]
    if case == "dies": os.kill(os.getpid(), signal.SIGSEGV)
    if case == "exits": sys.exit(0)
    if case == "hangs": time.sleep(60)
    reply({"status": "ok", "case": case, "pid": os.getpid()})
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that is the fake side."""
    (tmp_path / "fake.py").write_text(FAKE)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "fake.py"}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def side(python: str) -> Iterator[SideProcess]:
    found = SideProcess("A", Build("fake", python=python), timeout_s=3)
    yield found
    found.close()


# Kills: a death charged to the next case, or that ends the comparison; a hang that is waited for.
@pytest.mark.parametrize(
    ("case", "status", "told"),
    [("dies", "CRASH", "SIGSEGV"), ("exits", "CRASH", "exit code 0"), ("hangs", "TIMEOUT", "longer than 3 s")],
)
def test_a_case_that_ends_the_process_pays_alone(side: SideProcess, case: str, status: str, told: str) -> None:
    before = side.ask({"case": "one"})
    assert before["case"] == "one"
    found = side.ask({"case": case})
    assert found["status"] == status and told in found["reason"]
    after = side.ask({"case": "two"})
    assert after["status"] == "ok" and after["case"] == "two" and after["pid"] != before["pid"]


@pytest.mark.parametrize(("name", "told"), [("refused", "Build B: no such engine."), ("dies", "could not be loaded")])
def test_a_build_that_cannot_be_loaded_is_bad_input(python: str, name: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        SideProcess("B", Build(name, python=python), timeout_s=3)


def test_an_interpreter_that_is_not_there_is_bad_input() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BadInput, match="cannot be started"):
        SideProcess("A", Build("builtin", python="/absent/python"), timeout_s=3)
    assert len(os.listdir("/proc/self/fd")) == before


# Kills: -0 and 0 taken for equal bits, NaN for unequal ones; ulps counted across zero in sign and magnitude.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bits(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest number above 0
    one = torch.tensor([1.0, math.nan, 0.0, tiny, math.inf, 2.0], dtype=dtype)
    assert bits_between(one, one.clone()) == Bits(0, 6, 0.0, 0)
    up = torch.nextafter(one[:1].float(), torch.tensor([2.0])) if dtype == torch.float32 else one[:1] + 2**-7
    other = one.clone()
    other[0] = up[0]
    assert bits_between(one, other) == Bits(1, 6, float(up[0] - 1), 1)
    other = one.clone()
    other[2], other[3] = -0.0, -tiny
    assert bits_between(one, other) == Bits(2, 6, 2 * tiny, 2)
    other = one.clone()
    other[4] = -math.inf
    assert bits_between(one, other) == Bits(1, 6, math.inf, -1)


def compared(
    seconds: tuple[list[float], list[float]], statuses: tuple[str, str] = ("PASS", "PASS"), n: int = 0
) -> Compared:
    bits = {"out": Bits(n, 100, 1e-3 * n, 2 * n)}
    return Compared(
        "INV-01-00000001", "SparseDecode", "b3", statuses, ("", ""), ({"out": 0.3}, {"out": 0.4}), bits, seconds
    )


# Kills: a difference within noise that is called faster.
@pytest.mark.parametrize(
    ("one", "other", "faster"),
    [
        ([1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0], False),
        ([2.0, 2.1, 1.9, 2.0], [1.0, 1.1, 0.9, 1.0], True),
        ([1.0, 1.5, 0.5, 1.0], [1.1, 1.6, 0.6, 1.1], None),
        ([], [], None),
    ],
)
def test_faster_means_beyond_noise(one: list[float], other: list[float], faster: bool | None) -> None:
    assert compared((one, other)).faster is faster


def test_what_is_told_of_all_cases() -> None:
    quick, same = ([2.0, 2.1, 1.9, 2.0], [1.0, 1.1, 0.9, 1.0]), ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0])
    hellos = tuple({"name": n, "build": "1", "packages": "torch 2", "device": "CPU"} for n in ("one", "two"))
    cases = [compared(quick, n=5), compared(same), compared(([], []), ("PASS", "FAIL"))]
    found = ab_text.Told((hellos[0], hellos[1]), "smoke", cases)
    assert found.verdicts == "A is right in 3 of 3 cases, B in 2."
    assert found.sameness == "2 of 3 cases have the same bits; the others differ by 10 ulp at most."
    assert found.speed.startswith(
        "B takes 0.71 of A's time (geometric mean of 2 cases; 0.50 to 1.00): faster in 1, slower in 0"
    )
    assert [case.statuses[1] for case in found.notable] == ["FAIL", "PASS"]
    for told in ("\n".join(ab_text.text(found)), ab_text.as_markdown(found), ab_text.as_page(found)):
        assert "out 0.30 / 0.40" in told and "out 5 of 100, by 5.0e-03, 10 ulp" in told and found.verdicts in told


def test_hostile_texts_break_nothing() -> None:
    for text in STRINGS:
        hello = {"name": text, "build": text, "packages": text, "device": text}
        case = Compared(text, text, text, ("FAIL", "CRASH"), (text, text), ({"out": math.inf}, {}))
        found = ab_text.Told((hello, hello), text, [case])
        page = Page()
        page.feed(ab_text.as_page(found))
        assert {tag: page.tags.count(tag) for tag in STRUCTURE} == STRUCTURE | {"script": 1} and not page.bad
        for told in ("\n".join(ab_text.text(found)), ab_text.as_markdown(found), ab_text.as_page(found)):
            assert not CONTROL.search(told.replace("\n", "")), text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--impl", "builtin"), "the same build"),
        (("--impl", "builtin", "--impl", "builtin"), "the same build"),
        (("--impl", "a", "--impl", "b", "--impl", "c"), "given 3 times"),
        (("--impl", "builtin", "--path", "absent", "--path", "."), "is no folder"),
        (("--impl", "a", "--impl", "b", "--repeats", "-1"), "have to be positive"),
        (("--impl", "a", "--impl", "b", "--format", "pdf"), "choose text or markdown"),
    ],
)
def test_bad_input_is_one_sentence(command: Command, words: tuple[str, ...], told: str) -> None:
    done = command("ab", *words)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1


KERNEL = """
import os
import torch
from dsv4_conformance.implementations import api
from dsv4_conformance.implementations.builtin import Builtin

class Kernel(api.Implementation):
    identity = api.Identity(name="kernel", version="{version}", homepage="https://example.org")
    surfaces = {{"SparsePrefill": Builtin.surfaces["SparsePrefill"]}}

    def __init__(self, device):
        super().__init__(device)
        self.inner = Builtin(device)

    def prefill(self, call):
        found = self.inner.prefill(call)
        {change}
        return found
"""


# From end to end: one module in two folders, each in its process; the second one loses a bit, then a whole row.
@pytest.mark.parametrize(
    ("change", "code", "told"),
    [("found.out.view(torch.int16)[0, 0, 0] ^= 1", 0, "Both are right"), ("found.out[0] = 0", 1, "B in 0.")],
)
def test_two_builds_are_told_apart(command: Command, tmp_path: Path, change: str, code: int, told: str) -> None:
    for folder, edit in (("old", "pass"), ("new", change)):
        (tmp_path / folder).mkdir()
        text = textwrap.dedent(KERNEL).format(version=folder, change=edit)
        (tmp_path / folder / "kernel.py").write_text(text)
    words = ("--impl", "kernel:Kernel", "--path", "old", "--path", "new", "--profile", "smoke", "--repeats", "4")
    done = command("ab", *words, "--device", "cpu", "-o", "out")
    assert done.returncode == code, done.stdout + done.stderr
    assert "A  kernel old" in done.stdout and "B  kernel new" in done.stdout and told in done.stdout
    assert "out 1 of 49,152" in done.stdout or code == 1
    assert "0 of 1 cases have the same bits" in done.stdout and "geometric mean of 1 cases" in done.stdout
    assert (tmp_path / "out/ab.html").exists()
