"""A slot of a GPU belongs to one process, and comes free with that process's death."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.leases import SILENCE_S, acquire, lease_folder, slots_per_gpu
from tests.plugin.conftest import Project, Ran, environment

HOLDER = """
import sys, time
from pathlib import Path
from dsv4_conformance.plugin.leases import acquire
lease = acquire(sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[1]), wait_s=10)
print(lease.gpu, lease.slot, flush=True)
time.sleep(60)
"""


class Holder:
    """Another process with a lease."""

    def __init__(self, folder: Path, gpus: str, slots: int) -> None:
        words = [sys.executable, "-c", HOLDER, str(folder), gpus, str(slots)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment())
        assert self.process.stdout is not None
        gpu, slot = self.process.stdout.readline().split()
        self.lease = (gpu, int(slot))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize(
    ("workers", "gpus", "auto", "slots"),
    [(4, 4, True, 1), (4, 4, False, 1), (4, 1, False, 4), (5, 2, False, 3), (1, 8, False, 1), (2, 0, False, 1)],
)
def test_slots_are_workers_over_gpus_rounded_up(workers: int, gpus: int, auto: bool, slots: int) -> None:
    assert slots_per_gpu(workers, gpus, auto=auto) == slots


def test_workers_spread_over_gpus_before_they_share_one(tmp_path: Path) -> None:
    leases = [acquire(["GPU-a", "GPU-b"], 2, tmp_path, wait_s=0) for _ in range(4)]
    assert [(lease.gpu, lease.slot) for lease in leases] == [("GPU-a", 0), ("GPU-b", 0), ("GPU-a", 1), ("GPU-b", 1)]


def test_taken_slots_are_refused_in_one_sentence(tmp_path: Path) -> None:
    holder = Holder(tmp_path, "GPU-a", 1)
    try:
        with pytest.raises(BadInput, match=r"stayed taken for 0 s; wait for the run that holds"):
            acquire(["GPU-a"], 1, tmp_path, wait_s=0)
    finally:
        holder.kill()


def test_successor_of_a_killed_process_gets_exactly_its_gpu(tmp_path: Path) -> None:
    holders = [Holder(tmp_path, "GPU-a,GPU-b,GPU-c", 1) for _ in range(3)]
    try:
        assert [holder.lease[0] for holder in holders] == ["GPU-a", "GPU-b", "GPU-c"]
        holders[1].kill()
        assert acquire(["GPU-a", "GPU-b", "GPU-c"], 1, tmp_path, wait_s=5).gpu == "GPU-b"
    finally:
        for holder in holders:
            holder.kill()


def test_waiting_ends_when_a_slot_comes_free(tmp_path: Path) -> None:
    holder = Holder(tmp_path, "GPU-a", 1)
    waiting = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "GPU-a", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    holder.kill()
    assert waiting.stdout is not None and waiting.stdout.readline() == "GPU-a 0\n"
    waiting.kill()
    waiting.communicate()


def test_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="set DSV4_LEASE_DIR"):
        acquire(["GPU-a"], 1, tmp_path / "file", wait_s=0)


def test_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_LEASE_DIR", str(tmp_path))
    assert lease_folder() == tmp_path


def test_wait_that_is_no_number_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_LEASE_WAIT_S", "soon")
    with pytest.raises(BadInput, match="DSV4_LEASE_WAIT_S is 'soon'"):
        acquire(["GPU-a"], 1, tmp_path)


GPUS = """
import os
from dsv4_conformance.implementations import gpus
gpus.visible_gpus = lambda: [g for g in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if g]

"""

WITNESS = """
import os
from adapters import Good


class Witness(Good):
    devices = ("cuda",)

    def unpack(self, row, slots):
        with open("seen.txt", "a") as file:
            file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
        return row


class Dying(Witness):
    def unpack(self, row, slots):
        super().unpack(row, slots)
        if row == 2:
            os.kill(os.getpid(), 9)
        return row
"""


@pytest.fixture
def gpu_project(project: Project) -> Project:
    """A project that believes what CUDA_VISIBLE_DEVICES names."""
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + GPUS)
    project.write("witness.py", WITNESS)
    return project


def seen(project: Project) -> dict[str, str]:
    """Process -> the GPUs that it saw."""
    return dict(line.split() for line in (project.folder / "seen.txt").read_text().splitlines())


def test_auto_takes_a_worker_per_gpu_and_each_sees_its_own(gpu_project: Project) -> None:
    leases = str(gpu_project.folder / "leases")
    ran = gpu_project.run(
        "-n",
        "auto",
        "--dsv4-impl",
        "witness:Witness",
        CUDA_VISIBLE_DEVICES="GPU-a,GPU-b,GPU-c",
        DSV4_LEASE_DIR=leases,
        impl=None,
    )
    assert ran.code == 0, ran.out + ran.err
    assert ran.journal.header.workers == 3
    assert sorted(seen(gpu_project).values()) == ["GPU-a", "GPU-b", "GPU-c"]


def test_single_process_leases_one_gpu(gpu_project: Project) -> None:
    leases = str(gpu_project.folder / "leases")
    ran = gpu_project.run(
        "--dsv4-impl", "witness:Witness", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b", DSV4_LEASE_DIR=leases, impl=None
    )
    assert ran.code == 0, ran.out + ran.err
    assert list(seen(gpu_project).values()) == ["GPU-a"]


def test_replaced_workers_share_the_gpus_that_are_left(gpu_project: Project) -> None:
    leases = str(gpu_project.folder / "leases")
    ran = gpu_project.run(
        *("-n", "2", "--dsv4-impl", "witness:Dying"),
        CUDA_VISIBLE_DEVICES="GPU-a",
        DSV4_LEASE_DIR=leases,
        DSV4_LEASE_WAIT_S="20",
        impl=None,
    )
    assert ran.code == 1, ran.out + ran.err
    assert len(ran.journal.results) == 7 and not ran.journal.missing()
    assert set(seen(gpu_project).values()) == {"GPU-a"}


def beside_a_holder(project: Project, workers: str, wait_s: float) -> Ran:
    """A run on a GPU whose first slot another process keeps."""
    leases = project.folder / "leases"
    holder = Holder(leases, "GPU-a", 1)
    try:
        return project.run(
            *("-n", workers, "--dsv4-impl", "witness:Witness"),
            CUDA_VISIBLE_DEVICES="GPU-a",
            DSV4_LEASE_DIR=str(leases),
            DSV4_LEASE_WAIT_S=str(wait_s),
            impl=None,
        )
    finally:
        holder.kill()


def test_no_free_slot_stops_the_run_in_one_sentence(gpu_project: Project) -> None:
    ran = beside_a_holder(gpu_project, "1", 0.1)
    assert ran.code == 2, ran.out + ran.err
    assert "STOPPED: All 1 slot(s) of each of 1 visible GPU(s) stayed taken" in ran.out
    assert "Traceback" not in ran.out


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_long_wait_is_told(gpu_project: Project, workers: str) -> None:
    ran = beside_a_holder(gpu_project, workers, SILENCE_S + 0.5)
    assert ran.code == 2, ran.out + ran.err
    shared = gpu_project.folder / "leases"
    assert f"are taken by runs that share {shared}; waiting for one, up to 6 s." in ran.err
