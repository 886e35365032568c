"""Layers that go wrong between steps: drawn schedules find them, the schedule that is told is short and fails alone."""

import shlex
from itertools import islice

import pytest

from dsv4_conformance import cli
from dsv4_conformance.cases import search
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.miniatures import compressor, properties
from tests.suites.runs import functions, planned

WRONG = {"RejectedEntriesStay": 4, "ChunkLosesItsFirstToken": 128, "JoiningDisturbsAnother": 0}
"""Layer -> the ratio it is tried at; the mistake is the same at the others."""
TEST = "test_drawn_schedules_give_what_the_definition_gives"


def failure(adapter: type[Implementation], case: PropertyCase, test: str = TEST) -> str | None:
    """What the suite's test says of an adapter, None if it passes."""
    (function,) = [function for function in functions() if function.name == test]
    session = Session(adapter, "cpu")
    subject = Subject(session.implementation, session.device, function.spec.requirement)
    try:
        function.function(subject, case)
    except ConformanceFailure as error:
        return str(error)
    assert subject.record()["checked"]
    return None


def default_case(ratio: int, test: str = TEST) -> PropertyCase:
    """The case of the default profile for a ratio."""
    (function,) = [function for function in functions() if function.name == test]
    cases = [found.case for found in planned(function, "default") if isinstance(found.case, PropertyCase)]
    return next(case for case in cases if case.each.ratio == ratio)


# Kills: fewer or poorer schedules in the default profile, judging that looks at outputs and not at state.
@pytest.mark.parametrize(("name", "ratio"), WRONG.items())
def test_the_default_profile_finds_it(name: str, ratio: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search.__init__, "__defaults__", (0, 0))  # found, not made shorter
    assert failure(getattr(properties, name), default_case(ratio)) is not None


# Kills: a failure told for another schedule than the shortest, a command that runs another case, a search that stops at
# long schedules.
@pytest.mark.parametrize("name", list(WRONG))
def test_the_shortest_schedule_fails_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ratio = WRONG[name]
    case = default_case(ratio).with_(tokens=40 if ratio < 128 else 140)  # shorter runs
    said = failure(getattr(properties, name), case)
    assert said is not None and "\n" not in said
    told, command = said.split("; run it alone with: ")
    schedule = told.split("The shortest schedule found that fails is ")[1].strip("'")
    words = shlex.split(command)
    assert words[:4] == ["dsv4-conformance", "replay", "--impl", f"tests.miniatures.properties:{name}"]
    assert schedule in words and len(steps(schedule)) <= 3, said

    with pytest.raises(SystemExit) as stopped:
        cli.main(words[1:])
    assert stopped.value.code == 1
    reason = told.split(" The shortest schedule")[0]
    replayed = capsys.readouterr().out
    assert f"on cpu: {case.each.with_(schedule=schedule).label()}, seed {case.each.seed}\n" in replayed
    assert f"WRONG: {reason}\n" in replayed  # the same rows, bit for bit

    right = words[1:]
    right[2] = "builtin"
    with pytest.raises(SystemExit) as stopped:
        cli.main(right)
    assert stopped.value.code == 0


# Kills: a flavour that is not the adapter's own in the command, rows asked for that it has given back, prefixes
# and rows of nobody for an adapter that has none.
def test_an_adapter_of_one_flavour_is_tested_in_that_one() -> None:
    own = LayerConvention(
        precisions=("bfloat16",),
        quantised=(True,),
        window_history="window",
        forks="none",
        padded_rows=False,
        lookback=2,
    )
    case = default_case(4).with_(examples=5, tokens=40)
    assert failure(type("Right", (Builtin,), {"surfaces": {"AttentionLayer": own}}), case) is None
    wrong = type("Wrong", (properties.JoiningDisturbsAnother,), {"surfaces": {"AttentionLayer": own}})
    said = failure(wrong, case)
    assert said is not None and "--precision bfloat16 --quantised" in said


# Kills: compressor sessions that are judged for one schedule only, their failures told without a command.
@pytest.mark.parametrize("name", ["TruncateForgotten", "ChunkLosesTheOverlap", "StateRowsByPlaceInCall"])
def test_wrong_compressors_are_found_too(name: str) -> None:
    test = "test_entries_of_drawn_schedules_are_those_of_the_kept_streams"
    said = failure(compressor.adapter(getattr(compressor, name)), default_case(4, test), test)
    assert said is not None and "--surface Compressor --dim 512" in said
    schedule = said.split("found that fails is '")[1].split("'")[0]
    assert len(steps(schedule)) <= 4, said
    assert failure(compressor.Compressing, default_case(4, test), test) is None


# Kills: schedules that all profiles and seeds share.
def test_a_seed_names_another_stream() -> None:
    streams = set()
    for seed in (0, 1):
        case = next(iter(islice(family("compressor_properties", "Compressor", "laptop", seed), 1)))
        session = Session(compressor.Compressing, "cpu")
        subject = Subject(session.implementation, session.device, "INV-20")
        (function,) = [f for f in functions() if f.name.startswith("test_entries_of_drawn")]
        function.function(subject, case)
        streams.add(subject.record()["metrics"]["stream"])
    assert len(streams) == 2
