"""Recording and checking, on two small goldens.

Mutants that fail here: a changed file accepted without a reason; something written before the refusal; a changelog that
loses or reorders entries; a check that trusts the manifest's hash, or the file, or the changelog alone; other rooms'
manifest entries dropped.
"""

import json
from pathlib import Path

import pytest

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.errors import BadInput
from dsv4_conformance.golden import changelog, manifest, tensors
from dsv4_conformance.golden.cases import Golden
from dsv4_conformance.golden.stored import Stored, digest, file_bytes


def slots(tokens: int = 300, name: str = "slots", about: str = "slots") -> Golden:
    return Golden(name, about, (FormatCase("SlotMapping", tokens, 256),))


KEYS = Golden("keys", "index keys", (FormatCase("IndexKeyFormat", 2, 64),))
BOTH = (slots(), KEYS)
SLOTS_PATH, KEYS_PATH = "tensors/slots.safetensors", "tensors/keys.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with both goldens recorded."""
    tensors.write(tmp_path, None, BOTH)
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def short(folder: Path, path: str) -> str:
    return manifest.load(folder).files[path].sha256[:12]


def edit_manifest(folder: Path, path: str, **changes: object) -> None:
    whole = json.loads((folder / "MANIFEST.json").read_text())
    whole["files"][path] |= changes
    (folder / "MANIFEST.json").write_text(json.dumps(whole))


def test_recorded_goldens_have_no_problem_and_writing_again_changes_no_byte(folder: Path) -> None:
    assert tensors.problems(folder, BOTH) == []
    before = content(folder)
    assert set(before) == {SLOTS_PATH, KEYS_PATH, "MANIFEST.json", "CHANGELOG.md"}
    assert tensors.write(folder, None, BOTH) == []
    assert tensors.write(folder, "no reason needed", BOTH) == []
    assert content(folder) == before


def test_new_files_are_logged_as_new(folder: Path) -> None:
    history = changelog.history(changelog.read(folder))
    assert history == {path: [("new", short(folder, path))] for path in (SLOTS_PATH, KEYS_PATH)}


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_change_without_a_reason_is_refused_and_writes_nothing(folder: Path, reason: str | None) -> None:
    before = content(folder)
    with pytest.raises(BadInput, match=rf"^{SLOTS_PATH} would change from \w+ to \w+; pass --reason"):
        tensors.write(folder, reason, (slots(600), KEYS))
    assert content(folder) == before


def test_a_change_with_a_reason_is_logged_above_the_older_entries(folder: Path) -> None:
    first = short(folder, SLOTS_PATH)
    assert tensors.write(folder, "more\ntokens", (slots(600), KEYS)) == [
        f"{SLOTS_PATH}: {first} -> {short(folder, SLOTS_PATH)}"
    ]
    text = changelog.read(folder)
    assert text.index(": more tokens\n") < text.index(": new files\n")
    assert changelog.history(text)[SLOTS_PATH] == [(first, short(folder, SLOTS_PATH)), ("new", first)]
    assert changelog.history(text)[KEYS_PATH] == [("new", short(folder, KEYS_PATH))]
    assert tensors.problems(folder, (slots(600), KEYS)) == []


def test_a_golden_without_a_case_is_removed_with_a_reason(folder: Path) -> None:
    last = short(folder, SLOTS_PATH)
    with pytest.raises(BadInput, match="to removed"):
        tensors.write(folder, None, (KEYS,))
    tensors.write(folder, "not needed", (KEYS,))
    assert not (folder / SLOTS_PATH).exists()
    assert changelog.history(changelog.read(folder))[SLOTS_PATH][0] == (last, "removed")
    assert tensors.problems(folder, (KEYS,)) == []
    assert tensors.write(folder, None, (KEYS,)) == []
    tensors.write(folder, None, BOTH)  # it is new again
    assert tensors.problems(folder, BOTH) == []


def test_an_edited_or_missing_file_is_found_and_written_back(folder: Path) -> None:
    before = content(folder)
    (folder / SLOTS_PATH).write_bytes(before[SLOTS_PATH][:-1] + b"\x55")
    (folder / KEYS_PATH).unlink()
    edited, missing = sorted(tensors.problems(folder, BOTH), reverse=True)
    assert edited.startswith(f"{SLOTS_PATH} was edited")
    assert missing.startswith(f"{KEYS_PATH} is missing")
    assert tensors.write(folder, None, BOTH) == []
    assert content(folder) == before


def test_a_file_edited_together_with_manifest_and_changelog_is_found(folder: Path) -> None:
    old, before = short(folder, SLOTS_PATH), (folder / SLOTS_PATH).read_bytes()
    (folder / SLOTS_PATH).write_bytes(before[:-1] + b"\x55")
    sha = tensors._sha(before[:-1] + b"\x55")
    edit_manifest(folder, SLOTS_PATH, sha256=sha)
    log = folder / "CHANGELOG.md"
    log.write_text(log.read_text().replace(old, sha[:12]))
    assert tensors.problems(folder, BOTH) == [
        f"{SLOTS_PATH}: the same inputs give other results, budgets or text than recorded."
    ]


