"""Profiles as data, and the plan they give: known names only, unique ids, the same list in every process."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.identity import case_id
from dsv4_conformance.cases.plan import expand
from dsv4_conformance.cases.profiles import Profile, get_profile, load_profiles
from dsv4_conformance.errors import BadInput
from dsv4_conformance.suite import ATTENTION, TestSpec

ROOT = Path(__file__).resolve().parents[2]
MANDATORY: dict[str, list[str]] = {"kernel": [], "engine": []}
SPEC = TestSpec("INV-02", ATTENTION, "sinks")


def profile(**changes: object) -> Profile:
    fields = {"name": "p", "summary": "s", "size": "laptop", "count": 5, "mandatory": MANDATORY} | changes
    return Profile.model_validate(fields)


# Kills: a default profile in place of an unknown one, a message without a way out.
def test_unknown_profile_is_bad_input_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match=r"'defualt'.*did you mean 'default'"):
        get_profile("defualt")
    with pytest.raises(BadInput, match="smoke, default, kill, interpreted, pre-merge, release, soak, performance"):
        get_profile("zzz")


# Kills: a profile renamed or lost.
def test_the_profiles_of_the_documentation_exist() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(load_profiles()) == set(told)
    assert get_profile("kill").name == "kill"
    gpu = [name for name, p in load_profiles().items() if p.size == "gpu"]
    assert gpu == ["pre-merge", "release", "soak", "performance"]


# Kills: the requirement's count before the family's, a selection that is ignored.
def test_count_comes_from_the_family_then_the_requirement_then_the_profile() -> None:
    p = profile(counts={"core": 7, "INV-02": 9}, only=["INV-01", "INV-02"])
    assert p.cases_for("INV-02", "core") == 7
    assert p.cases_for("INV-02", "rows") == 9
    assert p.cases_for("INV-01", "rows") == 5
    assert p.cases_for("INV-03", "core") == 0


# Kills: misspelt fields and empty profiles in the data file that are taken silently.
@pytest.mark.parametrize("changes", [{"counst": {}}, {"count": 0}, {"size": "tablet"}, {"mandatory": {"kernel": []}}])
def test_a_malformed_profile_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        profile(**changes)


# Kills: ids that repeat within a run, so that repro finds another case.
@pytest.mark.parametrize("name", ["smoke", "default", "kill", "pre-merge"])
def test_ids_of_a_plan_are_unique(name: str) -> None:
    from dsv4_conformance.cli.suite_functions import suite_functions

    ids = [c.case_id for f in suite_functions() for c in expand(f.spec, f.name, get_profile(name), 0)]
    assert len(ids) >= 9
    assert [found for found, n in Counter(ids).items() if n > 1] == []


# Kills: an id without the test (two tests of one requirement share cases) or without the case.
def test_id_is_a_hash_of_test_requirement_and_case() -> None:
    case, other = islice(family("sinks", "SparseDecode", "laptop", 0), 2)
    text = f"test_x\nINV-02\n{case.canonical()}"
    assert case_id("test_x", "INV-02", case) == "INV-02-" + hashlib.sha256(text.encode()).hexdigest()[:8]
    ids = {case_id(t, r, c) for t in ("test_x", "test_y") for r in ("INV-02", "INV-03") for c in (case, other)}
    assert len(ids) == 8


# Kills: fewer cases than the profile says, surfaces mixed up, a seed that is ignored, labels that are not unique.
def test_expand_gives_the_count_for_every_surface() -> None:
    planned = list(expand(SPEC, "test_x", profile(), 0))
    assert Counter(p.surface for p in planned) == {"SparseDecode": 5, "SparsePrefill": 5}
    assert all(p.case.surface == p.surface and p.requirement == "INV-02" for p in planned)
    assert len({p.label for p in planned}) == 10 and all(p.label.endswith(p.case_id) for p in planned)
    seeded = list(expand(SPEC, "test_x", profile(), 1))
    assert len(seeded) == 10 and {p.case_id for p in seeded}.isdisjoint(p.case_id for p in planned)


# Kills: a smaller profile whose cases are not the first ones of a larger one.
def test_a_larger_count_continues_the_smaller_one() -> None:
    few = [p.case_id for p in expand(SPEC, "test_x", profile(count=3), 0) if p.surface == "SparseDecode"]
    many = [p.case_id for p in expand(SPEC, "test_x", profile(count=8), 0) if p.surface == "SparseDecode"]
    assert many[:3] == few and len(many) == 8


# Kills: waiting for cases that a finite family does not have, a profile that does not select the requirement.
def test_finite_families_give_what_they_have() -> None:
    spec = TestSpec("INV-53", ("HeadLayout",), "heads")
    assert len(list(expand(spec, "test_x", profile(count=500), 0))) == 31 + 31 + 15
    assert list(expand(spec, "test_x", profile(only=["INV-01"]), 0)) == []


# Kills: an order or a draw that depends on the process.
def test_two_processes_plan_the_same() -> None:
    program = (
        "import hashlib\n"
        "from dsv4_conformance.cases.plan import expand\n"
        "from dsv4_conformance.cases.profiles import get_profile\n"
        "from dsv4_conformance.cases.families import FAMILIES\n"
        "from dsv4_conformance.suite import ATTENTION, TestSpec\n"
        "names = [n for n in FAMILIES if n not in ('heads', 'kv_tokens', 'two_scopes')]\n"
        "specs = [TestSpec('INV-01', ATTENTION, name) for name in names]\n"
        "ids = [p.label for spec in specs for p in expand(spec, 't', get_profile('kill'), 3)]\n"
        "print(len(ids), hashlib.sha256(repr(ids).encode()).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and int(said.pop().split()[0]) >= 60


# Kills: an import of torch on the way to the plan (collection must not touch a device).
def test_planning_needs_no_torch() -> None:
    program = (
        "import sys; import dsv4_conformance.cases.plan, dsv4_conformance.cases.families, dsv4_conformance.suite;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
