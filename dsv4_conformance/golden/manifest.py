"""golden/MANIFEST.json: what each golden file is and its SHA-256."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv4_conformance.errors import BadInput

FORMAT = 1
NAME = "MANIFEST.json"


class Entry(BaseModel):
    """One file. ``cases``: canonical text of its case or cases; ``inputs``: SHA-256 of the tensors they give;
    ``oracle``: name of the definition that gave the results."""

    model_config = ConfigDict(extra="forbid")
    surface: str
    about: str
    cases: list[str]
    inputs: str
    oracle: str
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The whole file. Paths are relative to the golden folder."""

    model_config = ConfigDict(extra="forbid")
    format: int = FORMAT
    files: dict[str, Entry] = {}

    def text(self) -> str:
        """The file's content, the same for the same entries."""
        return json.dumps(self.model_dump(), indent=2, sort_keys=True) + "\n"


def load(folder: Path) -> Manifest:
    """The manifest of ``folder``. Raises BadInput if it is missing, unreadable, malformed or of another format."""
    path = folder / NAME
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"There is no {path}; restore it, or make it with `golden tensors --write`.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); make it readable.") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON ({error}); restore it from version control.") from None
    known = content.get("format") if isinstance(content, dict) else None
    if known != FORMAT:
        raise BadInput(
            f"{path} has format {known!r}, and this version reads {FORMAT}; use a matching dsv4-conformance."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path} is malformed at {where} ({first['msg']}); restore it from version control.") from None
