"""Options about a served model, for the accuracy suite: --dsv4-endpoint and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from dsv4_conformance.errors import BadInput

if TYPE_CHECKING:
    import pytest

NAMES = ("endpoint", "model", "golden", "answers", "weights")


@dataclass(frozen=True)
class Asked:
    """The server that the user named; ``url`` "" means none.

    ``model``: its name there, None for the one that the golden folder has goldens of. ``golden``: golden folder, or the
    file of one golden in it, None for the shipped folder. ``answers``: folder that answers are taken from and kept in,
    None for a fresh one. ``weights``: declared revision and accuracy class. ``notes``: NAME=TEXT each, which tell the
    build from others. ``same_build``: answers of another address or other notes are of the same one.
    """

    url: str = ""
    model: str | None = None
    golden: Path | None = None
    answers: Path | None = None
    weights: str = "undeclared"
    notes: tuple[str, ...] = ()
    same_build: bool = False

    @property
    def words(self) -> list[str]:
        """The command line's words for this server, without the prefix dsv4-; after -- what pytest alone knows."""
        values = {
            "endpoint": self.url or None,
            "model": self.model,
            "golden": self.golden,
            "answers": self.answers,
            "weights": None if self.weights == "undeclared" else self.weights,
        }
        words = [quote(word) for name, v in values.items() if v is not None for word in (f"--{name}", str(v))]
        after = [quote(word) for note in self.notes for word in ("--dsv4-note", note)]
        after += ["--dsv4-same-build"] if self.same_build else []
        return [*words, *(["--", *after] if after else [])]

    @property
    def golden_place(self) -> tuple[Path | None, str | None]:
        """Golden folder, and the name of the golden in it where one was named; None for what was not given."""
        if self.golden is not None and self.golden.suffix == ".json":
            return self.golden.parent.parent, self.golden.stem
        return self.golden, None


def add_endpoint_options(group: pytest.OptionGroup) -> None:
    """Declare the options; unset by default, so that xdist can pass them to workers."""
    group.addoption(
        "--dsv4-endpoint",
        metavar="URL",
        help="OpenAI-compatible server for the accuracy suite, as in http://HOST:8000/v1 (default: none, not selected)",
    )
    group.addoption("--dsv4-model", metavar="NAME", help="the served model that has goldens (default: the only one)")
    group.addoption(
        "--dsv4-golden",
        metavar="DIR|FILE",
        help="golden folder of accuracy runs, or one golden in it, DIR/accuracy/NAME.json (default: the shipped one)",
    )
    group.addoption(
        "--dsv4-answers",
        metavar="DIR",
        help="keep answers here; those of this very build that are here are not asked for again (default: ask anew)",
    )
    group.addoption(
        "--dsv4-weights", metavar="TEXT", help="declared revision and accuracy class of the weights, as in the golden"
    )
    group.addoption(
        "--dsv4-note",
        metavar="NAME=TEXT",
        action="append",
        help="of the served build, such as commit=...: answers of a build with other notes are not gone on with",
    )
    group.addoption(
        "--dsv4-same-build",
        action="store_true",
        default=None,
        help="go on with the answers of --dsv4-answers although address or notes changed: it is the same build",
    )


def read_endpoint(config: pytest.Config) -> Asked:
    """What the options say. Raises BadInput for an empty value, and for the others without --dsv4-endpoint."""
    given = {name: config.getoption(f"dsv4_{name}", None) for name in NAMES}
    for name, value in given.items():
        if value is not None and not value.strip():
            raise BadInput(f"The value of --dsv4-{name} is empty; give one, or leave the option out.")
    present = {name: value for name, value in given.items() if value is not None}
    notes: list[str] = config.getoption("dsv4_note", None) or []
    same_build = bool(config.getoption("dsv4_same_build", None))
    others = [*present, *(["note"] if notes else []), *(["same-build"] if same_build else [])]
    if others and "endpoint" not in present:
        raise BadInput(f"--dsv4-{others[0]} goes with --dsv4-endpoint; say which server.")
    if same_build and "answers" not in present:
        raise BadInput("--dsv4-same-build goes with --dsv4-answers; say which answers to go on with.")
    for note in notes:
        if not note.partition("=")[0].strip() or "=" not in note:
            raise BadInput(f"--dsv4-note is {note!r}; give NAME=TEXT.")
    here = config.invocation_params.dir

    def path(name: str) -> Path | None:
        return here / Path(present[name]).expanduser() if name in present else None

    asked = Asked(
        url=present.get("endpoint", ""),
        model=present.get("model"),
        golden=path("golden"),
        answers=path("answers"),
        weights=present.get("weights", "undeclared"),
        notes=tuple(notes),
        same_build=same_build,
    )
    if asked.url and not hasattr(config, "workerinput") and not config.option.collectonly:
        _look(asked)
    return asked


def _look(asked: Asked) -> None:
    """Raise BadInput for a server, a folder or answers of an earlier run that would end this one at its beginning."""
    from dsv4_conformance.accuracy.harness import without_extra

    try:
        from dsv4_conformance.accuracy.preflight import preflight
    except ImportError as error:
        raise without_extra(error) from None
    from dsv4_conformance import resources
    from dsv4_conformance.accuracy.pytest_words import in_pytest
    from dsv4_conformance.cases.accuracy_case import TASKS

    kept = [asked.answers / f"{task}.jsonl" for task in TASKS] if asked.answers and not asked.same_build else []
    folder, name = asked.golden_place
    notes = dict(note.split("=", 1) for note in asked.notes)
    try:
        if asked.answers is not None:
            _takes_files(asked.answers)
        preflight(asked.url, asked.model, notes, kept, folder or resources.golden_dir(), name, TASKS)
    except BadInput as error:
        raise BadInput(in_pytest(str(error))) from None


def _takes_files(folder: Path) -> None:
    """Raise BadInput if answers could not be kept in ``folder``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({error.strerror}); name another folder with --dsv4-answers."
        ) from None
