"""Replay: one layer through one schedule, a line per stage, a verdict in one sentence, and the exit code."""

import re

import pytest

from dsv4_conformance import cli
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.properties import judge_schedule
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.cli.conftest import Command

RIGHT = "RIGHT: every row that the schedule gives lies within its error budget."


def replay(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, in this process."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["replay", *words, "--device", "cpu"])
    said = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, said.out, said.err


# Kills: an option that does not reach the case, a stage that is left out, ratios of another stage or run.
@pytest.mark.parametrize(
    ("words", "case", "rows"),
    [
        (("--ratio", "4"), LayerCase("AttentionLayer", 4, "p0:5+1:3 d0+1"), 0),
        (
            ("--ratio", "128", "--precision", "bfloat16", "--quantised", "--path", "sparse", "--seed", "7"),
            LayerCase(
                "AttentionLayer", 128, "p0:5+1:3 d0+1", precision="bfloat16", quantised=True, path="sparse", seed=7
            ),
            0,
        ),
        (
            ("--ratio", "0", "--geometry", "tiny64", "--tp", "4", "--rank", "3", "--graph-rows", "3"),
            LayerCase("AttentionLayer", 0, "p0:5+1:3 d0+1", geometry="tiny64", tp=4, rank=3),
            3,
        ),
    ],
)
def test_stages_are_those_of_the_case(
    words: tuple[str, ...], case: LayerCase, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = replay(capsys, *words, "--schedule", case.schedule)
    assert code == 0 and out.splitlines()[-1] == RIGHT
    assert out.splitlines()[0] == f"builtin on cpu: {case.label()}, seed {case.seed}"
    session = Session(Builtin, "cpu")
    subject = Subject(session.implementation, session.device, "INV-42")
    judge_schedule(subject, case, rows)
    metrics = subject.record()["metrics"]
    shown = dict(re.findall(r"^  (\S.*?) +(\S+) budgets: ", out, re.MULTILINE))
    assert list(shown)[:3] == ["q", "o", "out"]
    assert shown == {name: f"{metrics[f'{name}_ratio']:.3g}" for name in shown}
    assert {f"{name}_ratio" for name in shown} == {name for name in metrics if name.endswith("_ratio")}


# Kills: a captured step that is never replayed.
def test_graph_rows_are_captured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4_conformance.mla import cuda_graph

    rows = []
    before = cuda_graph.DecodeGraph.replay

    def counted(self: cuda_graph.DecodeGraph, segments: object) -> object:
        rows.append(len(segments))  # type: ignore[arg-type]
        return before(self, segments)  # type: ignore[arg-type]

    monkeypatch.setattr(cuda_graph.DecodeGraph, "replay", counted)
    assert replay(capsys, "--ratio", "4", "--schedule", "p0:5+1:3 d0+1 d1", "--graph-rows", "3")[0] == 0
    assert rows == [2, 1]
    assert replay(capsys, "--ratio", "4", "--schedule", "p0:5+1:3 d0+1 d1")[0] == 0
    assert rows == [2, 1]


# Kills: exit code 0 for what is wrong, a stage after the wrong one that is told as if it had been judged.
def test_a_wrong_layer_is_told_with_its_stage(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--impl", "tests.miniatures.properties:ChunkLosesItsFirstToken", "--ratio", "4", "--schedule")
    code, out, _ = replay(capsys, *words, "p0:1 p0:3")
    assert code == 1
    assert re.search(r"^  o +\S+ budgets: error .* allowed$", out, re.MULTILINE)
    assert re.search(r"^  out +not judged$", out, re.MULTILINE)
    assert re.fullmatch(r"WRONG: o: error \S+ is \S+ budgets .*", out.splitlines()[-1])
    assert replay(capsys, *words, "p0:4 d0")[0] == 0


# Kills: a case outside the declaration that counts as right, or as wrong.
def test_what_is_not_declared_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    impl = ("--impl", f"{__name__}:Exact", "--ratio", "4", "--schedule", "p0:3")
    code, out, _ = replay(capsys, *impl, "--quantised")
    assert code == 5
    assert out.splitlines()[-1] == "NOTHING WAS CHECKED: quantised True is not among the declared (False,)."
    assert replay(capsys, *impl)[0] == 0
    code, out, _ = replay(capsys, *impl, "--graph-rows", "1")
    assert code == 5
    assert out.splitlines()[-1] == "NOTHING WAS CHECKED: the adapter declares that it captures no decode steps."


class Exact(Builtin):
    """Declares less than it does."""

    from dsv4_conformance.implementations.state_api import LayerConvention

    surfaces = {"AttentionLayer": LayerConvention(quantised=(False,), graphs=(), lookback=2)}  # noqa: RUF012


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ratio", "4", "--schedule", "p0:5 d1"), "step 'd1' of a schedule takes sequence 1, which holds no tokens"),
        (("--ratio", "4", "--schedule", "p0:5 q"), "step 'q' of a schedule cannot be read"),
        (("--ratio", "4", "--schedule", ""), "has no tokens"),
        (("--ratio", "5", "--schedule", "p0:1"), "ratio 5 is unknown; choose one of 0, 4, 128."),
        (("--ratio", "4", "--schedule", "p0:1", "--precision", "fp8"), "precision 'fp8' is unknown"),
        (("--ratio", "4", "--schedule", "p0:1", "--geometry", "huge"), "geometry 'huge' is unknown"),
        (("--ratio", "4", "--schedule", "p0:1", "--path", "fast"), "path 'fast' is unknown"),
        (("--ratio", "4", "--schedule", "p0:1", "--tp", "3"), "tp 3 does not split tiny"),
        (("--ratio", "4", "--schedule", "p0:1", "--tp", "2", "--rank", "2"), "rank 2 is unknown; choose one of 0, 1."),
        (("--ratio", "4", "--schedule", "p0:1", "--seed", "-1"), "The seed '-1'"),
        (("--ratio", "4", "--schedule", "p0:2+1:1 d0+1", "--graph-rows", "1"), "a step decodes 2 sequences"),
        (
            ("--ratio", "0", "--schedule", "p0:1", "--surface", "Compressor"),
            "ratio 0 is unknown; choose one of 4, 128.",
        ),
        (("--ratio", "4", "--schedule", "p0:1", "--surface", "Compressor", "--dim", "64"), "dim 64 is unknown"),
        (("--ratio", "4", "--schedule", "p0:1 i", "--surface", "Compressor"), "'i' of a schedule means nothing to a"),
        (("--ratio", "4", "--schedule", "p0:1", "--surface", "Indexer"), "surface 'Indexer' is unknown"),
        (("--ratio", "4", "--schedule", "p0:9 v0:3", "--impl", f"{__name__}:Exact"), "at most 2 can be taken back"),
        (
            ("--ratio", "4", "--schedule", "p0:1", "--surface", "Compressor", "--impl", f"{__name__}:Exact"),
            "does not offer Compressor",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = replay(capsys, *words)
    assert code == 2 and out == ""
    assert said in err and err.count("\n") == 1 and err.startswith("dsv4-conformance: ")


def test_a_compressor_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--ratio", "4", "--surface", "Compressor", "--dim", "128", "--schedule", "p0:5+1:9 v0:4 k0:6 d0+1")
    code, out, _ = replay(capsys, *words)
    assert code == 0 and out.splitlines()[-1] == RIGHT
    assert re.search(r"^  entries +\S+ budgets: ", out, re.MULTILINE)


# Kills: an exit code that only this process knows.
def test_the_command_ends_with_its_code(command: Command) -> None:
    assert command("replay", "--ratio", "0", "--schedule", "p0:2 d0").returncode == 0
    wrong = ("--impl", "tests.miniatures.properties:JoiningDisturbsAnother")
    assert command("replay", *wrong, "--ratio", "0", "--schedule", "p0:1 p1:1").returncode == 1
