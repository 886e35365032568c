"""Which keys a golden's rows read, by counting: with queries of 0, lse is ln of the number of keys.

Mutants that fail here: slot or row 0 taken for a hole; the last kv row out of bounds; lengths shared by the wrong rows;
a scope left out; the sink of another head; tp = 1 padded; the share of another rank.
"""

import math

import pytest

from dsv4_conformance.golden.exact.budgets import Rules
from dsv4_conformance.golden.results import results_of
from dsv4_conformance.golden.stored import Stored, Tensors

RULES = Rules((0.0, 0.37), 2.0)
FAR = 2**31 - 1


def bf16(*shape: int, value: int = 0) -> Stored:
    count = math.prod(shape)
    return Stored.of("BF16", shape, [value] * count)


def counts(results: Tensors) -> list[float]:
    """Keys of each row and head; 0 for +inf."""
    return [0.0 if x == math.inf else round(math.exp(x), 9) for x in map(float, results["expected_lse"].values())]


def scope(name: str, pages: int, size: int, lists: list[list[int]], lengths: list[int], s_q: int) -> Tensors:
    shape = (len(lengths), s_q, len(lists[0]))
    page_bytes = -(-584 * size // 576) * 576
    return {
        f"{name}_pages": Stored("U8", (pages, page_bytes), bytes(pages * page_bytes)),
        f"{name}_page_size": Stored.of("I64", (), [size]),
        f"{name}_indices": Stored.of("I32", shape, [entry for row in lists for entry in row]),
        f"{name}_topk_length": Stored.of("I32", (len(lengths),), lengths),
    }


def test_decode_rows_read_both_scopes_within_their_lengths() -> None:
    window = [[0, -1, 3, FAR], [0, 0, 0, FAR], [1, 2, -1, 3], [-1, -1, -1, -1]]
    extra = [[0, FAR], [0, FAR], [2, 1], [1, -1]]
    inputs = {
        "q": bf16(2, 2, 1, 512),
        "scale": Stored.of("F64", (), [0.5]),
        **scope("window", 2, 2, window, [3, 4], 2),
        **scope("extra", 1, 3, extra, [1, 2], 2),
    }
    results = results_of("SparseDecode", inputs, RULES)
    assert counts(results) == [2 + 1, 3 + 1, 3 + 2, 0 + 1]
    assert results["expected_out"].shape == (4, 1, 512)


def test_decode_without_lengths_reads_whole_lists() -> None:
    inputs = {"q": bf16(1, 1, 1, 512), "scale": Stored.of("F64", (), [0.5])}
    inputs |= scope("window", 1, 2, [[0, 1, -1, 1]], [2], 1)
    del inputs["window_topk_length"]
    assert counts(results_of("SparseDecode", inputs, RULES)) == [3]


def test_prefill_rows_read_every_row_in_bounds() -> None:
    lists = [[0, 4, 5, -1, 4], [-(2**31), FAR, 5, -7, 2], [3, 3, 3, 3, 3]]
    inputs = {
        "q": bf16(3, 1, 512),
        "kv": bf16(5, 1, 512),
        "indices": Stored.of("I32", (3, 1, 5), [entry for row in lists for entry in row]),
        "topk_length": Stored.of("I32", (3,), [5, 4, 2]),
        "scale": Stored.of("F64", (), [0.5]),
    }
    results = results_of("SparsePrefill", inputs, RULES)
    assert counts(results) == [3, 0, 2]
    assert results["expected_max_logits"].values() == (0.0, -math.inf, 0.0)
    assert results["budget_lse"].values()[1] == results["budget_out"].values()[1] == 0.0
    assert results["budget_lse"].values()[0] > 0


def test_each_head_has_its_sink() -> None:
    one = 0x3F80
    inputs = {
        "q": bf16(1, 3, 512),
        "kv": bf16(1, 1, 512, value=one),
        "indices": Stored.of("I32", (1, 1, 1), [0]),
        "scale": Stored.of("F64", (), [0.5]),
        "sink": Stored.of("F32", (3,), [-math.inf, 0.0, math.inf]),
    }
    out = results_of("SparsePrefill", inputs, RULES)["expected_out"].values()
    assert [out[0], out[512], out[1024]] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("n_heads", "tp", "rank", "padded", "first", "local"),
    [
        (64, 1, 0, 64, 0, 64),
        (8, 1, 0, 8, 0, 8),
        (64, 2, 1, 64, 32, 32),
        (128, 2, 1, 64, 64, 64),
        (256, 2, 1, 256, 128, 128),
    ],
)
def test_head_layout(n_heads: int, tp: int, rank: int, padded: int, first: int, local: int) -> None:
    inputs = {name: Stored.of("I64", (1,), [x]) for name, x in (("n_heads", n_heads), ("tp", tp), ("rank", rank))}
    results = results_of("HeadLayout", inputs, RULES)
    assert {name: tensor.values() for name, tensor in results.items()} == {
        "expected_padded_heads": (padded,),
        "expected_first_head": (first,),
        "expected_local_heads": (local,),
    }
