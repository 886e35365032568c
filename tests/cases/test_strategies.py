"""Drawn schedules: all can be run, the same in every process, with the events in them that state goes wrong at."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.cases.schedule_rules import check_schedule
from dsv4_conformance.cases.search import Search
from dsv4_conformance.cases.strategies import compressor_schedules, layer_schedules
from dsv4_conformance.mla.sequences import Sequences

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 320


@cache
def drawn(surface: str, examples: int = 250, seed: int = 0, tokens: int = TOKENS, lookback: int = 8) -> tuple[str, ...]:
    """Schedules as a property case of this many examples tries them."""
    each = LayerCase(surface, 4, "", seed=seed) if surface == "AttentionLayer" else CompressorCase(surface, 4, "")
    draw = layer_schedules if surface == "AttentionLayer" else compressor_schedules
    search = Search(lambda schedule: False)
    search.run(draw(tokens, lookback), PropertyCase(surface, each, examples, tokens))
    return tuple(search.tried)


def lengths_after(schedule: str) -> list[tuple[Step, dict[int, int], dict[int, int]]]:
    """Each step with what the living sequences hold before and after it; written apart from schedule_rules."""
    held: dict[int, int] = {}
    told = []
    for step in steps(schedule):
        before = dict(held)
        if step.kind in BATCHES:
            held |= {sequence: held.get(sequence, 0) + count for sequence, count in step.parts}
        elif step.kind == "keep":
            held |= dict(step.parts)
        elif step.kind == "fork":
            held[step.target] = step.parts[0][1]
        elif step.kind == "release":
            held = {sequence: length for sequence, length in held.items() if sequence not in dict(step.parts)}
        told.append((step, before, dict(held)))
    return told


def broken_rules(schedule: str, lookback: int = 8, tokens: int = TOKENS) -> list[str]:
    """What a schedule does that it must not, by rules of this file's own."""
    found: list[str] = []
    most: dict[int, int] = {}
    floor: dict[int, int] = {}
    for step, before, after in lengths_after(schedule):
        numbers = [sequence for sequence, _ in step.parts]
        if len(numbers) != len(set(numbers)):
            found.append("twice")
        if step.kind in ("decode", "verify", "keep", "release", "fork") and not set(numbers) <= set(before):
            found.append("dead")
        for sequence, count in step.parts:
            if step.kind in BATCHES and count < 1:
                found.append("empty")
            if step.kind == "verify" and count > lookback:
                found.append("drafts")
            if step.kind == "keep" and (
                count < 1
                or count > before[sequence]
                or count < most[sequence] - lookback
                or count < floor.get(sequence, 0)
            ):
                found.append("keep")
            if step.kind == "fork":
                if count % 256 or not 0 < count <= before[sequence] or step.target in before:
                    found.append("fork")
                floor |= {sequence: max(count, floor.get(sequence, 0)), step.target: count}
            if step.kind == "release":
                most.pop(sequence, None)
                floor.pop(sequence, None)
        most |= {sequence: max(length, most.get(sequence, 0)) for sequence, length in after.items()}
        if len(after) > 4:
            found.append("sequences")
    if sum(count for step in steps(schedule) if step.kind in BATCHES for _, count in step.parts) > tokens:
        found.append("tokens")
    return found


# Kills: any wish that becomes a step without a look at what is held, a budget that is not kept, rules of the check and
# of the strategy that are wrong alike.
@pytest.mark.parametrize(("tokens", "lookback"), [(320, 8), (1100, 8), (20, 8), (320, 3), (320, 0)])
@pytest.mark.parametrize("surface", ["AttentionLayer", "Compressor"])
def test_every_drawn_schedule_can_be_run(surface: str, tokens: int, lookback: int) -> None:
    schedules = drawn(surface, 120, 0, tokens, lookback)
    assert len(schedules) > 40
    for schedule in schedules:
        check_schedule(schedule, surface, lookback)
        assert broken_rules(schedule, lookback, tokens) == [], schedule
        if surface == "Compressor":
            assert not {step.kind for step in steps(schedule)} & {"fork", "idle"} and "~" not in schedule
            assert all(not before for step, before, _ in lengths_after(schedule) if step.kind == "poison")


# Kills: what an adapter declares that it cannot do and is asked for all the same: every example would be lost.
def test_schedules_stay_within_a_declaration() -> None:
    search = Search(lambda schedule: False)
    case = PropertyCase("AttentionLayer", LayerCase("AttentionLayer", 4, ""), 120, TOKENS)
    search.run(layer_schedules(TOKENS, 0, 1, ("fork", "pad")), case)
    parsed = [steps(schedule) for schedule in search.tried]
    assert len(parsed) > 40
    assert {step.kind for steps_ in parsed for step in steps_} == {"prefill", "decode", "release", "poison", "idle"}
    assert all(step.padding == 0 and set(dict(step.parts)) <= {0} for steps_ in parsed for step in steps_)


