"""The command ``dsv4-conformance``: a table of commands, each in a module of its own, imported when it is used."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dsv4_conformance.errors import BadInput, ExitCode, HarnessError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("dsv4_conformance.cli.run:run", "Run the suites on an implementation."),
    "smoke": ("dsv4_conformance.cli.smoke:smoke", "Is it the harness or the implementation? Seconds."),
    "repro": ("dsv4_conformance.cli.repro:repro", "Re-run one case, or write it as a stand-alone script."),
    "replay": ("dsv4_conformance.cli.replay:replay", "Run one layer through a schedule of your own, and judge it."),
    "soak": ("dsv4_conformance.cli.soak:soak", "Judge fresh random cases for as long as you like; shrink what fails."),
    "list": ("dsv4_conformance.cli.listing:listing", "List implementations, requirements, profiles or cases."),
    "explain": ("dsv4_conformance.cli.explain:explain", "Explain a requirement: text, sources, public bugs, tests."),
    "judge": ("dsv4_conformance.cli.judge:judge", "Judge one attention call dumped from a live server."),
    "doctor": ("dsv4_conformance.cli.doctor:doctor", "Say what a deployment will do, and what is wrong with it."),
    "ranks": ("dsv4_conformance.cli.ranks:ranks", "Run a layer on several ranks at once, one GPU each."),
    "waivers": ("dsv4_conformance.cli.waivers:app", "List, add and check permissions for known failures."),
    "merge": ("dsv4_conformance.cli.merge:merge", "Make one journal of the shards of a run."),
    "report": ("dsv4_conformance.cli.report:report", "Tell runs side by side: HTML, Markdown, JUnit, CTRF, badges."),
    "matrix": ("dsv4_conformance.cli.matrix:matrix", "Run implementations or releases, and print requirement by row."),
    "diff": ("dsv4_conformance.cli.diff:diff", "Say what changed between two runs, case by case."),
    "ab": ("dsv4_conformance.cli.ab:ab", "Compare two builds of one kernel: bits, errors, times."),
    "trend": ("dsv4_conformance.cli.trend:trend", "Show several runs over time."),
    "verify": ("dsv4_conformance.cli.verify:verify", "Recompute a submission; refuse gaps and edits."),
    "summary": ("dsv4_conformance.cli.summary:summary", "Write runs as Markdown, from their journals."),
    "lint": ("dsv4_conformance.cli.lint:lint", "Can a profile's data show every known mistake?"),
    "faults": ("dsv4_conformance.cli.faults:faults", "Do the suites catch public bugs? Re-creates them and looks."),
    "bench": ("dsv4_conformance.cli.bench:bench", "Measure the harness, or what the built-in layer costs."),
    "accuracy": ("dsv4_conformance.cli.accuracy:app", "Ask a served model GSM8K and AIME25, and record its answers."),
    "simulate-server": ("dsv4_conformance.cli.simulate_server:simulate_server", "Rehearse accuracy runs, no GPU."),
    "golden": ("dsv4_conformance.cli.golden:app", "Check the recorded expected data, or record it anew."),
    "new-adapter": ("dsv4_conformance.cli.new_adapter:new_adapter", "Write a small adapter package to start from."),
}
"""Command -> ("module:function", its line in --help). The function's parameters are its options, as typer reads them;
what it returns is the exit code, None being 0. A command with commands of its own names a typer app instead."""

INTERRUPTED = 130


class _Root(TyperGroup):
    """Shows the table's lines in --help and imports a command's module only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that knows its line of help."""
        return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(str(name)), rest


def _load(name: str) -> Any:
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False, rich_markup_mode=None)
    if app is not found:
        app.command(name)(found)
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from dsv4_conformance import __version__

        typer.echo(f"dsv4-conformance {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Is a DeepSeek-V4 attention kernel right? Conformance suites with a float64 oracle."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with an ExitCode, 130 after Ctrl-C. Bad input is one sentence on stderr."""
    app = typer.Typer(cls=_Root, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_root)
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="dsv4-conformance", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BadInput as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        code = ExitCode.BAD_INPUT
    except HarnessError as error:
        typer.echo(f"dsv4-conformance: {error} This is a fault of the suite; please report it.", err=True)
        code = ExitCode.HARNESS_ERROR
    except typer.Abort:
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "exit_code"):  # not one of typer's own complaints about the words on the command line
            traceback.print_exc()
            sys.exit(int(ExitCode.HARNESS_ERROR))
        error.show()  # type: ignore[attr-defined]
        code = ExitCode.BAD_INPUT
    sys.exit(int(code or 0))
