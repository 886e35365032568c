"""``dsv4-conformance accuracy power``: how often the gate is right, and how often published gates are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.errors import BadInput

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.item_model import ItemModel
    from dsv4_conformance.accuracy.profiles import Rule


def power(
    task: Annotated[str, typer.Option(metavar="TASK", help="gsm8k or aime25.")] = "gsm8k",
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Questions; the task's, if not given.")] = None,
    golden_runs: Annotated[
        int | None, typer.Option(metavar="K", help="Passes of the golden; what the profile wants, if not given.")
    ] = None,
    mean: Annotated[float | None, typer.Option(metavar="SHARE", help="Mean pass probability, such as 0.962.")] = None,
    noise_ratio: Annotated[
        float | None, typer.Option(metavar="R", help="Variance of a pass over that of a coin, such as 0.14.")
    ] = None,
    golden: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take questions, passes, mean and noise from this golden.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Golden folder.")] = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="pre-merge or release.")] = "pre-merge",
    margin: Annotated[float | None, typer.Option(metavar="POINTS", help="Instead of the profile's.")] = None,
    looks: Annotated[str | None, typer.Option(metavar="K,K,K", help="Instead of the profile's.")] = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Trials per scenario and gate.")] = 2000,
    seed: Annotated[int, typer.Option(metavar="N", help="Stream of the draws.")] = 0,
    others: Annotated[
        bool, typer.Option("--published/--ours-only", help="Beside the gates that engines publish.")
    ] = True,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Write tables in Markdown.")] = False,
) -> None:
    """Print how often each gate passes and fails an engine. Unchanged, slightly and badly changed ones are simulated.

    Questions, golden and candidate are drawn from the item model in every trial and judged by the code that judges
    real runs. The brackets hold exact 95 % intervals of the simulation.
    """
    from dsv4_conformance.accuracy.power import our_gate, scenarios, simulate
    from dsv4_conformance.accuracy.power_text import markdown, plain, rules
    from dsv4_conformance.accuracy.profiles import load_rules, rule_of
    from dsv4_conformance.accuracy.published_gates import published

    if trials < 1:
        raise BadInput(f"{trials} trials show nothing; give 1 or more.")
    if profile not in load_rules():
        raise BadInput(f"{profile!r} has no accuracy rules; use {' or '.join(load_rules())}.")
    rule = _rule(rule_of(profile, task), margin, looks)
    model, runs = _model(task, golden, folder, rule.golden_runs)
    model = replace(
        model,
        items=model.items if n is None else n,
        mean=model.mean if mean is None else mean,
        noise_ratio=model.noise_ratio if noise_ratio is None else noise_ratio,
    )
    runs = runs if golden_runs is None else golden_runs
    if runs < 2:
        raise BadInput(f"A golden of {runs} pass has no noise of its own; give --golden-runs 2 or more.")
    gates = published(task, model.items) if others else ()
    ours = f"this gate, {profile}"
    judges = {ours: our_gate(rule, runs)} | {gate.name: gate.judge for gate in gates}
    found = simulate(judges, model, scenarios(task, model.items), trials, seed)
    told = ", ".join(str(look) for look in rule.looks)
    for line in (
        f"{task}: {model.items:,} questions, mean {100 * model.mean:.1f} %, noise ratio {model.noise_ratio:.2f}: a "
        f"pass varies by {100 * model.noise_of_a_pass():.2f} points",
        f"{ours}: margin {100 * rule.margin:g} points, golden of {runs} passes, looks after {told}; {trials:,} trials",
        *rules(gates),
        *(markdown(found) if as_markdown else plain(found)),
    ):
        typer.echo(line)


def _rule(rule: Rule, margin: float | None, looks: str | None) -> Rule:
    from pydantic import ValidationError

    from dsv4_conformance.accuracy.profiles import Rule

    changed = rule.model_dump()
    if margin is not None:
        changed |= {"margin": margin / 100, "floor": max(rule.floor, margin / 200)}
    try:
        if looks is not None:
            changed["looks"] = tuple(int(look) for look in looks.split(","))
        return Rule.model_validate(changed)
    except ValidationError as error:
        raise BadInput(f"--margin and --looks give no rule: {error.errors()[0]['msg']}.") from None
    except ValueError:
        raise BadInput(f"--looks {looks!r} is no list of whole numbers such as 1,2,4.") from None


def _model(task: str, golden: str | None, folder: Path | None, runs: int) -> tuple[ItemModel, int]:
    from dsv4_conformance import resources
    from dsv4_conformance.accuracy import golden_files
    from dsv4_conformance.accuracy.item_model import MODELS, ItemModel

    if golden is None:
        return MODELS[task], runs
    known = golden_files.load(folder or resources.golden_dir(), golden)
    if known.task != task:
        raise BadInput(f"The golden {golden!r} is of {known.task}; give --task {known.task}.")
    return ItemModel(len(known.rows), known.score, known.noise["ratio"]), known.runs
