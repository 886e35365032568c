"""A small project with suites, adapters and a fake runner, for running the plugin in processes of its own.

Everything torch-free, so that a run takes a second and shows that the plugin itself needs no torch.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv4_conformance.plugin.journal import Journal, read_journal
from dsv4_conformance.status import Status

ROOT = Path(__file__).resolve().parents[2]
# Of all installed plugins these two alone: Hypothesis's own costs every run a third of its time.
PLUGINS = ("--disable-plugin-autoload", "-p", "xdist.plugin", "-p", "dsv4_conformance.plugin")

CONFTEST = '''
"""Stands in for the runner, the families, the registry and the profiles."""
import sys, types

from dsv4_conformance.cases import families, profiles
from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.spec import requirements


class Subject:
    def __init__(self, implementation):
        self.implementation, self.checked, self.notes = implementation, False, {}

    def check(self, case):
        answer = self.implementation.unpack(case.tokens, None)
        self.checked = True
        if answer != case.tokens:
            raise ConformanceFailure(f"row {case.tokens} came back as {answer}.")

    def record(self):
        return {"checked": self.checked, "status_hint": "PASS", "reason": "", "calls": 1,
                "metrics": {"out_ratio": 0.5, "odd": float("nan")}, "budget": {}, "margin": {"out": float("inf")},
                "margins": {"zeros": {"out": 7.0}, "sink dropped": {"out": 4.0}}}


class Session:
    def __init__(self, implementation, device):
        self.implementation = implementation(device)

    def subject(self, planned):
        return Subject(self.implementation)

    def probe(self):
        getattr(self.implementation, "probe", int)()

    def device_bytes(self):
        return 0


runner = types.ModuleType("dsv4_conformance.runner.session")
runner.Session = Session
sys.modules["dsv4_conformance.runner.session"] = runner


def family(name, surface, size, seed):
    last = {"few": 2, "none": 0}.get(name, 1000)
    first = 100 if size == "gpu" else 1
    return (FormatCase(surface, tokens, 64, seed=seed) for tokens in range(first, first + last))


families.family = family


def entry(name, level):
    return requirements.Requirement(
        id=name, level=level, title=f"title of {name}", text=f"It {level} hold.", surfaces=["KVPageFormat"],
        exactness="E", source=["spec"], bugs=[])


REGISTRY = requirements.Registry((entry("INV-01", "MUST"), entry("INV-02", "MUST"), entry("INV-03", "SHOULD")))
requirements.load_registry = lambda: REGISTRY


def profile(name, size="laptop", count=3, only=None, mandatory=()):
    return profiles.Profile(name=name, summary=name, size=size, count=count, only=only,
                            mandatory={"kernel": list(mandatory), "engine": []})


PROFILES = {p.name: p for p in (
    profile("smoke", count=1, only=["INV-01"]), profile("default"), profile("strict", mandatory=["IndexKeyFormat"]),
    profile("big", "gpu", 4))}
profiles.load_profiles = lambda: PROFILES


from dsv4_conformance.plugin import environment, settings
environment.checkout = lambda: ("c0ffee", False)  # somebody may commit between two runs of one test
settings.shipped_waivers = lambda: None


def pytest_unconfigure(config):
    assert "torch" not in sys.modules, "torch was imported"
'''

ADAPTERS = '''
"""Adapters that misbehave on row 2."""
import os, signal

from dsv4_conformance.errors import BadInput, NotApplicable
from dsv4_conformance.implementations.api import FormatConvention, Identity, Implementation


class Good(Implementation):
    identity = Identity(name="good", version="1", homepage="https://example.com")
    devices = ("cpu",)
    surfaces = {"KVPageFormat": FormatConvention()}

    def pack(self, tokens, slots, pages):
        pass

    def unpack(self, row, slots):
        return self.second(row) if row == 2 else row

    def second(self, row):
        return row


class Wrong(Good):
    def second(self, row):
        return row + 1


class Killed(Good):
    def second(self, row):
        os.kill(os.getpid(), signal.SIGKILL)


class Picky(Good):
    def unpack(self, row, slots):
        raise NotApplicable("rows are not for me.")


class Hungry(Good):
    def second(self, row):
        raise MemoryError("2 TiB for one row")


class Poisoned(Good):
    """What a dead CUDA context does: every later call fails as well."""

    dead = False

    def unpack(self, row, slots):
        Poisoned.dead |= row == 2
        if Poisoned.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return row


class Unavailable(Good):
    @classmethod
    def check_available(cls):
        raise BadInput("the engine is not installed; pip install engine.")


class Broken(Good):
    @classmethod
    def check_available(cls):
        raise OSError("libengine.so: cannot open")


class Quitting(Good):
    @classmethod
    def check_available(cls):
        raise SystemExit("no licence")


class Unbuildable(Good):
    def __init__(self, device):
        raise BadInput("the engine wants a licence.")


class OnlyGpu(Good):
    devices = ("cuda",)
'''

SUITE = """
from dsv4_conformance.suite import requirement

KV = ("KVPageFormat",)


@requirement("INV-01", on=KV, cases="rows")
def test_rows_come_back(subject, case):
    subject.check(case)


@requirement("INV-02", on=KV, cases="few")
def test_few_rows_come_back(subject, case):
    subject.check(case)


@requirement("INV-03", on=KV, cases="few")
def test_rows_come_back_fast(subject, case):
    subject.check(case)
"""


@dataclass
class Ran:
    """What one pytest process did."""

    code: int
    out: str
    err: str
    results: Path

    @property
    def journal(self) -> Journal:
        return read_journal(self.results / "journal.jsonl")

    @property
    def statuses(self) -> dict[str, list[Status]]:
        """Statuses per requirement, in the order of the plan."""
        by_node = {result.nodeid: result.status for result in self.journal.results}
        found: dict[str, list[Status]] = {}
        for entry in self.journal.header.plan:
            found.setdefault(entry.requirement, []).append(by_node[entry.nodeid])
        return found


def environment(**more: str) -> dict[str, str]:
    """Variables of a process that runs the plugin from here and sees no GPU."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **more}


class Project:
    """A folder with the suite, the adapters and the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pytest.ini", "[pytest]\n")
        self.write("conftest.py", CONFTEST)
        self.write("adapters.py", ADAPTERS)
        self.write("test_suite.py", SUITE)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def command(self, *words: str, impl: str | None = "Good") -> list[str]:
        chosen = ["--dsv4-impl", f"adapters:{impl}"] if impl else []
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGINS, *chosen, *words]

    def run(self, *words: str, impl: str | None = "Good", **variables: str) -> Ran:
        done = subprocess.run(
            self.command(*words, impl=impl),
            cwd=self.folder,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr, self.folder / "dsv4-results")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
