"""Where the suites and the goldens are: in the checkout the package runs from, else in the installed wheel."""

from pathlib import Path

from dsv4_conformance.errors import HarnessError

_PACKAGE = Path(__file__).resolve().parent


def suites_dir() -> Path:
    """Folder of the suite files that ``pytest`` collects.

    Raises HarnessError if neither a checkout nor the installed package has it.
    """
    return _folder("suites")


def golden_dir() -> Path:
    """Folder of the recorded expected data (tensors, accuracy records, waivers).

    Raises HarnessError if neither a checkout nor the installed package has it.
    """
    return _folder("golden")


def _folder(name: str) -> Path:
    checkout = _PACKAGE.parent
    # Beside an installed package lies site-packages, where a folder called "suites" may be anybody's.
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    shipped = _PACKAGE / "_shipped" / name
    if shipped.is_dir():
        return shipped
    raise HarnessError(
        f"The folder {name}/ is neither in {checkout} nor in {shipped.parent}; "
        "reinstall dsv4-conformance from a wheel, or run it from a complete checkout."
    )
