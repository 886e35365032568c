"""``dsv4-conformance repro``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli.options import (
    Answers,
    AnyProfile,
    Device,
    Endpoint,
    GoldenFolder,
    Impl,
    Model,
    Results,
    Seed,
    Weights,
    endpoint_words,
)
from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.options import DEFAULT_IMPL, DEFAULT_PROFILE, DEFAULT_RESULTS, Options, read_seed


def repro(
    case: Annotated[
        str, typer.Argument(metavar="CASE|FILE", help="Such as INV-02-1a2b3c4d, from a report, or a file of soak's.")
    ],
    impl: Impl = DEFAULT_IMPL,
    profile: AnyProfile = None,
    seed: Seed = "0",
    device: Device = "auto",
    results: Results = f"{DEFAULT_RESULTS}/repro",
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the case as a Python script instead of running it.")
    ] = None,
    endpoint: Endpoint = None,
    model: Model = None,
    golden: GoldenFolder = None,
    answers: Answers = None,
    weights: Weights = None,
    pytest_arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PYTEST ARGUMENTS]", help="Passed to pytest, such as --pdb.")
    ] = None,
) -> int:
    """Re-run just that case. The journal goes to a folder of its own, so that the run's journal stays as it is."""
    if case.endswith(".json"):
        case = _from_file(Path(case))
    if script is not None:
        options = Options(
            impl=impl,
            profile=DEFAULT_PROFILE if profile is None else profile,
            profile_given=profile is not None,
            seed=read_seed(seed),
            device=device,
            cases=(case,),
        )
        _write(script, options)
        typer.echo(f"wrote {script}; run it with: python {script}")
        return 0
    from dsv4_conformance.cli.pytest_run import run_pytest

    words = ["--dsv4-case", case, "--dsv4-impl", impl, "--dsv4-seed", seed, "--dsv4-device", device]
    words += ["--dsv4-results", results, "-q"]
    words += ["--dsv4-profile", profile] if profile is not None else []
    words += endpoint_words(endpoint, model, golden, answers, weights)
    return run_pytest([*words, *(pytest_arguments or [])])


def _from_file(path: Path) -> str:
    """The id of the case in a file that soak kept; the files of its folder are fixed cases of this run."""
    from dsv4_conformance.cases.fixed import VARIABLE, read_fixed
    from dsv4_conformance.cases.identity import case_id

    try:
        fixed = read_fixed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"Cannot read {path} ({type(error).__name__}); name a file of a failed case.") from None
    os.environ[VARIABLE] = str(path.resolve().parent)
    return case_id(fixed.test, fixed.requirement, fixed.case)


def _write(path: Path, options: Options) -> None:
    from dsv4_conformance.cli.script import script_of
    from dsv4_conformance.cli.suite_functions import suite_functions
    from dsv4_conformance.plugin.collection import Planner
    from dsv4_conformance.plugin.settings import resolve

    settings = resolve(options)
    planner = Planner(settings)
    found = [(f, item) for f in suite_functions() for item in planner.items(f.function, f.spec)]
    if not found:
        raise BadInput(
            f"No test has the case {options.cases[0]} in {options.profile if options.profile_given else 'any'} profile "
            f"with seed {options.seed}; take the id, the profile and the seed from the failure's report."
        )
    function, item = found[0]
    if item.planned is None:
        raise BadInput(
            f"{settings.implementation.identity.name} does not offer {item.surface}: there is nothing to run."
        )
    try:
        path.write_text(script_of(function, item, item.planned, settings), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The script {path} cannot be written ({error.strerror}); name another file.") from None
