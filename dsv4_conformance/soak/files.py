"""What a soak leaves behind: one file per failure, and a log from which it can be resumed. Torch-free."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsv4_conformance.cases.fixed import FORMAT
from dsv4_conformance.errors import BadInput

LOG = "soak.jsonl"
FAILURES = "failures"
VERDICTS = ("PASS", "WARN", "FAIL", "CRASH", "TIMEOUT", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class Plan:
    """What makes two soaks the same one; the log begins with it."""

    impl: str
    version: str
    seed: int
    device: str
    size: str
    surfaces: tuple[str, ...] = ()


@dataclass
class Progress:
    """What has been done. ``chunks``: numbers of finished chunks; ``statuses`` and ``surfaces`` count cases;
    ``failures``: per suite function, cases that failed; ``files``: failure files, ``[name, test, sentence]``."""

    chunks: set[int] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    surfaces: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    files: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """Cases that have a verdict, those that ended their process among them."""
        return sum(self.statuses[status] for status in VERDICTS)

    @property
    def failed(self) -> int:
        """Cases in which the implementation is at fault."""
        return sum(self.failures.values())

    def take(self, line: Mapping[str, Any]) -> None:
        """Account for one line of the log."""
        if "chunk" in line:
            self.chunks.add(line["chunk"])
            self.statuses.update(line["statuses"])
            self.surfaces.update(line["surfaces"])
        else:
            self.failures[line["test"]] += 1
            if line["file"]:
                self.files.append((line["file"], line["test"], line["sentence"]))


class Log:
    """Appends to ``soak.jsonl`` in ``folder``. Raises BadInput if it cannot be written, if a soak is there and
    ``resume`` is not asked for, or if it is another one."""

    def __init__(self, folder: Path, plan: Plan, resume: bool) -> None:
        self.folder, self.progress = folder, Progress()
        path = folder / LOG
        try:
            (folder / FAILURES).mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if lines:
                self._go_on(lines, plan, path, resume)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"Cannot write to {folder} ({error.strerror}); give --results a writable folder.") from None
        if not lines:
            self._append(asdict(plan))

    def _go_on(self, lines: list[str], plan: Plan, path: Path, resume: bool) -> None:
        if not resume:
            raise BadInput(f"{path} holds a soak already; go on with it by --resume, or give --results another folder.")
        told = json.loads(lines[0])
        mine = json.loads(json.dumps(asdict(plan)))
        for name in mine:
            if told.get(name) != mine[name]:
                raise BadInput(f"{path} is of another soak: its {name} is {told.get(name)!r}, not {mine[name]!r}.")
        for line in lines[1:]:
            try:
                self.progress.take(json.loads(line))
            except json.JSONDecodeError:  # the last line of a soak that was killed
                continue

    def chunk_done(self, chunk: int, statuses: Counter[str], surfaces: Counter[str]) -> None:
        """One chunk is finished."""
        self._append({"chunk": chunk, "statuses": dict(statuses), "surfaces": dict(surfaces)})

    def failed(self, test: str, sentence: str, file: str) -> None:
        """One case failed; ``file``: the name of its file, "" if it has none."""
        self._append({"test": test, "sentence": sentence, "file": file})

    def keep(self, data: Mapping[str, Any], case_id: str) -> str:
        """Write a failure's file; its path relative to the results folder."""
        name = f"{FAILURES}/{case_id}.json"
        text = json.dumps({"format": FORMAT, **data}, indent=1, ensure_ascii=False)
        (self.folder / name).write_text(text + "\n", encoding="utf-8")
        return name

    def _append(self, line: Mapping[str, Any]) -> None:
        if "impl" not in line:
            self.progress.take(line)
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