# Kills: rules that allow what the built-in layer's own bookkeeping refuses (it shares no line with them).
def test_the_built_in_layer_s_bookkeeping_takes_every_drawn_schedule() -> None:
    for schedule in drawn("AttentionLayer"):
        sequences = Sequences(4, 512)
        for step in steps(schedule):
            sequences.check_new(sequence for sequence, _ in step.parts if step.kind in BATCHES)
            for sequence, count in step.parts:
                if step.kind in BATCHES:
                    sequences.check_room(sequence, count)
                    sequences.grow(sequence, count)
                elif step.kind == "keep":
                    sequences.truncate(sequence, count)
                elif step.kind == "fork":
                    sequences.fork(sequence, step.target, count)
                else:
                    sequences.release(sequence)


# Kills: a kind of wish taken out, batches that never grow, landings that miss edges of groups, window and pages,
# sequence numbers that never come again, drafts that are always rejected, or never.
def test_schedules_meet_what_state_goes_wrong_at() -> None:
    seen: Counter[str] = Counter()
    for schedule in drawn("AttentionLayer"):
        walked = lengths_after(schedule)
        released: set[int] = set()
        for step, before, after in walked:
            seen[step.kind] += 1
            seen["padded"] += step.padding > 0
            seen["together"] += step.kind in BATCHES and len(step.parts) > 1
            seen["prefilled together"] += step.kind == "prefill" and len(step.parts) > 1
            seen["prefilled padded"] += step.kind == "prefill" and step.padding > 0
            seen["decoded together"] += step.kind == "decode" and len(step.parts) > 1
            seen["not in order"] += [sequence for sequence, _ in step.parts] != sorted(dict(step.parts))
            seen["four alive"] += len(after) == 4
            if step.kind in BATCHES:
                new = set(after) - set(before)
                seen["joins"] += bool(new and before)
                seen["a number again"] += bool(new & released)
                for sequence, _ in step.parts:
                    start, stop = before.get(sequence, 0), after[sequence]
                    seen["chunk ends inside a group of 4"] += step.kind == "prefill" and stop % 4 != 0
                    seen["chunk begins inside a group of 4"] += step.kind == "prefill" and start % 4 != 0
                    seen["around 128"] += 126 <= stop <= 130
                    seen["around 256"] += 254 <= stop <= 258
                    seen["over 128"] += start < 128 < stop
                    seen["over 256 from inside"] += 0 < start < 256 < stop
                    seen["a page and more"] += stop > 256
            if step.kind == "release":
                released |= set(dict(step.parts))
        for (one, _, _), (other, before, _) in pairwise(walked):
            if one.kind == "verify":
                seen["all drafts kept"] += other.kind != "keep"
            if other.kind == "keep":
                sequence, length = other.parts[0]
                seen["back over a group of 4"] += length // 4 < before[sequence] // 4
                seen["back over a group of 128"] += length // 128 < before[sequence] // 128
    rare = {"back over a group of 128", "four alive", "idle", "a number again", "over 256 from inside"}
    wanted = {
        *("prefill", "decode", "verify", "keep", "fork", "release", "poison", "padded", "together"),
        *(
            "prefilled together",
            "prefilled padded",
            "decoded together",
            "not in order",
            "joins",
            "around 128",
            "around 256",
            "over 128",
            "a page and more",
        ),
        *("chunk ends inside a group of 4", "chunk begins inside a group of 4", "all drafts kept"),
        "back over a group of 4",
    }
    assert {name: seen[name] for name in wanted if seen[name] < 25} == {}
    assert {name: seen[name] for name in rare if seen[name] < 5} == {}


# Kills: a stream that no longer begins with the simplest schedule: then nothing shrinks to it.
def test_the_simplest_schedule_is_one_token() -> None:
    assert drawn("AttentionLayer")[0] == drawn("Compressor")[0] == "p0:1"


