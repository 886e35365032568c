"""Operating characteristics: the simulation is right, and the gate keeps what it promises."""

import numpy as np
import pytest

from dsv4_conformance.accuracy.decision import Verdict, decide
from dsv4_conformance.accuracy.item_model import MODELS, Change, ItemModel
from dsv4_conformance.accuracy.power import Rates, our_gate, scenarios, simulate
from dsv4_conformance.accuracy.profiles import rule_of
from dsv4_conformance.cli import main
from dsv4_conformance.errors import BadInput

GSM8K = rule_of("pre-merge", "gsm8k")


@pytest.mark.parametrize("task", ["gsm8k", "aime25"])
def test_draws_have_the_models_mean_and_noise(task: str) -> None:
    model = MODELS[task]
    p = model.draw(np.random.default_rng(0), 400_000 // model.items)
    assert float(p.mean()) == pytest.approx(model.mean, abs=0.002)
    ratio = float((p * (1 - p)).mean()) / (model.mean * (1 - model.mean))
    assert ratio == pytest.approx(model.noise_ratio, rel=0.05)


def test_noise_of_a_pass_is_the_spread_of_passes() -> None:
    model = MODELS["gsm8k"]
    rng = np.random.default_rng(1)
    p = model.draw(rng, 20)
    spread = np.mean([rng.binomial(1, np.repeat(row[None], 400, 0)).mean(axis=1).std() for row in p])
    assert spread == pytest.approx(model.noise_of_a_pass(), rel=0.06)
    # Public: the same questions asked again move a GSM8K score by 0.19 to 0.24 points.
    assert 0.0018 < model.noise_of_a_pass() < 0.0024


@pytest.mark.parametrize(
    ("change", "drop"),
    [
        (Change("", "same"), 0.0),
        (Change("", "jitter"), 0.0),
        (Change("", "uniform", 0.01), 0.01),
        (Change("", "unstable", 0.01), 0.01),
    ],
)
def test_changes_move_the_mean_by_what_they_say(change: Change, drop: float) -> None:
    rng = np.random.default_rng(2)
    p = MODELS["gsm8k"].draw(rng, 20)
    q = change.apply(p, rng)
    assert np.allclose(p.mean(axis=1) - q.mean(axis=1), drop, atol=1e-6)
    assert ((q >= 0) & (q <= 1)).all()
    assert (change.kind == "same") == np.array_equal(p, q)


def test_only_undecided_questions_get_worse_in_unstable() -> None:
    p = np.array([[1.0 - 1e-11, 0.5, 1e-11, 0.9]])
    q = Change("", "unstable", 0.1).apply(p, np.random.default_rng(0))
    assert np.allclose(q[0, [0, 2]], p[0, [0, 2]], atol=1e-6) and (q[0, [1, 3]] < p[0, [1, 3]] - 0.05).all()


@pytest.mark.parametrize(("kind", "left"), [("broken", 0.0), ("half", 0.5)])
def test_broken_questions_were_passing(kind: str, left: float) -> None:
    rng = np.random.default_rng(3)
    p = MODELS["gsm8k"].draw(rng, 30)
    q = Change("", kind, items=13).apply(p, rng)
    changed = p != q
    assert (changed.sum(axis=1) == 13).all() and (p[changed] >= 0.5).all() and (q[changed] == left).all()


def test_an_unknown_change_and_an_impossible_model_are_refused() -> None:
    with pytest.raises(BadInput, match="'worse' is no kind of change"):
        Change("", "worse").apply(np.zeros((1, 2)), np.random.default_rng(0))
    for model in ((1, 0.9, 0.1), (10, 1.0, 0.1), (10, 0.9, 0.0)):
        with pytest.raises(BadInput):
            ItemModel(*model)


def test_looks_are_pooled_and_stop_at_the_first_verdict() -> None:
    rule = GSM8K.model_copy(update={"looks": (1, 3), "fail_alpha": 1e-4})
    judge = our_gate(rule, 8)
    p = np.full((3, 1319), 1.0)
    verdict, used = judge(p, p, np.random.default_rng(0))
    assert verdict.tolist() == [Verdict.PASS] * 3 and used.tolist() == [1, 1, 1]
    q = p.copy()
    q[:, :10] = 0.0  # with so small an alpha neither a pass nor a failure, however often it is asked
    verdict, used = judge(p, q, np.random.default_rng(0))
    assert used.tolist() == [3, 3, 3] and verdict.tolist() == [Verdict.INCONCLUSIVE] * 3
    at_end = decide(np.full(1319, 8), 8, np.where(q[0] > 0, 3, 0), 3, rule).verdict
    assert verdict.tolist() == [int(at_end)] * 3


def test_a_verdict_stands_whatever_later_looks_would_say() -> None:
    rng = np.random.default_rng(4)
    p = MODELS["gsm8k"].draw(rng, 60)
    q = Change("", "uniform", 0.006).apply(p, rng)
    verdict, used = our_gate(GSM8K, 8)(p, q, np.random.default_rng(9))
    draws = np.random.default_rng(9)
    golden, right, first, at, last = draws.binomial(8, p), np.zeros(p.shape, dtype=int), [2.5] * 60, [4] * 60, []
    for look, more in ((1, 1), (2, 1), (4, 2)):
        right = right + draws.binomial(more, q)
        last = [int(decide(golden[i], 8, right[i], look, GSM8K).verdict) for i in range(60)]
        for i, now in enumerate(last):
            if first[i] == 2.5 and now != Verdict.INCONCLUSIVE:
                first[i], at[i] = now, look
    assert verdict.tolist() == [Verdict.INCONCLUSIVE if f == 2.5 else f for f in first] and used.tolist() == at
    assert verdict.tolist() != last, "some would have changed their mind"


def test_the_same_seed_gives_the_same_rates_whatever_else_is_simulated() -> None:
    judges = {"a": our_gate(GSM8K, 8), "b": our_gate(GSM8K, 4)}
    changes = scenarios("gsm8k", 200)[:2]
    model = ItemModel(200, 0.9, 0.2)
    both = simulate(judges, model, changes, 300)
    alone = simulate({"b": judges["b"]}, model, changes, 300)
    assert {s: f["b"] for s, f in both.items()} == {s: f["b"] for s, f in alone.items()}
    assert simulate(judges, model, changes, 300, seed=1) != both


def test_rates_count_every_trial_once() -> None:
    rates = Rates(20, 12, 5, 1.0)
    assert rates.doubtful == 3
    assert rates.interval(0)[0] == 0 and rates.interval(20)[1] == 1


def _rates(task: str, profile: str, runs: int, trials: int) -> dict[str, Rates]:
    judge = {"ours": our_gate(rule_of(profile, task), runs)}
    found = simulate(judge, MODELS[task], scenarios(task, MODELS[task].items), trials, seed=7)
    return {scenario: gates["ours"] for scenario, gates in found.items()}


@pytest.mark.parametrize("profile", ["pre-merge", "release"])
def test_gsm8k_neither_flakes_nor_misses_a_point(profile: str) -> None:
    """Each bound allows for what 500 trials scatter by; docs/results/accuracy-gate.md has 2,000."""
    rates = _rates("gsm8k", profile, 8, 500)
    for scenario in ("unchanged", "other numerics, same score"):
        assert rates[scenario].failed <= 8 and rates[scenario].passed >= 490
    assert rates["every question worse, -1 point"].failed >= 450
    assert rates["every question worse, -1 point"].passed <= 32
    assert rates["undecided questions worse, -1 point"].failed >= 450
    assert rates["13 questions broken"].passed <= 4 and rates["13 questions broken"].failed >= 440
    assert rates["every question worse, -2 points"].failed >= 495


def test_aime25_sees_one_broken_question() -> None:
    rates = _rates("aime25", "release", 64, 1000)
    assert rates["unchanged"].failed <= 5 and rates["unchanged"].passed >= 980
    assert rates["one question broken"].failed >= 960 and rates["one question broken"].passed == 0


def test_without_its_test_per_question_it_would_not() -> None:
    rule = rule_of("release", "aime25").model_copy(update={"item_rate": 0.0})
    broken = scenarios("aime25", 30)[4]
    found = simulate({"ours": our_gate(rule, 64)}, MODELS["aime25"], (broken,), 250)
    assert found["one question broken"]["ours"].failed <= 5


def test_nothing_asked_for_is_not_taken_for_the_tasks_number() -> None:
    for words in (["--n", "0"], ["--golden-runs", "0"]):
        with pytest.raises(SystemExit) as ended:
            main(["accuracy", "power", "--trials", "2", "--ours-only", *words])
        assert ended.value.code == 2
