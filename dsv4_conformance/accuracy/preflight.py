"""What would end an accuracy run before its first question, found before anything else of a pytest run begins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from dsv4_conformance.accuracy import golden_files
from dsv4_conformance.accuracy.client import Client, Endpoint
from dsv4_conformance.accuracy.journal import same_build
from dsv4_conformance.accuracy.obtaining import NoGolden, golden_for
from dsv4_conformance.accuracy.probe import identity
from dsv4_conformance.accuracy.reading import begun, load
from dsv4_conformance.accuracy.records import RunHeader
from dsv4_conformance.accuracy.soundness import SYSTEM

PATIENCE_S = 30.0


def preflight(
    url: str,
    model: str | None,
    notes: dict[str, str],
    answers: Iterable[Path],
    folder: Path,
    name: str | None,
    tasks: Iterable[str],
) -> None:
    """Raise BadInput where no server is, where it does not serve ``model``, where ``answers`` are another build's,
    where ``folder`` is not there or holds no golden, and where the golden of one of the ``tasks`` was edited.

    ``answers``: files of runs that the user wants to go on with, whether or not they are there. ``folder``, ``name``:
    golden folder, and which golden in it. That there is none for a task is no reason not to judge the other.
    """
    golden_files.existing(folder)
    for task in tasks:
        with contextlib.suppress(NoGolden):
            golden_for(folder, model, task, name)
    endpoint = Endpoint(url, deadline_s=PATIENCE_S)
    _, says = asyncio.run(_identity(endpoint, model))
    build = RunHeader("", "", "chat", 0, (), {}, "", {}, notes=notes, url=endpoint.address, server=says).build
    for path in answers:
        if begun(path) is not None and (kept := load(path, texts=False)).answers:
            known = [kept.header.build, *(session.build for session in kept.sessions)]
            same_build(path, [{k: v for k, v in one.items() if k != SYSTEM} for one in known], build)


async def _identity(endpoint: Endpoint, model: str | None) -> tuple[str, dict[str, str]]:
    async with Client(endpoint) as client:
        return await identity(client, model)
