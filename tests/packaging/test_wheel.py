"""What the distributions carry: after a plain install the suites run where there is no checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHES = {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def build(project: Path, target: str, into: Path) -> Path:
    """Build the ``wheel`` or ``sdist`` of ``project``; returns the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = into.iterdir()
    return built


def names(wheel: Path) -> set[str]:
    """Files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked outside the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def away(site: Path, cwd: Path, *arguments: str) -> str:
    """What ``python ARGUMENTS`` prints in an empty folder, with the unpacked wheel first on its path."""
    cwd.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("folder", "shipped"),
    [
        ("dsv4_conformance", "dsv4_conformance"),
        ("suites", "dsv4_conformance/_shipped/suites"),
        ("golden", "dsv4_conformance/_shipped/golden"),
    ],
)
def test_wheel_carries_every_file_of(folder: str, shipped: str, wheel: Path) -> None:
    files = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()}
    files = {path for path in files if not CACHES & set(path.parts)}
    assert files
    assert {f"{shipped}/{path.as_posix()}" for path in files} <= names(wheel)


def test_wheel_carries_nothing_else(wheel: Path) -> None:
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names(wheel)} == {
        "dsv4_conformance",
        "-".join(wheel.name.split("-")[:2]),
    }
    assert not {name for name in names(wheel) if CACHES & set(name.split("/"))}


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    project = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert names(build(project, "wheel", tmp_path / "again")) == names(wheel)
    found = {path.name for path in project.iterdir()}
    assert found >= {"README.md", "LICENSE", "constraints", "docs", "golden", "suites", "tests", "tox.ini"}


def test_resources_of_an_unpacked_wheel(site: Path, tmp_path: Path) -> None:
    program = "from dsv4_conformance.resources import *; print(suites_dir()); print(golden_dir())"
    shipped = site / "dsv4_conformance/_shipped"
    assert away(site, tmp_path / "empty", "-c", program).split() == [str(shipped / "suites"), str(shipped / "golden")]


def test_shipped_suites_have_the_test_ids_of_the_checkout(site: Path, tmp_path: Path) -> None:
    def collect(suites: Path, package: Path) -> list[str]:
        options = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        printed = away(package, tmp_path / "empty", *options, str(suites))
        return [line for line in printed.splitlines() if "::" in line]

    ours = collect(ROOT / "suites", ROOT)
    assert ours
    assert collect(site / "dsv4_conformance/_shipped/suites", site) == ours
