"""Cases as JSON and back, and fixed cases from files."""

import json
from itertools import islice
from pathlib import Path

import pytest

from dsv4_conformance.cases import fixed
from dsv4_conformance.cases.codec import from_data, to_data
from dsv4_conformance.cases.families import FAMILIES, family
from dsv4_conformance.cases.identity import case_id
from dsv4_conformance.cases.plan import expand
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.errors import BadInput
from dsv4_conformance.suite import TestSpec


# Kills: tuples that stay lists, nested cases that stay mappings, defaults that are not filled in.
@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_kind_of_case_comes_back_as_it_was(name: str) -> None:
    cases = [case for size in ("laptop", "gpu") for case in islice(family(name, "SparseDecode", size, 3), 30)]
    assert cases
    for case in cases:
        back = from_data(json.loads(json.dumps(to_data(case))))
        assert back == case and back.canonical() == case.canonical() and hash(back) == hash(case)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"kind": "Nothing"}, "no kind of case 'Nothing'"),
        ({"kind": "HeadCase", "surface": "HeadLayout", "heads": 3}, "no field 'heads'"),
        ({"kind": "HeadCase", "surface": "HeadLayout"}, "cannot be made"),
        ({"kind": "AttentionCase", "window": {"rows": 2}}, "none of ScopeShape"),
    ],
)
def test_what_is_no_case_is_refused(data: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        from_data(data)


FILE = {
    "format": 1,
    "test": "test_a",
    "requirement": "INV-01",
    "surface": "HeadLayout",
    "case": {"kind": "HeadCase", "surface": "HeadLayout", "n_heads": 7, "tp": 1, "rank": 0},
}


# Kills: fixed cases that are planned for other tests, twice, or where the profile selects nothing.
def test_fixed_cases_are_planned_after_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.json").write_text(json.dumps(FILE))
    (tmp_path / "two.json").write_text(json.dumps(FILE))
    monkeypatch.setenv(fixed.VARIABLE, str(tmp_path))
    spec, profile = TestSpec("INV-01", ("HeadLayout",), "heads"), get_profile("default")
    planned = list(expand(spec, "test_a", profile, 0))
    plain = list(expand(spec, "test_b", profile, 0))
    assert len(planned) == len(plain) + 1
    assert planned[-1].case.label() == "heads7-tp1-rank0"
    assert planned[-1].case_id == case_id("test_a", "INV-01", planned[-1].case)


# Kills: fixed cases of requirements that a profile leaves out.
def test_a_profile_that_leaves_a_requirement_out_leaves_its_fixed_cases_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(FILE | {"requirement": "INV-02"}))
    monkeypatch.setenv(fixed.VARIABLE, str(tmp_path))
    spec = TestSpec("INV-02", ("HeadLayout",), "heads")
    assert list(expand(spec, "test_a", get_profile("default"), 0))[-1].case.label() == "heads7-tp1-rank0"
    assert not list(expand(spec, "test_a", get_profile("smoke"), 0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no file of a failed case"),
        ("[" * 200_000, "no file of a failed case"),
        ("[]", "no file of a failed case"),
        ("[]", "no file"),
        ('{"format": 2}', "format is 2"),
        ('{"format": 1}', "'test'"),
    ],
)
def test_a_file_that_is_none_is_named(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=f"bad.json.*{says}"):
        fixed.read_fixed(text, "bad.json")


def test_a_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fixed.VARIABLE, "/nowhere")
    with pytest.raises(BadInput, match="'/nowhere', which is no folder"):
        list(fixed.fixed_cases("test_a", "INV-01", "HeadLayout"))
