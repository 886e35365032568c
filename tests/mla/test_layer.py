"""One layer on one rank: refusals, sequences that come and go, sinks that are loaded late, paths, padding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.backend import ExactKernels
from dsv4_conformance.mla.layer import AttentionLayer
from tests.mla.layers import FLAVOURS, close, make_spec, new, open_layer, same, snapshot, tokens

RATIOS = (0, 4, 128)


@pytest.fixture(scope="module")
def opened() -> AttentionLayer:
    """Sequence 0 with 260 tokens after it had 262, sequence 1 with 3; room for one more of up to 512."""
    layer = open_layer(4)
    layer.step(new((0, tokens(258)), (1, tokens(3, seed=1))))
    layer.step(new((0, tokens(4, seed=2))), "verify")
    layer.truncate(0, 260)
    return layer


REFUSALS: dict[str, tuple[Callable[[AttentionLayer], Any], str]] = {
    "twice": (lambda layer: layer.step(new((0, tokens(1)), (0, tokens(1)))), r"sequences \[0, 0\] of one step are not"),
    "mode": (lambda layer: layer.step(new((0, tokens(1))), "extend"), "mode is 'extend'; use prefill"),
    "path": (lambda layer: layer.step(new((0, tokens(1))), path="dense"), "path is 'dense'; use auto, paged or sparse"),
    "decode": (lambda layer: layer.step(new((1, tokens(1)), (0, tokens(2))), "decode"), "sequence 0 decodes 2 tokens"),
    "verify": (lambda layer: layer.step(new((1, tokens(8)), (0, tokens(9))), "verify"), "sequence 0 verifies 9 drafts"),
    "none": (lambda layer: layer.step(new((1, tokens(1)), (0, tokens(0)))), "sequence 0 is given 0 tokens"),
    "room": (lambda layer: layer.step(new((1, tokens(1)), (0, tokens(253)))), "sequence 0 would reach 513 tokens; the"),
    "rows": (
        lambda layer: layer.step(new((1, tokens(1)), (5, tokens(1)), (6, tokens(1)))),
        r"sequences \[5, 6\] need 2 state rows and 1 are free",
    ),
    "cut too far": (
        lambda layer: layer.truncate(0, 253),
        "holds 260 tokens and cannot be cut to 253; its .* to 254",
    ),
    "cut ahead": (lambda layer: layer.truncate(0, 261), "cannot be cut to 261"),
    "cut nobody": (lambda layer: layer.truncate(7, 0), "sequence 7 is not alive"),
    "fork inside a page": (lambda layer: layer.fork(0, 2, 255), "prefix of 255 tokens of a sequence of 260"),
    "fork of nothing": (lambda layer: layer.fork(0, 2, 0), "prefix of 0 tokens"),
    "fork ahead": (lambda layer: layer.fork(0, 2, 512), "prefix of 512 tokens"),
    "fork of nobody": (lambda layer: layer.fork(7, 2, 256), "sequence 7 is not alive"),
    "fork over": (lambda layer: layer.fork(0, 1, 256), "sequence 1 is alive; release it"),
    "release nobody": (lambda layer: layer.release(7), "sequence 7 is not alive"),
    "window of nobody": (lambda layer: layer.window_rows(7, torch.arange(1)), "sequence 7 is not alive"),
    "graph": (lambda layer: layer.capture(0), "a step of 0 rows cannot be captured"),
}


# Kills: a check that comes after a sequence has grown, one left out, one that names nothing.
@pytest.mark.parametrize("what", REFUSALS)
def test_a_refused_call_changes_nothing(opened: AttentionLayer, what: str) -> None:
    call, said = REFUSALS[what]
    before = snapshot(opened)
    with pytest.raises(BadInput, match=said):
        call(opened)
    assert same(before, snapshot(opened))


def test_a_layer_of_ratio_0_has_no_entries() -> None:
    layer = open_layer(0)
    layer.step(new((0, tokens(1))))
    with pytest.raises(BadInput, match="stores no compressed entries"):
        layer.compressed_rows(0)


def test_a_rope_table_must_reach_as_far_as_a_sequence() -> None:
    with pytest.raises(BadInput, match="the rope table has 1024 positions, the layer 1025"):
        open_layer(0, max_tokens=1025)


# Kills: a state row or page handed to two new sequences of one step, rows or results in another order than segments.
@pytest.mark.parametrize("ratio", RATIOS)
def test_several_new_sequences_in_one_step_are_as_alone(ratio: int) -> None:
    layer, streams = open_layer(ratio), {4: tokens(9, 4), 0: tokens(130 if ratio else 20, 5), 9: tokens(1, 6)}
    together = layer.step(new(*streams.items()))
    at = 0
    for number, x in streams.items():
        alone = open_layer(ratio).step(new((number, x)))
        close([part[at : at + len(x)] for part in together[:2]], alone)
        at += len(x)
    assert at == len(together.o)


# Kills: a state row that is not given back, pages that are not, a released sequence's rows read by the next.
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_full_layer_takes_new_sequences_once_others_are_released(ratio: int) -> None:
    layer, count = open_layer(ratio, max_sequences=2, max_tokens=256), 130 if ratio == 128 else 30
    x = tokens(count)
    right = layer.step(new((0, x)))
    for life in range(1, 4):
        layer.step(new((life, tokens(count + 10, seed=life))))
        with pytest.raises(BadInput, match="need 1 state rows and 0 are free"):
            layer.step(new((9, x)))
        layer.release(0)
        layer.poison()
        close(layer.step(new((0, x))), right)
        layer.release(life)


# Kills: a prefix cut below what its own state holds; the source cut into pages that another one reads.
def test_neither_side_of_a_fork_goes_back_into_the_shared_prefix() -> None:
    layer = open_layer(4)
    layer.step(new((0, tokens(258))))
    layer.fork(0, 1, 256)
    layer.step(new((1, tokens(3, seed=3))))
    for sequence in (0, 1):
        before = snapshot(layer)
        with pytest.raises(BadInput, match=f"sequence {sequence} holds .* goes back to 256"):
            layer.truncate(sequence, 255)
        assert same(before, snapshot(layer))
        layer.truncate(sequence, 256)
    layer.release(1)
    layer.fork(0, 1, 256)


# Kills: a sink read before the weights are there and never again; one that is read again only by load_sink.
def test_weights_that_come_after_the_first_forward_are_used() -> None:
    spec, x = make_spec(0, tp=2, rank=1), tokens(6)
    right = AttentionLayer(spec, "cpu").step(new((0, x)))
    late = AttentionLayer(spec, "cpu")
    late.attn_sink.zero_()
    first = late.step(new((0, x)))
    address = late.sink().data_ptr()
    assert not torch.allclose(first.o, right.o)
    late.attn_sink.copy_(spec.weights.attn_sink)
    late.release(0)
    assert torch.equal(late.step(new((0, x))).o, right.o) and late.sink().data_ptr() == address
    # The caller's tensor is its own: an online update must not reach other layers that were opened with it.
    held = late.sink()
    late.load_sink(torch.arange(4.0))
    assert held[:2].tolist() == [2, 3]  # at once: a captured kernel may read it before anything asks for it
    assert not torch.equal(spec.weights.attn_sink, torch.arange(4.0))


# Kills: a switch that an explicit path does not override, sparse prefill for decode, verify or a step without rows.
@pytest.mark.parametrize(
    ("switch", "mode", "asked", "ran"),
    [
        (True, "prefill", "auto", "sparse"),
        (False, "prefill", "auto", "paged"),
        (True, "prefill", "paged", "paged"),
        (False, "prefill", "sparse", "sparse"),
        (True, "decode", "auto", "paged"),
        (True, "verify", "auto", "paged"),
    ],
)
def test_path_follows_mode_switch_and_word(switch: bool, mode: str, asked: str, ran: str) -> None:
    layer = AttentionLayer(make_spec(0), "cpu", sparse_prefill=switch)
    assert layer.step(new((0, tokens(1))), mode, path=asked).path == ran
    assert (layer.attention.workspace.rows > 0) == (ran == "sparse")


def test_a_step_of_nobody_is_paged_and_gives_no_rows() -> None:
    layer = open_layer(4)
    for padding in (0, 3):
        idle = layer.step([], padded_rows=padding)
        assert idle.path == ("sparse" if padding else "paged") and len(idle.o) == len(idle.out) == 0


# Kills: rows of nobody that write a key or an entry, if only to page 0, or another state row than 0; that are returned.
@pytest.mark.parametrize(("precision", "quantised"), FLAVOURS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_rows_of_nobody_write_to_nobody_s_state_alone(ratio: int, precision: Any, quantised: bool) -> None:
    layer = open_layer(ratio, precision, quantised)
    layer.step(new((0, tokens(9)), (1, tokens(3))))
    before = {name: tensor.clone() for name, tensor in layer.caches.storage().items()}
    for mode in ("prefill", "decode", "verify"):
        assert len(layer.step([], mode, padded_rows=4).out) == 0
    for name, tensor in layer.caches.storage().items():
        first = len(tensor) // layer.sequences.state_rows if name.startswith("state") else 0
        assert torch.equal(tensor[first:], before[name][first:]), name
    for compressor in layer.caches._compressors():
        assert not compressor.tails[1:].any()


# Kills: rows in another order, rows of nobody among those of sequences.
@pytest.mark.parametrize("ratio", RATIOS)
def test_rows_of_nobody_change_no_row(ratio: int) -> None:
    plain, padded = open_layer(ratio), open_layer(ratio)
    for mode, count in (("prefill", 9), ("decode", 1), ("verify", 3)):
        batch = new((0, tokens(count, seed=count)), (1, tokens(count, seed=9)))
        wide, right = padded.step(batch, mode, padded_rows=4), plain.step(batch, mode)
        close(wide, right)
        assert wide.q is not None and right.q is not None and wide.q.shape == right.q.shape
        if wide.selected is not None and right.selected is not None:
            assert wide.selected.shape == right.selected.shape
        assert (wide.selected is None) == (ratio != 4)


class _Wide(ExactKernels):
    """Kernels that take 6 heads at least."""

    name = "wide"

    def heads(self, n_heads: int, tp: int) -> int:
        return max(6, n_heads // tp)


# Kills: FlashMLA's padding rule taken for that of every kernel; a sink that is not as wide as the query.
@pytest.mark.parametrize("path", ["paged", "sparse"])
def test_a_kernel_pads_heads_by_its_own_rule(path: str) -> None:
    x = tokens(40)
    right = open_layer(4).step(new((0, x)), path=path)
    layer = AttentionLayer(make_spec(4), "cpu", kernels=_Wide())
    assert layer.padded == 6 and layer.sink().shape == (6,) and open_layer(4).padded == 4
    assert open_layer(4, tp=2).padded == 64
    got = layer.step(new((0, x)), path=path)
    assert got.o.shape == (40, 4, 512)
    close(got, right)


# Kills: rows of another sequence or entry, rows as the next page has them, rows that were never written.
@pytest.mark.parametrize(("precision", "quantised"), FLAVOURS)
def test_stored_rows_are_found_by_position_and_entry(precision: Any, quantised: bool) -> None:
    x, alone = tokens(260), open_layer(4, precision, quantised)
    alone.step(new((7, x)))
    layer = open_layer(4, precision, quantised)
    layer.step(new((1, tokens(5)), (0, x[:255]), (2, tokens(3, seed=9))))
    layer.step(new((0, x[255:])))
    positions = torch.tensor([259, 0, 255, 256])
    size = 2e-5 if precision == "float32" and not quantised else 0.1
    for a, b in (
        (layer.window_rows(0, positions), alone.window_rows(7, positions)),
        (layer.compressed_rows(0), alone.compressed_rows(7)),
    ):
        assert a.dtype == torch.float32 and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0, atol=size)
    assert layer.compressed_rows(0).shape == (65, 512) and layer.compressed_rows(1).shape == (1, 512)
