"""``dsv4-conformance ab``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cli.options import Device, Profile, Seed
from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.report.ab_process import Build

REPEATS = 20
TIMEOUT_S = 300.0


def ab(
    impl: Annotated[
        list[str], typer.Option(metavar="NAME|MODULE:ATTR", help="Build A, then B. Once, if --path or --python differ.")
    ],
    path: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Where A's modules are looked for first, then B's.")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option(metavar="PYTHON", help="A's interpreter, then B's, where they need others.")
    ] = None,
    profile: Profile = "default",
    seed: Seed = "0",
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(metavar="N", help="Timed calls of each build per case; 0: none.")] = REPEATS,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time that a case may take.")] = TIMEOUT_S,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write ab.html and ab.md there, too.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|markdown", help="What is printed.")] = "text",
    same_bits: Annotated[bool, typer.Option("--same-bits", help="Exit code 1 if any bit differs.")] = False,
) -> int:
    """Compare two builds of one kernel on the attention cases of a profile, each build in a process of its own.

    Told per case: bits that differ, errors against the float64 oracle in budgets, and the ratio of the times.

    Exit code: 0 both are right everywhere, 1 either is not (or bits differ, with --same-bits), 2 bad input, 5 nothing
    was compared.

    Example: dsv4-conformance ab --impl my_kernel:MyKernel --path build-old --path build-new -o ab
    """
    from dsv4_conformance.plugin.options import read_seed

    if form not in ("text", "markdown"):
        raise BadInput(f"--format {form!r} is unknown; choose text or markdown.")
    if repeats < 0 or timeout <= 0:
        raise BadInput("--repeats and --timeout have to be positive; --repeats 0 takes no times.")
    builds = _builds(impl, path or [], python or [], device)
    number = read_seed(seed)

    from dsv4_conformance.report.ab import SURFACES, attention_cases, compare
    from dsv4_conformance.report.ab_process import SideProcess
    from dsv4_conformance.report.ab_text import Told, as_markdown, as_page, text, wrong
    from dsv4_conformance.report.writing import write

    sides: list[SideProcess] = []
    try:
        for mark, build in zip("AB", builds, strict=True):
            sides.append(SideProcess(mark, build, timeout))
        offered = [name for name in SURFACES if all(name in side.hello["surfaces"] for side in sides)]
        cases = attention_cases(profile, number, offered)
        hellos = (sides[0].hello, sides[1].hello)
        found = Told(hellos, profile, list(compare((sides[0], sides[1]), cases, repeats)))
    finally:
        for side in sides:
            side.close()
    if output is not None:
        write(
            output,
            {
                "ab.html": lambda file: file.write(as_page(found)),
                "ab.md": lambda file: file.write(as_markdown(found)),
            },
        )
    typer.echo(as_markdown(found) if form == "markdown" else "\n".join(text(found)))
    if output is not None:
        typer.echo(f"page: {output / 'ab.html'}")
    if any(map(wrong, found.cases)):
        return ExitCode.FAILED
    if not found.both:
        typer.echo("Nothing was compared: the two builds offer no attention case in common.", err=True)
        return ExitCode.NOTHING_CHECKED
    return ExitCode.FAILED if same_bits and any(case.differing for case in found.cases) else ExitCode.QUALIFIES


def _builds(impl: list[str], path: list[Path], python: list[str], device: str) -> tuple[Build, Build]:
    """The two builds that the words describe. Raises BadInput where they describe one, or three."""
    import sys

    from dsv4_conformance.report.ab_process import Build

    for option, given in (("--impl", impl), ("--path", path), ("--python", python)):
        if len(given) > 2:
            raise BadInput(f"{option} was given {len(given)} times; give A's, then B's.")
    absent = next((folder for folder in path if not folder.is_dir()), None)
    if absent is not None:
        raise BadInput(f"--path {absent} is no folder; name the one that holds the build's modules.")
    names, folders, programs = ([*given, given[-1]][:2] if given else [] for given in (impl, path, python))
    made = [
        Build(
            str(names[n]),
            Path(folders[n]) if folders else None,
            str(programs[n]) if programs else sys.executable,
            device,
        )
        for n in (0, 1)
    ]
    if made[0] == made[1]:
        raise BadInput("A and B are the same build; give --impl, --path or --python twice, A's first.")
    return made[0], made[1]
