"""Expected outcomes of a deployment, against numbers written down by hand and against counting entry by entry."""

import pytest

from dsv4_conformance.oracle import config as oracle
from dsv4_conformance.spec.geometry import FLASH, PRO


# Kills: cp ignored, dp ignored; engines in which context-parallel ranks come on top.
def test_attention_tp() -> None:
    assert oracle.attention_tp(8, 2, 1) == (4,)
    assert oracle.attention_tp(8, 1, 8) == (1, 8)


# Kills: 128 heads for few, padding without tensor parallelism. Examples of spec §15.
def test_padded_heads() -> None:
    wanted = [(64, 32, 64), (128, 64, 64), (128, 16, 64), (128, 128, 128), (64, 64, 64), (256, 128, 256)]
    assert all(oracle.padded_heads(heads, local) == padded for heads, local, padded in wanted)


# Kills: page bytes without their tail, another number of entries. The table of spec §9.1 and §9.3.
def test_pages() -> None:
    found = [(oracle.entries_per_page(pool), oracle.page_bytes(pool)) for pool in ("window", "c4", "c128", "index")]
    assert found == [(256, 149760), (64, 37440), (2, 1728), (64, 8448)]


# Kills: YaRN or the other base in C0 layers, drafts forgotten.
def test_layer_ropes() -> None:
    ropes = oracle.layer_ropes(FLASH)
    assert ropes[:3] == [(10000.0, False), (10000.0, False), (160000.0, True)] and ropes[-1] == (10000.0, False)
    assert len(ropes) == 44 and oracle.layer_ropes(PRO)[0] == (160000.0, True)


# Kills: pages rounded down, a window that counts the 128th position before the last as seen, one that grows.
@pytest.mark.parametrize("tokens", [1, 127, 128, 255, 256, 257, 383, 384, 385, 1000, 4096])
def test_request_bytes_are_those_of_the_touched_pages(tokens: int) -> None:
    for pool, layers, positions in (
        ("window", 44, range(max(tokens - 128, 0), tokens)),
        ("c4", 21, range(tokens)),
        ("index", 21, range(tokens)),
        ("c128", 20, range(tokens)),
    ):
        touched = len({position // 256 for position in positions})
        assert oracle.request_bytes(FLASH, pool, tokens) == layers * touched * oracle.page_bytes(pool)


# Kills: rows of the layer that gathers least, lengths rounded up.
def test_gathered_rows() -> None:
    assert oracle.gathered_rows(FLASH, [259, 3, 4]) == 64 + 0 + 1


# Kills: state of one kind of layer left out, the A halves of the group before.
def test_state_bytes() -> None:
    c4 = sum(2 * 640 * halves for halves in (2, 2, 2, 1, 1, 1, 1))  # three open tokens, four of the group before
    assert oracle.state_bytes(FLASH, 4) == 4 * (21 * c4 + 20 * 127 * 2 * 512)
