"""Where the suites and the goldens are found."""

from pathlib import Path

import pytest

from dsv4_conformance import resources
from dsv4_conformance.errors import HarnessError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the package pretends to be installed in."""
    folder = tmp_path / "dsv4_conformance"
    folder.mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", folder)
    return folder


def test_a_checkout_uses_its_own_folders(package: Path) -> None:
    root = package.parent
    (root / "pyproject.toml").touch()
    (root / "suites").mkdir()
    (root / "golden").mkdir()
    (package / "_shipped/suites").mkdir(parents=True)
    assert resources.suites_dir() == root / "suites"
    assert resources.golden_dir() == root / "golden"


def test_an_installed_package_ignores_a_strangers_folder_beside_it(package: Path) -> None:
    (package.parent / "suites").mkdir()
    shipped = package / "_shipped/suites"
    shipped.mkdir(parents=True)
    assert resources.suites_dir() == shipped


def test_a_package_without_either_says_what_to_do(package: Path) -> None:
    with pytest.raises(HarnessError, match=r"golden/ is neither .* reinstall dsv4-conformance"):
        resources.golden_dir()
