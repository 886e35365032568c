"""What must hold to the last bit in the built-in attention: special sinks, rows without keys, poison, independence."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, DecodeResult, KVScope, PrefillCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.kernels import torch as kernel

INF = float("inf")
NAN = float("nan")
SCALE = 512**-0.5
B, S_Q, H_Q = 3, 2, 16


@pytest.fixture
def builtin() -> Builtin:
    return Builtin("cpu")


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scope(page_size: int, topk: int, seed: int, *, poison: int = 0) -> KVScope:
    """Half of the slots are listed; ``poison`` fills every other byte."""
    generator = torch.Generator().manual_seed(seed)
    page_bytes = -(-584 * page_size // 576) * 576
    num_pages = 2 + 64 // page_size
    buffer = torch.full((num_pages, page_bytes), poison, dtype=torch.uint8)
    pages = buffer[:, : 584 * page_size].view(num_pages, page_size, 1, 584)
    slots = torch.randperm(num_pages * page_size, generator=generator)[: num_pages * page_size // 2]
    kv_format.pack_pages(random(len(slots), 512, seed=seed).bfloat16(), slots, pages)
    chosen = torch.randint(0, len(slots), (B, S_Q, topk), generator=generator)
    return KVScope(pages, slots[chosen].int(), None)


def make_call(*, poison: int = 0, sink: Tensor | None = None) -> DecodeCall:
    q = random(B, S_Q, H_Q, 512, seed=1).bfloat16()
    return DecodeCall(q, scope(53, 70, 2, poison=poison), scope(2, 9, 3, poison=poison), sink, SCALE)


def same(a: DecodeResult, b: DecodeResult) -> bool:
    """Equal bits, NaN included."""
    return torch.equal(a.out.view(torch.int16), b.out.view(torch.int16)) and torch.equal(
        a.lse.view(torch.int32), b.lse.view(torch.int32)
    )


# Kills: an epsilon or a clamp on the sink.
def test_sink_of_minus_infinity_equals_no_sink(builtin: Builtin) -> None:
    assert same(builtin.decode(make_call()), builtin.decode(make_call(sink=torch.full((H_Q,), -INF))))


# Kills: sink indexed by another head, NaN from inf / inf, lse that contains the sink.
def test_sink_of_plus_infinity_silences_its_head_only(builtin: Builtin) -> None:
    sink = random(H_Q, seed=4)
    loud = builtin.decode(make_call(sink=sink))
    sink[5] = INF
    quiet = builtin.decode(make_call(sink=sink))
    assert not quiet.out[:, :, 5].view(torch.int16).any()
    others = [h for h in range(H_Q) if h != 5]
    assert torch.equal(quiet.out[:, :, others], loud.out[:, :, others])
    assert torch.equal(quiet.lse, loud.lse)


# Kills: -inf - (-inf), 0 / 0, and a lonely row that takes its neighbour's keys along.
@pytest.mark.parametrize("value", [None, 0.0, INF, -INF])
@pytest.mark.parametrize("by_length", [True, False])
def test_row_without_keys_is_zero_with_lse_plus_infinity(
    builtin: Builtin, value: float | None, by_length: bool
) -> None:
    call = make_call(sink=None if value is None else torch.full((H_Q,), value))
    assert call.extra is not None
    before = builtin.decode(call)
    emptied = []
    for part in (call.window, call.extra):
        indices = part.indices.clone()
        if not by_length:
            indices[1] = -1
        lengths = torch.full((B,), indices.shape[2], dtype=torch.int32)
        lengths[1] = 0 if by_length else lengths[1]
        emptied.append(KVScope(part.pages, indices, lengths))
    after = builtin.decode(replace(call, window=emptied[0], extra=emptied[1]))
    assert not after.out[1].view(torch.int16).any()
    assert (after.lse[1] == INF).all()
    others = [0, 2]
    assert torch.equal(after.out[others], before.out[others])
    assert torch.equal(after.lse[others], before.lse[others])


# Kills: reading whole pages into the product, 0 * NaN, the pad byte used as a scale.
def test_bytes_of_slots_that_are_not_listed_have_no_effect(builtin: Builtin) -> None:
    assert same(builtin.decode(make_call(poison=0)), builtin.decode(make_call(poison=255)))


# Kills: masking after the gather has dereferenced garbage, lengths compared with <=.
def test_list_entries_beyond_the_length_have_no_effect(builtin: Builtin) -> None:
    call = make_call()
    lengths = torch.tensor([70, 33, 0], dtype=torch.int32)
    results = []
    for garbage in (0, -1, 2**31 - 1, -(2**31), 10**7):
        beyond = torch.arange(70) >= lengths[:, None, None]
        window = KVScope(call.window.pages, call.window.indices.masked_fill(beyond, garbage), lengths)
        results.append(builtin.decode(replace(call, window=window)))
    assert all(same(results[0], other) for other in results[1:])


def test_nan_queries_stay_in_their_heads(builtin: Builtin) -> None:
    call = make_call(sink=random(H_Q, seed=5))
    wild = call.q.clone()
    wild[:, :, 10:] = NAN
    clean, dirty = builtin.decode(call), builtin.decode(replace(call, q=wild))
    assert torch.equal(clean.out[:, :, :10], dirty.out[:, :, :10])
    assert torch.equal(clean.lse[:, :10], dirty.lse[:, :10])


# Kills: anything shared between rows, such as a maximum over the batch.
def test_a_row_does_not_depend_on_the_content_of_other_rows(builtin: Builtin) -> None:
    call = make_call()
    q, indices = call.q.clone(), call.window.indices.clone()
    q[1:] *= -40.0
    indices[1:] = indices[:1]
    other = builtin.decode(replace(call, q=q, window=KVScope(call.window.pages, indices, None)))
    first = builtin.decode(call)
    assert torch.equal(other.out[0], first.out[0])
    assert torch.equal(other.lse[0], first.lse[0])


def test_small_scratch_still_covers_every_row(builtin: Builtin, monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call(sink=random(H_Q, seed=6))
    whole = builtin.decode(call)
    monkeypatch.setattr(kernel, "CPU_SCRATCH_BYTES", 1)
    assert [part.stop - part.start for part in kernel._chunks(B * S_Q, H_Q, 79, call.q.device)] == [1] * (B * S_Q)
    parts = builtin.decode(call)  # another batch shape, so the last bit may differ
    assert torch.allclose(parts.out.float(), whole.out.float(), rtol=2**-7, atol=1e-3)
    assert torch.allclose(parts.lse, whole.lse, atol=1e-5)


def test_largest_call_stays_within_four_gib_of_scratch_on_a_gpu() -> None:
    rows = list(kernel._chunks(963, 128, 4096, torch.device("cuda")))
    assert [(part.start, part.stop) for part in rows[:1] + rows[-1:]] == [(0, rows[0].stop), (rows[-1].start, 963)]
    assert all(a.stop == b.start for a, b in pairwise(rows))
    keys, logits = 4096 * (584 + 4 * 448 + 2 * 512), 128 * 4096 * (4 + 2)
    assert max(part.stop - part.start for part in rows) * (keys + logits) < 4 << 30


STRIDED: dict[str, Callable[[DecodeCall], DecodeCall]] = {
    "q": lambda call: replace(call, q=torch.stack((call.q, call.q + 1), 3)[:, :, :, 0]),
    "indices": lambda call: replace(
        call,
        window=replace(call.window, indices=torch.cat((call.window.indices, call.window.indices + 1), 2)[..., :70]),
    ),
    "transposed q": lambda call: replace(call, q=call.q.transpose(0, 1).contiguous().transpose(0, 1)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_of_inputs_change_no_bit(builtin: Builtin, name: str) -> None:
    assert same(builtin.decode(STRIDED[name](make_call())), builtin.decode(make_call()))


# Kills: outputs that are returned but not written, or written beyond their own elements.
def test_given_outputs_are_written_in_place_and_nothing_around_them(builtin: Builtin) -> None:
    call = make_call()
    plain = builtin.decode(call)
    out_zone = torch.full((B, S_Q, H_Q, 520), 7.0, dtype=torch.bfloat16)
    lse_zone = torch.full((B, H_Q, S_Q + 2), 7.0)
    given = replace(call, out=out_zone[..., 4:516], lse=lse_zone[..., 1:-1])
    result = builtin.decode(given)
    assert result.out is given.out
    assert result.lse is given.lse
    assert same(DecodeResult(result.out.contiguous(), result.lse.contiguous()), plain)
    assert (out_zone[..., :4] == 7).all() and (out_zone[..., 516:] == 7).all()
    assert (lse_zone[..., 0] == 7).all() and (lse_zone[..., -1] == 7).all()


def test_given_outputs_of_prefill_are_written_in_place(builtin: Builtin) -> None:
    q, kv = random(3, H_Q, 512, seed=8).bfloat16(), random(20, 1, 512, seed=9).bfloat16()
    indices = torch.randint(-2, 22, (3, 1, 12), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    call = PrefillCall(q, kv, indices, None, None, SCALE)
    plain = builtin.prefill(call)
    given = replace(
        call,
        out=torch.full_like(plain.out, NAN),
        max_logits=torch.full((3, H_Q), NAN),
        lse=torch.full((3, H_Q), NAN),
    )
    result = builtin.prefill(given)
    assert (result.out is given.out, result.max_logits is given.max_logits, result.lse is given.lse) == (True,) * 3
    assert plain.max_logits is not None and result.max_logits is not None
    for got, want in ((result.out, plain.out), (result.max_logits, plain.max_logits), (result.lse, plain.lse)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("heads", [1, 8, 100, 128])
def test_any_head_count_is_a_slice_of_the_widest(builtin: Builtin, heads: int) -> None:
    call = make_call()
    wide = random(B, S_Q, 128, 512, seed=11).bfloat16()
    full = builtin.decode(replace(call, q=wide))
    part = builtin.decode(replace(call, q=wide[:, :, :heads]))
    assert torch.allclose(part.out.float(), full.out[:, :, :heads].float(), rtol=2**-7, atol=1e-3)
    assert torch.allclose(part.lse, full.lse[:, :heads], atol=1e-5)


def test_probabilities_are_rounded_to_bf16_and_their_sum_is_not(builtin: Builtin) -> None:
    """Two keys, all ones and all zeros: out = bf16(p1) / (p1 + p0), whose last bit shows where P was rounded."""
    kv = torch.stack((torch.ones(512), torch.zeros(512))).bfloat16()[:, None]
    differs = 0
    for logit in torch.linspace(-3, 0, 40):
        q = torch.zeros(1, 1, 512)
        q[0, 0, 0] = logit
        q = q.bfloat16()
        indices = torch.tensor([[[0, 1]]], dtype=torch.int32)
        out = builtin.prefill(PrefillCall(q, kv, indices, None, None, 1.0)).out[0, 0, 0]
        p = torch.exp(q[0, 0, 0].float())
        assert out == (p.bfloat16().float() / (p + 1)).bfloat16()
        differs += int(out != (p / (p + 1)).bfloat16())
    assert differs > 0
