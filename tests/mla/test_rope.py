"""Rotary positions of the built-in implementation against scalar loops and the published ramp limits."""

import math

import pytest
import torch

from dsv4_conformance.mla.norm import rms_norm
from dsv4_conformance.mla.rope import apply_rope, frequencies, make_table
from dsv4_conformance.spec.geometry import FLASH, YarnScaling

YARN = FLASH.rope_scaling


# Kills: exponent j / 64 for 2 j / 64, YaRN applied without a scaling, ramp between other pairs, ramp upside down.
@pytest.mark.parametrize("base", [10000.0, 160000.0])
def test_frequencies_without_scaling_are_powers_of_the_base(base: float) -> None:
    expected = [base ** (-2 * j / 64) for j in range(32)]
    assert frequencies(base, None).tolist() == pytest.approx(expected, rel=1e-14)


def test_yarn_ramps_between_pairs_15_and_25_at_base_160000() -> None:
    ratio = (frequencies(160000.0, YARN) / frequencies(160000.0, None)).tolist()
    assert ratio[:16] == pytest.approx([1.0] * 16, rel=1e-14)
    assert ratio[16:25] == pytest.approx([1 - k / 10 * 15 / 16 for k in range(1, 10)], rel=1e-12)
    assert ratio[25:] == pytest.approx([1 / 16] * 7, rel=1e-14)


def test_yarn_limits_that_coincide_do_not_divide_by_zero() -> None:
    # With a context of 6 tokens both limits are pair 0: everything beyond it is divided.
    ratio = frequencies(10000.0, YarnScaling(16.0, 6, 32.0, 1.0)) / frequencies(10000.0, None)
    assert ratio.tolist() == pytest.approx([1.0] + [1 / 16] * 31, rel=1e-14)


# Kills: sin before cos, halves instead of interleaved, angles multiplied in float32.
def test_table_interleaves_cos_and_sin_of_exact_angles() -> None:
    table = make_table(160000.0, YARN, 70000, "cpu")
    assert table.dtype == torch.float32 and table.shape == (70000, 64)
    f = frequencies(160000.0, YARN).tolist()
    for position, j in ((0, 0), (1, 0), (69999, 1), (65535, 31)):
        angle = position * f[j]
        assert table[position, 2 * j].item() == pytest.approx(math.cos(angle), abs=6e-8)
        assert table[position, 2 * j + 1].item() == pytest.approx(math.sin(angle), abs=6e-8)


# Kills: pairs (j, j + 32), the first 64 dims, the wrong sign, one position for all heads or all rows.
@pytest.mark.parametrize("shape", [(3, 512), (3, 2, 128)])
def test_rotation_turns_neighbouring_dims_of_the_last_64(shape: tuple[int, ...]) -> None:
    table = make_table(10000.0, None, 50, "cpu")
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([7, 0, 49])
    turned = apply_rope(x, table, positions)
    assert torch.equal(turned[..., :-64], x[..., :-64])
    for t, position in enumerate(positions.tolist()):
        for j in (0, 1, 31):
            a, b = x[t, ..., 2 * j - 64], x[t, ..., 2 * j - 63]
            c, s = table[position, 2 * j].item(), table[position, 2 * j + 1].item()
            torch.testing.assert_close(turned[t, ..., 2 * j - 64], a * c - b * s, rtol=1e-14, atol=1e-14)
            torch.testing.assert_close(turned[t, ..., 2 * j - 63], a * s + b * c, rtol=1e-14, atol=1e-14)


# Kills: inverse ignored, x rotated in place, arithmetic in bf16 (error 4e-3 instead of one rounding per direction).
def test_inverse_undoes_the_rotation_and_the_input_is_kept() -> None:
    table = make_table(10000.0, None, 50, "cpu")
    x = torch.randn(4, 3, 512, generator=torch.Generator().manual_seed(2))
    before, positions = x.clone(), torch.tensor([1, 2, 30, 49])
    back = apply_rope(apply_rope(x, table, positions), table, positions, inverse=True)
    assert torch.equal(x, before)
    torch.testing.assert_close(back, x, rtol=0, atol=2e-6)
    half = apply_rope(x.bfloat16(), table, positions)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, apply_rope(x.bfloat16().float(), table, positions).bfloat16())


# Kills: eps outside the root, mean over all dims, weight ignored, two roundings, float64 narrowed.
def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0])
    expected = torch.tensor([[3.0, 8.0], [0.0, 0.0]], dtype=torch.float64) / math.sqrt(12.5 + 0.25)
    torch.testing.assert_close(rms_norm(x, weight, 0.25), expected, rtol=1e-15, atol=0)
    rough = torch.randn(5, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
    exact = rough.double() * torch.rsqrt(rough.double().square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(rms_norm(rough, None, 1e-6), exact.bfloat16())
