"""Rotary embedding by hand: pairing, direction, YaRN's ramp, and what must stay as it was."""

import math

import pytest
import torch

from dsv4_conformance.oracle.rope import angle_table, base_frequencies, rotate, yarn_frequencies, yarn_ramp

YARN = (65536, 32.0, 1.0)  # original_max, beta_fast, beta_slow


def vector(**dims: float) -> torch.Tensor:
    """512 zeros but for ``d448=1.0`` and the like."""
    x = torch.zeros(512, dtype=torch.float64)
    for name, value in dims.items():
        x[int(name[1:])] = value
    return x


# Kills: frequencies base ** (-j / 64), an index that starts at 1.
def test_frequencies_fall_from_1_by_two_dims_a_step() -> None:
    f = base_frequencies(10000.0)
    assert f.shape == (32,)
    assert f[0] == 1.0
    assert f[16].item() == pytest.approx(0.01, rel=1e-14)
    assert f[8].item() == pytest.approx(0.1, rel=1e-14)
    assert f[31].item() == pytest.approx(10000 ** (-62 / 64), rel=1e-14)


# Kills: floor and ceil swapped or rounded, ln(L) without 2 pi n, a ramp computed with the base of the other table.
@pytest.mark.parametrize(("base", "ends"), [(160000.0, (15, 25)), (40000.0, (17, 28))])
def test_yarn_ramp_ends(base: float, ends: tuple[int, int]) -> None:
    assert yarn_ramp(base, *YARN) == ends


# Kills: a ramp that is not clamped, or that falls instead of rising.
def test_yarn_ramp_stays_within_the_table() -> None:
    assert yarn_ramp(10000.0, 16, 32.0, 1.0)[0] == 0
    assert yarn_ramp(1.5, 2**40, 32.0, 1.0)[1] == 63


# Kills: fast and slow ends exchanged, a factor that multiplies, a ramp over another width.
def test_yarn_keeps_fast_pairs_and_divides_slow_ones_by_the_factor() -> None:
    plain = base_frequencies(160000.0)
    f = yarn_frequencies(160000.0, 16.0, *YARN)
    assert torch.equal(f[:16], plain[:16])
    assert torch.allclose(f[25:], plain[25:] / 16, rtol=1e-15, atol=0)
    assert f[20].item() == pytest.approx(plain[20].item() * (0.5 + 0.5 / 16), rel=1e-14)
    assert f[16].item() == pytest.approx(plain[16].item() * (0.9 + 0.1 / 16), rel=1e-14)


# Kills: pairs taken as halves (448 + j, 480 + j), a sine of the wrong sign.
def test_interleaved_pairs_turn_from_even_to_odd() -> None:
    table = angle_table(torch.full((32,), math.pi / 2, dtype=torch.float64), torch.tensor(1))
    turned = rotate(vector(d448=1.0, d451=1.0), table)
    assert turned[449].item() == pytest.approx(1.0)  # (1, 0) -> (0, 1)
    assert turned[450].item() == pytest.approx(-1.0)  # (0, 1) -> (-1, 0)
    assert turned.abs().sum().item() == pytest.approx(2.0)


# Kills: positions multiplied into the wrong axis, float32 angles (1.3e-2 rad off at this position).
def test_angle_is_position_times_frequency_in_float64() -> None:
    f = base_frequencies(160000.0)
    table = angle_table(f, torch.tensor([[0, 1], [3, 1048575]]))
    assert table.shape == (2, 2, 32, 2)
    assert torch.equal(table[0, 0], torch.tensor([[1.0, 0.0]] * 32, dtype=torch.float64))
    for position, place in ((1, (0, 1)), (3, (1, 0)), (1048575, (1, 1))):
        for j in (0, 5, 31):
            angle = position * f[j].item()
            assert table[place][j].tolist() == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-9)


# Kills: an inverse with the same sign, and one that turns the first 64 dims instead of the last.
def test_inverse_undoes_the_rotation_and_leaves_448_dims_alone() -> None:
    x = torch.randn(3, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = angle_table(yarn_frequencies(160000.0, 16.0, *YARN), torch.tensor([1, 77, 65535]))
    there = rotate(x, table)
    assert torch.equal(there[:, :448], x[:, :448])
    assert ((there[:, 448:] - x[:, 448:]).abs().amax(1) > 0.1).all()
    back = rotate(there, table, inverse=True)
    assert torch.allclose(back, x, rtol=0, atol=1e-14)
    assert torch.equal(back[:, :448], x[:, :448])


# Kills: a rotation that depends on more than the offset of two positions.
def test_dot_product_of_rotated_vectors_depends_on_the_offset_alone() -> None:
    a, b = torch.randn(2, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    f = base_frequencies(10000.0)

    def dot(one: int, other: int) -> float:
        turned = [rotate(v, angle_table(f, torch.tensor(p))) for v, p in ((a, one), (b, other))]
        return float(turned[0] @ turned[1])

    assert dot(5, 12) == pytest.approx(dot(905, 912), abs=1e-11)
    assert abs(dot(5, 12) - dot(5, 13)) > 1e-3
