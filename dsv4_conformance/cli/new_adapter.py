"""``dsv4-conformance new-adapter``."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput

FILES = {"pyproject.toml.txt": "pyproject.toml", "adapter.py.txt": "{module}.py", "README.md.txt": "README.md"}
"""Template -> file."""


def new_adapter(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder; its name becomes the adapter's.")],
) -> None:
    """Write a complete adapter package: it passes at once, and has the places where your kernel goes in."""
    names = _names(folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not an empty folder; name a new one, nothing is overwritten.")
    templates = resources.files("dsv4_conformance.cli").joinpath("templates")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, file in FILES.items():
            text = Template(templates.joinpath(template).read_text(encoding="utf-8")).substitute(names)
            (folder / file.format(**names)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}); name another folder.") from None
    typer.echo(f"wrote {folder}: start with {names['module']}.py, then")
    typer.echo(f"  cd {folder} && dsv4-conformance smoke --impl {names['module']}:{names['cls']}")


def _names(title: str) -> dict[str, str]:
    """What the templates call the adapter, from its folder's name. Raises BadInput if no Python name comes of it."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", title).lower())
    name = "_".join(words)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise BadInput(f"No Python name can be made of {title!r}; call the folder something like my_kernel.")
    module = f"{name}_adapter"
    return {
        "title": title,
        "name": name,
        "module": module,
        "distribution": "-".join([*words, "adapter"]),
        "cls": "".join(word.capitalize() for word in words),
    }