def test_a_hash_that_the_changelog_does_not_end_in_is_found(folder: Path) -> None:
    log, now = folder / "CHANGELOG.md", short(folder, SLOTS_PATH)
    text = log.read_text()
    log.write_text(text.replace(f"- `{SLOTS_PATH}`: new -> {now}\n", ""))
    assert [p for p in tensors.problems(folder, BOTH) if "does not name it" in p and SLOTS_PATH in p]
    stale = changelog.with_entry(text, "2030-01-01", "a later one", {SLOTS_PATH: (now, "0123456789ab")})
    log.write_text(stale)
    (found,) = tensors.problems(folder, BOTH)
    assert found == f"{SLOTS_PATH} is {now}, but CHANGELOG.md ends in 0123456789ab; add an entry."
    with pytest.raises(BadInput, match="--reason"):
        tensors.write(folder, None, BOTH)
    tensors.write(folder, "back again", BOTH)
    assert tensors.problems(folder, BOTH) == []


def test_other_inputs_of_the_same_case_are_told_apart_from_other_results(folder: Path) -> None:
    edit_manifest(folder, SLOTS_PATH, inputs="0" * 64)
    (found,) = tensors.problems(folder, BOTH)
    assert (
        found == f"{SLOTS_PATH}: its case gives other input tensors than when it was recorded; the generator changed."
    )


def test_a_changed_case_is_found(folder: Path) -> None:
    (found,) = tensors.problems(folder, (slots(600), KEYS))
    assert found == f"{SLOTS_PATH} was made from another case."


@pytest.mark.parametrize("change", [{"bytes": 1}, {"oracle": "exact-0"}, {"about": "else"}, {"surface": "HeadLayout"}])
def test_an_edited_manifest_entry_is_found(folder: Path, change: dict[str, object]) -> None:
    edit_manifest(folder, SLOTS_PATH, **change)
    (found,) = tensors.problems(folder, BOTH)
    assert found == f"{SLOTS_PATH}: its entry in MANIFEST.json was edited."


def test_a_golden_that_is_not_recorded_and_a_record_without_case_are_found(folder: Path) -> None:
    found = tensors.problems(folder, (KEYS, slots(name="other")))
    assert found == [
        f"{SLOTS_PATH} is recorded, but no case makes it.",
        "tensors/other.safetensors has a case, but is not recorded.",
    ]


def test_a_file_that_nobody_recorded_is_found(folder: Path) -> None:
    (folder / "tensors/note.txt").write_text("x")
    (found,) = tensors.problems(folder, BOTH)
    assert found.startswith("tensors/note.txt is not in MANIFEST.json")


def test_entries_of_other_goldens_stay(folder: Path) -> None:
    whole = json.loads((folder / "MANIFEST.json").read_text())
    whole["files"]["accuracy/gsm8k.jsonl"] = whole["files"][SLOTS_PATH]
    (folder / "MANIFEST.json").write_text(json.dumps(whole))
    tensors.write(folder, "more tokens", (slots(600), KEYS))
    assert "accuracy/gsm8k.jsonl" in manifest.load(folder).files
    assert tensors.problems(folder, (slots(600), KEYS)) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "There is no "),
        ("{", " is not JSON "),
        ("[]", " has format None, and this version reads 1"),
        ('{"format": 2, "files": {}}', " has format 2, and this version reads 1"),
        ('{"format": 1, "files": {"tensors/a": {"surface": 1}}}', " is malformed at files.tensors/a."),
        ('{"format": 1, "filse": {}}', " is malformed at filse "),
    ],
)
def test_a_manifest_that_cannot_be_used_is_one_sentence(folder: Path, text: str | None, sentence: str) -> None:
    path = folder / "MANIFEST.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(BadInput) as error:
        tensors.problems(folder, BOTH)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot be written .* --folder"):
        tensors.write(tmp_path / "file", None, BOTH)


def test_digest_sees_names_dtypes_shapes_and_bytes() -> None:
    base = Stored.of("I32", (2, 2), [1, 2, 3, 4])
    others = [
        {"b": base},
        {"a": Stored("F32", (2, 2), base.data)},
        {"a": Stored("I32", (4,), base.data)},
        {"a": Stored.of("I32", (2, 2), [1, 2, 3, 5])},
        {"a": base, "b": base},
    ]
    assert len({digest(tensors_) for tensors_ in [{"a": base}, *others]}) == 6


def test_order_of_tensors_and_text_does_not_matter() -> None:
    a, b = Stored.of("I32", (2,), [1, 2]), Stored.of("F64", (), [0.5])
    one = file_bytes({"a": a, "b": b}, {"x": "1", "y": "2"})
    assert file_bytes({"b": b, "a": a}, {"y": "2", "x": "1"}) == one
    assert digest({"b": b, "a": a}) == digest({"a": a, "b": b})
