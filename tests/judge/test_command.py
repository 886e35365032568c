"""What the command prints, writes and returns."""

import json
from pathlib import Path

import pytest
import torch

from dsv4_conformance.cases.case import ScopeShape
from tests.judge.command import run_judge
from tests.judge.dumps import decode_call, mistaken, right, write


def test_right_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_judge(capsys, write(tmp_path, right(decode_call()), layer="17", note="after prefix hit"))
    assert done.code == 0
    lines = done.out.splitlines()
    assert (
        "decode, 6 rows x 8 heads, window list of 128 in pages of 64, extra list of 64 in pages of 2, sinks" in lines[0]
    )
    assert lines[1:3] == ["  layer: 17", "  note: after prefix hit"]
    assert lines[3].startswith("RIGHT: 6 rows; worst error 0.")
    assert [line.split()[:2] for line in lines[6:]] == [[str(row), "right"] for row in range(6)]


def test_wrong_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors["out"][1, 1, 6, 300] += 0.25
    done = run_judge(capsys, write(tmp_path, tensors))
    assert done.code == 1
    assert "WRONG: 1 of 6 rows; worst is row 3 (b 1, query 1), head 6: out is " in done.out
    assert "wrong heads: 6 (each in 1 of 6 rows); right in every row: 0-5, 7\n" in done.out
    assert "nothing tried here explains it" in done.out


def test_heads_of_another_rank_stand_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = decode_call()
    tensors, other = right(call), mistaken(call, "sink_of_another_rank")
    tensors["out"][:, :, 4:] = other["out"][:, :, 4:]
    done = run_judge(capsys, write(tmp_path, tensors))
    assert "wrong heads: 4-7 (each in 6 of 6 rows); right in every row: 0-3\n" in done.out
    assert "(sink_of_another_rank)" in done.out
    assert "head h used the sink of head (h + 4) mod 8, in these heads only" in done.out


def test_many_rows_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = decode_call(b=16, s_q=2, h_q=2, window=ScopeShape(32, 8, 64), extra=None)
    tensors = right(call)
    tensors["out"][2:14] += 1.0
    done = run_judge(capsys, write(tmp_path, tensors))
    shown = [line.split()[0] for line in done.out.splitlines() if "  WRONG  " in line]
    assert shown == [str(row) for row in range(4, 24)]
    assert "... and 4 more wrong rows\nwrong rows: 4-27\n" in done.out


def test_many_right_rows_show_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = decode_call(b=11, s_q=2, h_q=2, window=ScopeShape(32, 8, 64), extra=None)
    done = run_judge(capsys, write(tmp_path, right(call)))
    assert done.code == 0
    assert len([line for line in done.out.splitlines() if "  right  " in line]) == 1


def test_scattered_heads_are_counted_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call(h_q=32))
    tensors["out"][0, 0, ::3] += 1.0
    done = run_judge(capsys, write(tmp_path, tensors))
    (row,) = [line for line in done.out.splitlines() if "  WRONG  " in line]
    assert row.rstrip().endswith("  11 of 32")
    assert "wrong heads: 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30 (each in 1 of 6 rows)" in done.out


def test_only_a_wrong_head_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors["out"][1, 1, 6, 300] += 0.25
    path = write(tmp_path, tensors)
    assert run_judge(capsys, path, "--head", "0-5,7").code == 0
    assert run_judge(capsys, path, "--row", "0-2", "--row", "4").code == 0
    assert run_judge(capsys, path, "--row", "3", "--head", "6").code == 1


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = mistaken(decode_call(holes="none"), "rope_pairing_wrong")
    file = tmp_path / "told.json"
    assert run_judge(capsys, write(tmp_path, tensors, rank="3"), "--json", file, "--row", "0-4").code == 1
    told = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (told["schema"], told["kind"], told["verdict"], told["notes"]) == (1, "decode", "wrong", {"rank": "3"})
    assert [row["row"] for row in told["rows"]] == [0, 1, 2, 3, 4]
    assert told["heads"] == list(range(8))
    row = told["rows"][told["worst"]["row"]]
    worst = told["worst"]
    assert row["outputs"][worst["output"]]["in_budgets"][worst["head"]] == worst["in_budgets"] > 1
    assert row["wrong_heads"] == list(range(8))
    assert told["explanation"]["row"] == worst["row"]
    assert told["explanation"]["mistakes"][0]["name"] == "rope_pairing_wrong"
    assert told["explanation"]["key"]["explains"] is False


def test_json_spells_nan_and_infinity_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors["out"][0, 1, 2, 0] = torch.nan
    file = tmp_path / "told.json"
    assert run_judge(capsys, write(tmp_path, tensors), "--json", file).code == 1
    told = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert told["worst"] == {"row": 1, "head": 2, "output": "out", "in_budgets": "inf"}
    assert told["rows"][1]["outputs"]["out"]["error"][2] == "nan"
    assert told["explanation"]["nan"] is True


def test_json_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_judge(capsys, write(tmp_path, right(decode_call())), "--json", tmp_path)
    assert done.code == 2
    assert "RIGHT" in done.out
    assert (
        done.err == f"dsv4-conformance: {tmp_path} cannot be written (Is a directory); name another file for --json.\n"
    )


def test_slice_that_was_passed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors["all_sinks"] = torch.cat((tensors["sink"] - 1, tensors["sink"], tensors["sink"] + 1))
    done = run_judge(capsys, write(tmp_path, tensors))
    assert "  the sinks of the call are all_sinks[8:16], rank 1's slice\n" in done.out
