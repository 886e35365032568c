"""The pytest options of group "dsv4", and what the user gave for them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.endpoint_options import Asked, add_endpoint_options, read_endpoint
from dsv4_conformance.plugin.option_values import (
    LONGEST_S,
    SANITIZERS,
    read_number,
    read_path,
    read_sanitizer,
    read_shard,
    read_surfaces,
)
from dsv4_conformance.plugin.option_values import read_seed as read_seed

if TYPE_CHECKING:
    import pytest

DEFAULT_IMPL = "builtin"
DEFAULT_PROFILE = "default"
DEFAULT_RESULTS = "dsv4-results"
DEFAULT_TIMEOUT_S = 300.0
SANITIZED = 12
"""How much longer a case may take under compute-sanitizer, unless the user says how long."""
NAMES = (
    "impl",
    "profile",
    "seed",
    "results",
    "device",
    "case",
    "surface",
    "timeout",
    "memory",
    "sanitizer",
    "resume",
    "shard",
    "durations",
    "waivers",
)
"""Options by name, without the prefix --dsv4-."""


@dataclass(frozen=True)
class Options:
    """What the options say, defaults filled in. ``results`` is absolute; ``cases`` empty means every case."""

    impl: str = DEFAULT_IMPL
    profile: str = DEFAULT_PROFILE
    profile_given: bool = False
    seed: int = 0
    results: Path = Path(DEFAULT_RESULTS)
    device: str = "auto"
    cases: tuple[str, ...] = ()
    surfaces: tuple[str, ...] = ()
    """Cases of other surfaces are deselected; empty means every surface."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_gib: float = 0.0
    """Data that a process which runs cases may have, in GiB; 0: as much as there is."""
    sanitizer: str | None = None
    resume: bool = False
    shard: tuple[int, int] | None = None
    durations: Path | None = None
    waivers: Path | None = None
    """A waiver file, or a folder of them, in place of the shipped ones."""
    endpoint: Asked = field(default_factory=Asked)
    """The served model whose accuracy is judged, if any."""
    given: bool = False
    """Whether any option was given at all: then the user means a conformance run, whatever is collected."""

    def reproducer(self, case_id: str) -> str:
        """The command that re-runs one case the way this run ran it, default words left out.

        A case that a file of DSV4_FIXED_CASES adds is named by its file: without the variable its id is unknown.
        """
        from dsv4_conformance.cases.fixed import file_of

        file = file_of(case_id)
        words = [f"dsv4-conformance repro {shlex.quote(file) if file else case_id}"]
        words += [f"--impl {self.impl}"] if self.impl != DEFAULT_IMPL else []
        words += [f"--profile {self.profile}"] if self.profile != DEFAULT_PROFILE else []
        words += [f"--seed {self.seed}"] if self.seed else []
        words += [f"--device {self.device}"] if self.device != "auto" else []
        return " ".join([*words, *self.endpoint.words])


def add_options(parser: pytest.Parser) -> None:
    """Declare the options. All are strings or lists, and unset by default, so that xdist can pass them to workers."""
    group = parser.getgroup("dsv4", "DeepSeek-V4 conformance")
    group.addoption(
        "--dsv4-impl",
        metavar="NAME|MODULE:ATTR",
        help=f"implementation under test: a registered name or the adapter class itself (default: {DEFAULT_IMPL})",
    )
    group.addoption(
        "--dsv4-profile",
        metavar="NAME",
        help=f"how much to run and what is mandatory: smoke, default, pre-merge, ... (default: {DEFAULT_PROFILE})",
    )
    group.addoption(
        "--dsv4-seed", metavar="N", help="stream that random cases come from; 0 is the published one (default: 0)"
    )
    group.addoption(
        "--dsv4-results",
        metavar="DIR",
        help=f"folder of the journal (default: ./{DEFAULT_RESULTS}); older ones are kept",
    )
    group.addoption(
        "--dsv4-device", metavar="auto|cpu|cuda", help="device of the implementation (default: auto: a GPU if it can)"
    )
    group.addoption(
        "--dsv4-case",
        metavar="ID",
        action="append",
        help="run this case alone, such as INV-02-1a2b3c4d (repeatable); searched in the given profile, else in all",
    )
    group.addoption(
        "--dsv4-surface",
        metavar="NAME",
        action="append",
        help="run the cases of this surface alone, such as SparseDecode (repeatable)",
    )
    group.addoption(
        "--dsv4-timeout",
        metavar="SECONDS",
        help=f"time a case may take; then its process is ended (default: {DEFAULT_TIMEOUT_S:g})",
    )
    group.addoption(
        "--dsv4-memory", metavar="GIB", help="host memory that a process which runs cases may take (default: no limit)"
    )
    group.addoption(
        "--dsv4-sanitizer",
        metavar="TOOL",
        help=f"run under compute-sanitizer and charge findings to cases: {', '.join(SANITIZERS)}",
    )
    group.addoption(
        "--dsv4-resume",
        action="store_const",
        const="yes",
        help="go on with the run whose journal is in the results folder; refused if anything differs",
    )
    group.addoption("--dsv4-shard", metavar="I/N", help="run the I-th of N parts of the plan, about equally long")
    group.addoption(
        "--dsv4-durations",
        metavar="JOURNAL",
        help="an earlier run's journal, whose times balance the shards; the same one for every shard",
    )
    group.addoption(
        "--dsv4-waivers", metavar="FILE", help="waivers: a TOML file or a folder of them (default: golden/waivers)"
    )
    add_endpoint_options(group)


def read_options(config: pytest.Config) -> Options:
    """The options of this process. Raises BadInput for an empty value, and for a seed that is no number from 0 on."""
    given = {name: config.getoption(f"dsv4_{name}") for name in NAMES}
    here = config.invocation_params.dir
    return Options(
        impl=_value("impl", given["impl"], DEFAULT_IMPL),
        profile=_value("profile", given["profile"], DEFAULT_PROFILE),
        profile_given=given["profile"] is not None,
        seed=read_seed(given["seed"]),
        results=results_path(config),
        device=_value("device", given["device"], "auto"),
        cases=tuple(dict.fromkeys(given["case"] or ())),
        surfaces=read_surfaces(given["surface"]),
        timeout_s=read_number(
            "--dsv4-timeout",
            given["timeout"],
            DEFAULT_TIMEOUT_S * (SANITIZED if given["sanitizer"] else 1),
            LONGEST_S,
        ),
        memory_gib=read_number("--dsv4-memory", given["memory"], 0.0, 1e6),
        sanitizer=read_sanitizer(given["sanitizer"]),
        resume=given["resume"] is not None,
        shard=read_shard(given["shard"]),
        durations=read_path(here, "--dsv4-durations", given["durations"]),
        waivers=read_path(here, "--dsv4-waivers", given["waivers"]),
        endpoint=read_endpoint(config),
        given=any(value is not None for value in given.values()) or config.getoption("dsv4_endpoint") is not None,
    )


def results_path(config: pytest.Config) -> Path:
    """The results folder, absolute. Raises BadInput if its name is empty."""
    chosen = _value("results", config.getoption("dsv4_results"), DEFAULT_RESULTS)
    return config.invocation_params.dir / Path(chosen).expanduser()


def _value(name: str, given: str | None, default: str) -> str:
    """``given``, or the default if the option is absent: an empty word is an unset variable of a script, no choice."""
    if given is not None and not given.strip():
        raise BadInput(f"The value of --dsv4-{name} is empty; give one, or leave the option out for {default!r}.")
    return default if given is None else given
