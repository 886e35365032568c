"""Splitting by query rows: the same answer, and a memory bound that holds for 128 heads and 65536 keys.

The bound is stated for 64 query rows. Chunks hold whole rows, a chunk's scratch is freed before the next one begins,
and what remains of a row is its answer (128 x 514 float64, 0.5 MB). So the peak of many rows is that of one row plus
their answers, which the test shows on one row against four, and the bound for 64 rows follows.
"""

import json
import subprocess
import sys

import pytest
import torch

from dsv4_conformance.oracle.attention import Problem, Scope, attention

HEADS, KEYS, GIB = 128, 65536, 1 << 30

PROGRAM = """
import json, resource, sys
import torch
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.oracle.attention import Problem, Scope, attention

torch.set_num_threads(2)
heads, keys = int(sys.argv[1]), int(sys.argv[2])
kv = torch.randn(keys, 512).to(torch.bfloat16)

def peak(work, rows):
    lists = torch.arange(keys, dtype=torch.int32).expand(rows, keys)
    scope = Scope(lambda at: kv[at], lists, None, keys)
    work(Problem(torch.randn(rows, heads, 512).to(torch.bfloat16), (scope,), torch.zeros(heads), 512**-0.5))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

print(json.dumps([peak(attention, 1), peak(attention, 4), peak(truth_of, 1)]))
"""


def problem(rows: int, width: int) -> Problem:
    generator = torch.Generator().manual_seed(rows)
    kv = torch.randn(200, 512, generator=generator).to(torch.bfloat16)
    lists = torch.randint(-1, 200, (rows, width), generator=generator, dtype=torch.int32)
    length = torch.randint(0, width + 1, (rows,), generator=generator, dtype=torch.int32)
    q = torch.randn(rows, 4, 512, generator=generator).to(torch.bfloat16)
    return Problem(q, (Scope(lambda at: kv[at], lists, length, 200),), torch.tensor([0.0, 1.0, -1.0, torch.inf]), 0.05)


# Kills: rows lost or repeated at chunk borders, lengths that stay behind when rows are taken.
@pytest.mark.parametrize("max_bytes", [1, 400_000, 900_000])
def test_chunked_answer_is_the_whole_answer(max_bytes: int) -> None:
    p = problem(rows=11, width=40)
    sizes = [part.q.shape[0] for _, part in p.chunks(max_bytes)]
    assert sum(sizes) == 11 and len(sizes) > 1
    assert max_bytes > 1 or sizes == [1] * 11
    one, other = attention(p), attention(p, max_bytes)
    for name in ("out", "lse", "max_logits"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-13, atol=1e-14)


# Kills: chunks whose slices overlap, leave a row out, or come in another order.
def test_chunks_cover_every_row_once() -> None:
    p = problem(rows=11, width=40)
    slices = [part for part, _ in p.chunks(400_000)]
    assert [row for part in slices for row in range(part.start, part.stop)] == list(range(11))


# Kills: a scratch estimate without the keys or without the heads, chunks kept alive, max_bytes ignored.
def test_128_heads_over_65536_keys_stay_within_8_gib() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HEADS), str(KEYS)], capture_output=True, text=True, check=True, timeout=120
    )
    one, four, with_budgets = json.loads(run.stdout)
    per_row = HEADS * 514 * 8
    assert four - one < 128 << 20  # three more rows cost their lists, queries and answers, not three times the scratch
    assert one + 64 * per_row < 8 * GIB
    assert with_budgets + 64 * per_row < 8 * GIB
