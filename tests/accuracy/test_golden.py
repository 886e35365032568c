"""Goldens: what is recorded, that it cannot be edited unseen, that it changes only with a reason and a verdict."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4_conformance import resources
from dsv4_conformance.accuracy import golden_files
from dsv4_conformance.accuracy.golden_change import change
from dsv4_conformance.accuracy.golden_record import Golden, golden_of, parse
from dsv4_conformance.accuracy.item_model import MODELS
from dsv4_conformance.accuracy.obtaining import NoGolden, golden_for
from dsv4_conformance.cli import main
from dsv4_conformance.cli.accuracy_text import forewarned
from dsv4_conformance.errors import BadInput
from dsv4_conformance.golden import changelog, manifest
from dsv4_conformance.plugin.endpoint_options import Asked

from .made import FINGERPRINT, changed, golden, matrix, run_of, written

RIGHT = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])


def test_rows_count_what_the_run_holds() -> None:
    statuses = {(1, 1): "truncated", (2, 0): "empty", (2, 1): "no_answer"}
    run = run_of(RIGHT, statuses=statuses, tokens=7)
    run = changed(run, "q0", 2, fallback=2, reasoning="hm", completion_tokens=10)
    made = golden_of(run, 4, "g", {}, simulated=False)
    assert [(r.correct, r.truncated, r.empty, r.no_answer) for r in made.rows] == [
        (4, 0, 0, 0),
        (3, 1, 0, 0),
        (0, 0, 1, 1),
        (2, 0, 0, 0),
    ]
    assert [(r.fallback, r.reasoned, r.tokens) for r in made.rows] == [(1, 1, 31), (0, 0, 28), (0, 0, 28), (0, 0, 28)]
    assert made.passes == (3, 2, 2, 2)
    assert made.score == pytest.approx(9 / 16) and made.mean_tokens == pytest.approx(115 / 16)
    assert (made.rows[0].prompt, made.rows[0].expected) == ("hash of q0", "18")


def test_only_the_first_passes_count_if_asked() -> None:
    assert golden_of(run_of(RIGHT), 2, "g", {}, simulated=False).passes == (3, 2)


def test_noise_by_hand() -> None:
    noise = golden(RIGHT).noise
    within = sum(p * (1 - p) for p in (1, 3 / 4, 0, 2 / 4)) / 4 * 4 / 3
    assert noise["pass_sd"] == pytest.approx((within / 4) ** 0.5)
    assert noise["ratio"] == pytest.approx(within / (9 / 16 * 7 / 16))
    assert noise["observed_sd"] == pytest.approx(float(np.std([3 / 4, 2 / 4, 2 / 4, 2 / 4], ddof=1)))


def test_the_measured_noise_is_that_of_the_item_model() -> None:
    rng = np.random.default_rng(0)
    model = MODELS["gsm8k"]
    found = [golden(matrix(rng, p, 8)).noise["pass_sd"] for p in model.draw(rng, 2)]
    assert np.mean(found) == pytest.approx(model.noise_of_a_pass(), rel=0.05)


def short(passes: int) -> Any:
    """A run that lacks its last answer; of several passes the last one has a failed request, too."""
    run = run_of(RIGHT[:, :passes], statuses={(1, passes - 1): "error"} if passes > 1 else {})
    return replace(run, answers=run.answers[:-1], path="r.jsonl" if passes > 1 else "")


@pytest.mark.parametrize(
    ("run", "runs", "sentence"),
    [
        (run_of(RIGHT), 1, "A golden of 1 pass has no noise of its own"),
        (
            run_of(RIGHT),
            5,
            r"lacks 4 answers of its first 5 passes \(q0 in pass 5 first\); run .* with --repeats 5: it",
        ),
        (
            short(1),
            1,
            r"the run lacks 1 answer of its first pass \(q3 in pass 1 first\); run the same command again: it",
        ),
        (
            short(4),
            4,
            r"^r\.jsonl lacks 1 answer of its first 4 passes \(q3 in pass 4 first\), and 1 failed; run the same "
            r"command again with --retry-errors: .* missing; or record the 3 whole passes, with --passes 3\.",
        ),
        (run_of(RIGHT, statuses={(1, 1): "error"}), 4, r"1 request of the run got no usable reply \(q1 first\)"),
        (run_of(RIGHT, statuses={(1, 1): "error"}), 4, r"with accuracy run --retry-errors or the same"),
        (run_of(RIGHT, statuses={(2, 1): "filtered"}), 4, r"1 reply of the run is filtered \(q2 first\)"),
        (run_of(RIGHT, statuses={(3, 1): "malformed"}), 4, r"1 reply of the run is malformed \(q3 first\)"),
        (changed(run_of(RIGHT), "q1", 2, served="b"), 4, r"Served: .*'b' in 1 of 16.* a golden is of one model"),
    ],
)
def test_a_golden_has_no_holes(run: Any, runs: int, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        golden_of(run, runs, "g", {}, simulated=False)


def test_a_file_comes_back_as_it_was() -> None:
    made = golden(RIGHT, tokens=None)
    assert parse(made.text(), "x") == made
    assert made.rows[0].tokens is None and made.mean_tokens is None


def edited(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(text)
    change(content)
    return json.dumps(content)


def _row(column: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda c: c["rows"][0].__setitem__(c["columns"].index(column), value)


EDITS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c.update(format="dsv4-accuracy-golden/2"), "has format 'dsv4-accuracy-golden/2'"),
    (lambda c: c.pop("seed"), "is malformed"),
    (lambda c: c["rows"].pop(), "sums that its rows do not give"),
    (lambda c: c["rows"].append(c["rows"][0]), "names a question twice"),
    (lambda c: c["passes"].pop(), "lacks a pass"),
    (_row("correct", 5), "counts for q0 that 4 passes cannot give"),
    (_row("correct", -1), "counts for q0"),
    (_row("empty", 1), "counts for q0"),
    (_row("correct", 3), "sums that its rows do not give"),
    (_row("prompt", "x"), "was edited: its SHA-256"),
    (_row("expected", "19"), "was edited: its SHA-256"),
    (lambda c: c["fingerprint"].update(temperature="0"), "was edited: its SHA-256"),
    (lambda c: c["provenance"].update(engine="x"), "was edited: its SHA-256"),
    (lambda c: c["totals"].update(score=0.99), "sums that its rows do not give"),
    (lambda c: c.update(simulated=True), "was edited: its SHA-256"),
    (lambda c: c.update(content_sha256="0"), "was edited: its SHA-256"),
    (lambda c: c["digests"].pop(), "was edited: its SHA-256"),
    (lambda c: c.pop("digests"), "was edited: its SHA-256"),
    (_row("correct", "4"), "is malformed .rows.0.correct: input should be a valid integer"),
    (lambda c: c.update(passes="abcd"), "is malformed .passes: input should be a valid array"),
    (lambda c: c.update(runs="4"), "is malformed .runs: input should be a valid integer"),
    (lambda c: c.update(fingerprint=[]), "is malformed .fingerprint: input should be"),
    (lambda c: c.update(rows=5), "is malformed"),
    (lambda c: c.update(runs=1), "counts for q0 that 1 passes cannot give|fewer than 2 passes"),
]


@pytest.mark.parametrize(("change", "sentence"), EDITS, ids=map(str, range(len(EDITS))))
def test_every_edit_is_seen(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"the file .*{sentence}"):
        parse(edited(golden(RIGHT).text(), change), "the file")


def test_goldens_without_digests_are_as_they_were() -> None:
    bare = replace(golden(RIGHT), digests=())
    assert "digests" not in bare.text() and parse(bare.text(), "x") == bare
    for name in golden_files.names(resources.golden_dir()):
        golden_files.load(resources.golden_dir(), name)


def test_layout_is_not_content() -> None:
    assert parse(edited(golden(RIGHT).text(), lambda c: None), "x") == golden(RIGHT)


def test_a_text_that_is_no_golden() -> None:
    for text, sentence in (("{", "is not JSON"), ("[]", "has format None"), ("{}", "has format None")):
        with pytest.raises(BadInput, match=f"x {sentence}"):
            parse(text, "x")


def test_saving_lists_and_explains(tmp_path: Path) -> None:
    first = golden(RIGHT)
    saved = golden_files.save(tmp_path, first, None)
    assert (saved.path, saved.old) == ("accuracy/reference.json", changelog.NEW)
    assert golden_files.names(tmp_path) == ["reference"]
    assert golden_files.load(tmp_path, "reference") == first
    entry = manifest.load(tmp_path).files[saved.path]
    assert (entry.surface, entry.oracle) == ("Endpoint", "measured")
    assert list(golden_files.problems(tmp_path)) == []
    assert golden_files.save(tmp_path, first, None).new == saved.new, "the same again changes nothing"
    assert changelog.read(tmp_path).count("## ") == 1


def test_a_golden_changes_only_with_a_reason_and_the_verdict_goes_with_it(tmp_path: Path) -> None:
    first = golden(RIGHT)
    golden_files.save(tmp_path, first, None)
    worse = RIGHT.copy()
    worse[0] = 0
    second = golden(worse)
    for reason in (None, " "):
        with pytest.raises(BadInput, match="The golden reference would change; pass --reason"):
            golden_files.save(tmp_path, second, reason)
    assert golden_files.load(tmp_path, "reference") == first
    saved = golden_files.save(tmp_path, second, "Engine 2", change(first, second))
    log = changelog.read(tmp_path)
    assert f"Engine 2\n\n- `accuracy/reference.json`: {saved.old} -> {saved.new}\n\nOld to new: 56.25 %" in log
    assert "1 lost (q0)" in log and changelog.newest(log) == {"accuracy/reference.json": saved.new}
    assert list(golden_files.problems(tmp_path)) == []


def test_saving_keeps_the_entries_of_others(tmp_path: Path) -> None:
    golden_files.save(tmp_path, golden(RIGHT, "one"), None)
    golden_files.save(tmp_path, golden(RIGHT, "two"), None)
    assert sorted(manifest.load(tmp_path).files) == ["accuracy/one.json", "accuracy/two.json"]


def _edit(folder: Path) -> None:
    path = folder / "accuracy/reference.json"
    path.write_text(path.read_text().replace("hash of q1", "hash of q7"))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "accuracy/reference.json").unlink(), "accuracy/reference.json is missing"),
        (_edit, "was edited: its SHA-256 is not the one in MANIFEST.json"),
        (lambda f: (f / "accuracy/stray.json").write_text("{}"), "accuracy/stray.json is not in MANIFEST.json"),
        (lambda f: (f / "CHANGELOG.md").unlink(), "which CHANGELOG.md does not end in"),
    ],
)
def test_problems_are_found(tmp_path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    golden_files.save(tmp_path, golden(RIGHT), None)
    damage(tmp_path)
    assert any(sentence in problem for problem in golden_files.problems(tmp_path))


def test_a_golden_under_another_name_is_found(tmp_path: Path) -> None:
    other = replace(golden(RIGHT), name="other")
    golden_files.save(tmp_path, golden(RIGHT), None)
    path = tmp_path / "accuracy/reference.json"
    path.write_text(other.text())
    assert any("holds the golden 'other'" in problem for problem in golden_files.problems(tmp_path))


def test_finding_by_model_and_task(tmp_path: Path) -> None:
    golden_files.save(tmp_path, golden(RIGHT, "one"), None)
    golden_files.save(tmp_path, golden(RIGHT, "aime", task="aime25"), None)
    found = golden_files.find(tmp_path, "golden model", "gsm8k")
    assert found is not None and found.name == "one"
    assert golden_files.find(tmp_path, "other", "gsm8k") is None
    golden_files.save(tmp_path, golden(RIGHT, "two"), None)
    with pytest.raises(BadInput, match="several goldens of 'golden model' for gsm8k: one, two"):
        golden_files.find(tmp_path, "golden model", "gsm8k")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "anchors", ".hidden", "a b"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="is no name for a golden"):
        golden_files.save(tmp_path, replace(golden(RIGHT), name=name), None)
    with pytest.raises(BadInput, match=r"no golden 'absent' in .*; there is none"):
        golden_files.load(tmp_path, "absent")


def _other(**fields: Any) -> Golden:
    return golden(RIGHT, **fields)


def test_change_names_what_was_asked_otherwise() -> None:
    told = change(golden(RIGHT), _other(fingerprint={**FINGERPRINT, "max_tokens": "9"}, endpoint="completions"))
    assert "Not asked the same way: endpoint, fingerprint.max_tokens." in told and "+0.00 points" in told
    assert "nothing can be paired" in change(golden(RIGHT), golden(RIGHT[:3]))


def test_the_shipped_goldens_are_sound_and_named_as_simulated() -> None:
    folder = resources.golden_dir()
    assert list(golden_files.problems(folder)) == []
    found = {name: golden_files.load(folder, name) for name in golden_files.names(folder)}
    assert {name: (g.task, g.runs, len(g.rows)) for name, g in found.items() if g.simulated} == {
        "simulated.aime25": ("aime25", 64, 30),
        "simulated.gsm8k": ("gsm8k", 8, 1319),
    }
    assert all(g.simulated == name.startswith("simulated.") for name, g in found.items())


def test_a_full_disk_leaves_the_old_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden_files.save(tmp_path, golden(RIGHT), None)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    really = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if manifest.NAME in path.name:
            really(path, content[:10])
            raise OSError(28, "No space left on device", str(path))
        return really(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match="cannot be written"):
        golden_files.save(tmp_path, golden(RIGHT[::-1]), "another one")
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_was_edited_is_no_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edit that mends the content's hash as well is seen by the manifest alone."""
    golden_files.save(tmp_path, golden(RIGHT), None)
    (tmp_path / "accuracy" / "reference.json").write_text(golden(RIGHT[::-1]).text())
    golden_files.load(tmp_path, "reference")
    with pytest.raises(BadInput, match=r"was edited: its SHA-256 is not the one in MANIFEST\.json; nothing is judged"):
        golden_for(tmp_path, "golden model", "gsm8k")
    made = written(run_of(RIGHT), tmp_path / "run.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["golden", "compare", str(made), "--golden", "reference", "--folder", str(tmp_path)])
    assert ended.value.code == 2 and "was edited" in capsys.readouterr().err


def test_a_folder_without_goldens_is_told_and_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = written(run_of(RIGHT), tmp_path / "run.jsonl")
    absent, empty, bare = tmp_path / "absent", tmp_path / "empty", tmp_path / "bare"
    empty.mkdir()
    golden_files.save(bare, golden(RIGHT), None)
    with pytest.raises(SystemExit):
        main(["golden", "verify", "--folder", str(bare)])
    assert capsys.readouterr().out.startswith("1 accuracy golden: unedited, consistent")
    (bare / "MANIFEST.json").unlink()
    compare = ["compare", str(made), "--golden", "reference"]
    for folder, told, commands in (
        (absent, f"There is no folder {absent}; name a golden folder with --folder", (["show"], ["verify"], compare)),
        (empty, f"{empty} holds no accuracy golden (accuracy/NAME.json); record", (["show"], ["verify"], compare)),
        (bare, f"{bare} has no MANIFEST.json, which holds the SHA-256 of every golden", (["verify"], compare)),
    ):
        for words in commands:
            with pytest.raises(SystemExit) as ended:
                main(["golden", *words, "--folder", str(folder)])
            err = capsys.readouterr().err
            assert ended.value.code == 2 and told in err and err.count("\n") == 1 and "tensors" not in err


def test_of_several_goldens_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden_files.save(tmp_path, golden(RIGHT), None)
    made = written(run_of(RIGHT, model="golden model"), tmp_path / "run.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["golden", "record", str(made), "--name", "other", "--folder", str(tmp_path)])
    assert ended.value.code == 0
    assert "several goldens of 'golden model' for gsm8k: other, reference; name one with" in capsys.readouterr().err
    said = list(forewarned(tmp_path, run_of(RIGHT, model="golden model").header, 1))
    assert "several goldens" in said[0] and said[1].startswith("pre-merge: judges after 1 pass")
    with pytest.raises(golden_files.Several):
        golden_for(tmp_path, "golden model", "gsm8k")
    file = Asked(golden=tmp_path / "accuracy" / "reference.json")
    assert golden_for(tmp_path, "golden model", "gsm8k", file.golden_place[1]).name == "reference"
    assert file.golden_place[0] == tmp_path and Asked(golden=tmp_path).golden_place == (tmp_path, None)
    with pytest.raises(NoGolden, match="is of gsm8k, and not of aime25"):
        golden_for(tmp_path, "golden model", "aime25", "reference")
