"""What a layer stores, and which bytes belong to whom (spec §5 to §7, §9)."""

from typing import Any

import pytest
import torch

from dsv4_conformance.mla.layer import AttentionLayer
from tests.mla.layers import FLAVOURS, close, new, open_layer, tokens

RATIOS = (0, 4, 128)


def contents(layer: AttentionLayer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in layer.caches.storage().items()}


# Kills: a tensor that steps write and storage does not name, one named twice, a copy in its place.
@pytest.mark.parametrize(
    ("ratio", "names"),
    [
        (0, {"window"}),
        (4, {"window", "compressed", "index keys", "state 0", "state 1"}),
        (128, {"window", "compressed", "state 0"}),
    ],
)
def test_storage_names_all_that_steps_write(ratio: int, names: set[str]) -> None:
    layer = open_layer(ratio)
    before, held = contents(layer), layer.caches.storage()
    assert set(held) == names and len({tensor.data_ptr() for tensor in held.values()}) == len(names)
    layer.step(new((0, tokens(128))))
    assert all(not torch.equal(held[name], before[name]) for name in names)


# Kills: two buffers, entries that do not begin where unified lists think they do, rows of the pools copied once.
@pytest.mark.parametrize("ratio", RATIOS)
def test_exact_pools_are_parts_of_one_buffer(ratio: int) -> None:
    caches = open_layer(ratio).caches
    assert caches.unified is not None
    joined, per_page = caches.unified, 256 // ratio if ratio else 0
    assert joined.shape == (7 * (256 + per_page), 1, 512) and caches.compressed_from == 7 * 256
    caches.window.buffer[5] = 3
    assert (joined[5] == 3).all()
    if caches.compressed is not None:
        caches.compressed.buffer[1] = 4
        assert (joined[7 * 256 + 1] == 4).all()
    assert open_layer(ratio, quantised=True).caches.unified is None


# Kills: tokens that complete no entry written over slot 0 or their neighbour, if only on the page that nobody has.
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("mode", ["prefill", "decode", "verify"])
def test_a_token_that_completes_no_entry_writes_none(mode: str, quantised: bool) -> None:
    layer = open_layer(4, quantised=quantised)
    layer.step(new((0, tokens(20)), (1, tokens(5))))
    before = contents(layer)
    layer.step(new((0, tokens(1)), (1, tokens(1))), mode)
    after = layer.caches.storage()
    assert torch.equal(after["compressed"], before["compressed"]) and torch.equal(
        after["index keys"], before["index keys"]
    )
    assert not torch.equal(after["window"], before["window"])


# Kills: entries written one slot on or to another sequence's page, keys of the indexer left out.
@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_the_token_that_completes_an_entry_writes_that_one(mode: str) -> None:
    layer = open_layer(4)
    layer.step(new((0, tokens(23)), (1, tokens(5))))
    before, page = contents(layer), layer.sequences[0].pages[0]
    layer.step(new((1, tokens(1)), (0, tokens(1))), mode)
    for name in ("compressed", "index keys"):
        changed = (layer.caches.storage()[name] != before[name]).any(1).nonzero()[:, 0]
        assert changed.tolist() == [page * 64 + 5], name


# Kills: poison that spares a pool, a state or the workspace, or that reaches what a living sequence owns.
@pytest.mark.parametrize(("precision", "quantised"), FLAVOURS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_poison_fills_all_but_what_is_owned(ratio: int, precision: Any, quantised: bool) -> None:
    layer = open_layer(ratio, precision, quantised)
    layer.step(new((0, tokens(20)), (1, tokens(9))))
    layer.release(0)
    before = contents(layer)
    layer.poison()
    page, row = layer.sequences[1].pages[0], layer.sequences[1].state_row
    for name, tensor in layer.caches.storage().items():
        owner, parts = (row, 4) if name.startswith("state") else (page, 7)
        now, old = (part.reshape(parts, -1) for part in (tensor, before[name]))
        dead = [part for part in range(parts) if part != owner]
        poisoned = now[dead] == 0xFF if tensor.dtype == torch.uint8 else now[dead].isnan()
        assert bool(poisoned.all()), name
        if tensor.dtype != torch.uint8:  # in pages, pad bytes are poisoned, too
            assert torch.equal(now[owner], old[owner])
    assert layer.attention.workspace.get(1).isnan().all()
    again = open_layer(ratio, precision, quantised)
    again.step(new((1, tokens(9))))
    more = new((1, tokens(3)))
    close(layer.step(more, "verify"), again.step(more, "verify"), 1e-2 if quantised else 2e-5)


# Kills: the tail of one compressor alone handed over, that of another page, state that only an eager chunk uses.
@pytest.mark.parametrize(("ratio", "mode"), [(0, "prefill"), (4, "prefill"), (4, "verify"), (128, "verify")])
def test_a_fork_goes_on_as_its_source_did(ratio: int, mode: str) -> None:
    layer, x = open_layer(ratio), tokens(264)
    layer.step(new((0, x[:256])))
    layer.step(new((0, tokens(8, seed=5))))
    layer.fork(0, 1, 256)
    layer.release(0)
    layer.poison()
    right = open_layer(ratio)
    right.step(new((3, x[:256])))
    close(layer.step(new((1, x[256:])), mode), right.step(new((3, x[256:])), mode))