# Kills: a seed that is ignored, draws that depend on hashing, on the modules that are loaded, on the folder or on what
# ran before in the process, notes left in the folder.
def test_the_same_case_gives_the_same_schedules_everywhere(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "if sys.argv[1] == 'other': import json, tests.cases.test_families, dsv4_conformance.cli.replay, big\n"
        "from tests.cases.test_strategies import drawn\n"
        "if sys.argv[1] == 'other': drawn('Compressor', 30)\n"
        "print(' / '.join(drawn('AttentionLayer', 60, 3)))"
    )
    # Numbers of a local module that a range up to 999 would have taken up.
    (tmp_path / "big.py").write_text("NUMBERS = [" + ", ".join(map(str, range(100, 900))) + "]\n")
    said = []
    for argument, seed in (("plain", "1"), ("other", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        command = [sys.executable, "-c", program, argument]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        said.append(done.stdout.strip())
    assert said[0] == said[1] == " / ".join(drawn("AttentionLayer", 60, 3))
    assert {path.name for path in tmp_path.iterdir()} <= {"big.py", "__pycache__"}
    assert len(set(drawn("AttentionLayer", 60, 3)) & set(drawn("AttentionLayer", 60, 4))) < 10


def shortest(fails: object, tries: int = 100) -> str | None:
    """What a search for a schedule with this fault ends at, in the first of some streams that meet it."""
    for seed in range(20):
        search = Search(fails, tries, tries)  # type: ignore[arg-type]
        case = PropertyCase("AttentionLayer", LayerCase("AttentionLayer", 4, "", seed=seed), 40, TOKENS)
        found = search.run(layer_schedules(TOKENS), case)
        if found is not None:
            return found
    return None


def rejected_and_on(schedule: str) -> bool:
    cut = set()
    for step, _, _ in lengths_after(schedule):
        cut |= {sequence for sequence, _ in step.parts if step.kind == "keep"}
        if step.kind in BATCHES and cut & set(dict(step.parts)):
            return True
    return False


def group_of_two_chunks(schedule: str) -> bool:
    return any(
        step.kind == "prefill"
        and any(before.get(s, 0) % 4 and after[s] // 4 > before[s] // 4 for s in dict(step.parts))
        for step, before, after in lengths_after(schedule)
    )


def joined(schedule: str) -> bool:
    return any(before and set(dict(step.parts)) - set(before) for step, before, _ in lengths_after(schedule))


def on_after_a_fork(schedule: str) -> bool:
    forked: set[int] = set()
    for step, before, _ in lengths_after(schedule):
        if step.kind in BATCHES and any(before.get(s) == 256 for s in forked & set(dict(step.parts))):
            return True
        forked |= {step.parts[0][0]} if step.kind == "fork" else set()
    return False


# Kills: wishes of more than five choices (Hypothesis deletes no more at once), prefills that are not merged, draws
# whose small values are not the simple ones, sequence numbers that stay high.
@pytest.mark.parametrize(
    ("fault", "words", "tokens"),
    [(rejected_and_on, 3, 3), (group_of_two_chunks, 2, 4), (joined, 2, 2), (on_after_a_fork, 3, 257)],
)
def test_failures_shrink_to_the_shortest_schedule(fault: object, words: int, tokens: int) -> None:
    found = shortest(fault)
    assert found is not None
    parsed = steps(found)
    assert len(parsed) <= words and "~" not in found, found
    assert sum(count for step in parsed if step.kind in BATCHES for _, count in step.parts) <= tokens, found
    assert broken_rules(found) == []


# Kills: a search without end for an implementation that is slow, schedules that are tried twice.
def test_a_search_ends_after_its_tries_and_tries_nothing_twice() -> None:
    seen: list[str] = []

    def fails(schedule: str) -> bool:
        seen.append(schedule)
        return len(steps(schedule)) > 4

    found = shortest(fails, tries=7)
    first = next(place for place, schedule in enumerate(seen) if len(steps(schedule)) > 4)
    assert found is not None and len(seen) <= first + 1 + 7 + 7 and len(seen) == len(set(seen))


# Kills: an exception that Hypothesis takes for a failing schedule and shrinks, or wraps.
def test_what_is_no_failure_ends_the_search_at_once() -> None:
    seen = []

    def fails(schedule: str) -> bool:
        seen.append(schedule)
        if len(seen) == 3:
            raise MemoryError("full")
        return False

    with pytest.raises(MemoryError, match="full"):
        shortest(fails)
    assert len(seen) == 3


# Kills: Hypothesis imported by the plugin, the command line or collection: every run in the environment would pay.
def test_nothing_imports_hypothesis_before_a_property_runs() -> None:
    program = (
        "import sys, dsv4_conformance.plugin, dsv4_conformance.plugin.collection, dsv4_conformance.cli.replay\n"
        "import dsv4_conformance.cases.families, dsv4_conformance.runner.properties\n"
        "sys.exit('hypothesis' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


# Kills: a layer family whose schedules the rules would refuse: replay could not run them.
@pytest.mark.parametrize("name", ["layer_schedules", "layer_prefills", "layer_decodes", "layer_prefixes"])
def test_the_rules_take_the_schedules_of_the_layer_families(name: str) -> None:
    stream = family(name, "AttentionLayer", "laptop", 0)
    for _ in range(40):
        case = next(stream)
        assert isinstance(case, LayerCase)
        check_schedule(case.schedule)
