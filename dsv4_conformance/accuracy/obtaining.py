"""From a server and a golden to a judgement: ask as the golden was asked, look by look, until there is a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsv4_conformance.accuracy import golden_files
from dsv4_conformance.accuracy.comparable import differing_fields
from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.gate import Judgement, judge
from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.profiles import rule_of
from dsv4_conformance.accuracy.records import AccuracyRun, EndpointKind, RunHeader
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted

NO_SETTINGS = frozenset(
    (
        "task",
        "task_version",
        "dataset",
        "items",
        "fewshot",
        "prompts",
        "parser",
        "seeds",
        "weights",
        "model",
        "template",
    )
)
"""Fields of a fingerprint that are no generation settings."""
DEADLINES_S = {"aime25": 14400.0}
DEADLINE_S = 600.0


class NoGolden(BadInput):
    """There is nothing to compare a run with."""


class Unlike(BadInput):
    """The run that was about to begin could not have been compared with the golden."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(" ".join(judgement.invalid))
        self.judgement = judgement


def asked_like(golden: Golden, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides, under lm-eval's names, that make a request of the task the golden's; ``defaults``: the task's body."""
    wanted = {name: _value(text) for name, text in golden.fingerprint.items() if name not in NO_SETTINGS}
    theirs = {"max_tokens": "max_gen_toks", "stop": "until"}
    changed = {name: value for name, value in wanted.items() if defaults.get(name) != value}
    dropped = {name: None for name in defaults if name not in wanted}
    return {theirs.get(name, name): value for name, value in {**changed, **dropped}.items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def judgement_of(
    url: str,
    model: str | None,
    task: str,
    profile: str,
    folder: Path,
    answers: Path,
    *,
    weights: str = "undeclared",
    verify: bool = True,
    quiet: bool = False,
    notes: Mapping[str, str] | None = None,
    same_build: bool = False,
    run: str = "",
    name: str | None = None,
    seed: int | None = None,
) -> Judgement:
    """Run ``task`` against the server at ``url`` and judge it, with as many looks as it takes.

    ``folder`` is the golden folder, ``answers`` keeps the answers: those that are there are not asked for again.
    ``verify``: the questions must be the known ones. ``notes``, ``same_build``, ``run`` and ``seed`` as in Settings.
    ``name``: which golden, where there are several of the model.
    What cannot be compared is found before anything is asked.
    Raises BadInput for a server or data that cannot be used, NoGolden where there is none, probe.NotAsAsked and
    pump.ServerGone as run_task does.
    """
    from dsv4_conformance.accuracy.bodies import settings_of
    from dsv4_conformance.accuracy.client import Endpoint
    from dsv4_conformance.accuracy.harness import generation_of
    from dsv4_conformance.accuracy.run import Settings, run_task
    from dsv4_conformance.accuracy.tasks import task as task_called
    from dsv4_conformance.accuracy.tasks import task_file

    rule = rule_of(profile, task)
    golden = golden_for(folder, model, task, name)
    kind: EndpointKind = "chat" if golden.endpoint == "chat" else "completions"
    defaults = settings_of(generation_of(task_file(task_called(task), kind), {}))

    def check(header: RunHeader) -> None:
        run = AccuracyRun(header, ())
        if list(differing_fields(golden, run)):
            raise Unlike(judge(golden, run, rule, profile))

    session = uuid4().hex
    for look in rule.looks:
        settings = Settings(
            task=task,
            endpoint=Endpoint(url, kind, deadline_s=DEADLINES_S.get(task, DEADLINE_S)),
            results=answers,
            model=model,
            repeats=look,
            generation=asked_like(golden, defaults),
            weights=weights,
            retry_errors=True,
            verify=verify,
            quiet=quiet,
            check=check,
            notes=notes or {},
            same_build=same_build,
            run=run or session,
            seed=seed,
        )
        try:
            found = judge(golden, run_task(settings).run, rule, profile)
        except Unlike as unlike:
            return unlike.judgement
        if found.verdict != Verdict.INCONCLUSIVE:
            break
    return found


def golden_for(folder: Path, model: str | None, task: str, name: str | None = None) -> Golden:
    """The golden to judge by, checked against the manifest. Raises NoGolden, and BadInput for one that was edited."""
    golden = _found(folder, model, task, name)
    golden_files.check(folder, golden.name)
    return golden


def _found(folder: Path, model: str | None, task: str, name: str | None) -> Golden:
    if name is not None:
        named = golden_files.load(folder, name)
        if named.task != task:
            raise NoGolden(f"The golden {name} is of {named.task}, and not of {task}.")
        return named
    names = golden_files.names(folder)
    if model is None:
        of_task = [golden for name in names if (golden := golden_files.load(folder, name)).task == task]
        if len(of_task) == 1:
            return of_task[0]
        raise NoGolden(
            f"Say which model is served with --dsv4-model; {folder} has {counted(len(of_task), 'golden')} of {task}."
        )
    found = golden_files.find(folder, model, task)
    if found is None:
        raise NoGolden(
            f"There is no golden of {model!r} for {task} in {folder / golden_files.FOLDER}, so that nothing can be "
            f"compared; record one on a trusted build: dsv4-conformance golden record --task {task} --endpoint URL."
        )
    return found
