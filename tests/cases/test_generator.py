"""The word stream: its definition, its independence of place and process, and that it looks random."""

import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from dsv4_conformance.cases.generator import below, bf16_values, host_words, words

COUNT = 1 << 16


def by_definition(root: int, name: str, count: int) -> list[int]:
    """The stream in unbounded integers: keys from SHA-256, a Weyl sequence, two multiply-xorshift rounds."""
    raw = hashlib.sha256(f"{root}/{name}".encode()).digest()
    low, high = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")
    found = []
    for i in range(count):
        x = (i * 0x9E3779B1 + low) % 2**32
        x = ((x ^ (x >> 16)) * 0x7FEB352D % 2**32) ^ high
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        found.append(x ^ (x >> 16))
    return found


def unsigned(x: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]":
    return x.numpy().view(np.uint32)


def bits(x: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.unpackbits(unsigned(x).view(np.uint8).reshape(-1, 4), axis=1)


# Kills: an arithmetic shift, a signed multiply that saturates, keys from another hash, a stream that starts at 1.
@pytest.mark.parametrize("root", [0, 1, 2**63 + 12345])
def test_words_follow_the_definition(root: int) -> None:
    want = by_definition(root, "q", 3000)
    assert unsigned(words(root, "q", (3000,), "cpu")).tolist() == want
    assert host_words(root, "q", 3000).tolist() == want


# Kills: a stream that depends on its shape.
def test_shape_only_folds_the_stream() -> None:
    flat = words(7, "kv", (6000,), "cpu")
    assert torch.equal(words(7, "kv", (10, 20, 30), "cpu").flatten(), flat)
    assert torch.equal(words(7, "kv", (123,), "cpu"), flat[:123])
    assert words(7, "kv", (0, 5), "cpu").shape == (0, 5)


# Kills: state kept between calls, Python's seeded hash in a key.
def test_other_processes_give_the_same_bits() -> None:
    program = (
        "import hashlib; from dsv4_conformance.cases.generator import words; words(1, 'a', (9,), 'cpu');"
        "print(hashlib.sha256(words(99, 'b', (5000,), 'cpu').numpy().tobytes()).hexdigest())"
    )
    here = hashlib.sha256(words(99, "b", (5000,), "cpu").numpy().tobytes()).hexdigest()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert run.stdout.strip() == here


# The thresholds below are five standard deviations (chi-square: mean + 5 sqrt(2 n)); the streams are fixed, so a stream
# either passes for good or fails for good.


# Kills: a stuck, biased or copied bit.
def test_every_bit_is_balanced_and_independent_of_the_others() -> None:
    for root in range(4):
        one = bits(words(root, "q", (COUNT,), "cpu")).astype(np.float64) * 2 - 1
        assert np.abs(one.sum(0)).max() <= 5 * math.sqrt(COUNT)
        together = one.T @ one
        np.fill_diagonal(together, 0)
        assert np.abs(together).max() <= 5 * math.sqrt(COUNT)


# Kills: a weak mixer (without the second round neighbours correlate).
@pytest.mark.parametrize("lag", [1, 2, 3, 16, 256, 512])
def test_neighbours_in_a_stream_are_independent(lag: int) -> None:
    one = bits(words(5, "kv", (COUNT,), "cpu")).astype(np.float64) * 2 - 1
    together = one[:-lag].T @ one[lag:]
    assert np.abs(together).max() <= 5 * math.sqrt(COUNT)


# Kills: streams whose keys differ by a shift, a name or a digest that is ignored.
@pytest.mark.parametrize(("root", "name"), [(1, "kv"), (0, "q"), (2, "q"), (1, "q "), (1, "Q")])
def test_streams_are_independent_of_each_other(root: int, name: str) -> None:
    one = bits(words(1, "q", (COUNT,), "cpu")).astype(np.float64) * 2 - 1
    other = bits(words(root, name, (COUNT,), "cpu")).astype(np.float64) * 2 - 1
    assert np.abs(one.T @ other).max() <= 5 * math.sqrt(COUNT)


# Kills: values that cluster, a bound taken from the low bits of a poor stream.
@pytest.mark.parametrize("bound", [2, 5, 7, 128, 1000])
def test_below_is_uniform(bound: int) -> None:
    x = below(3, "hole", (COUNT,), bound, "cpu")
    assert x.dtype == torch.int64 and int(x.min()) >= 0 and int(x.max()) < bound
    counts = torch.bincount(x, minlength=bound).double()
    square = float(((counts - COUNT / bound) ** 2 / (COUNT / bound)).sum())
    assert square <= bound - 1 + 5 * math.sqrt(2 * (bound - 1))


# Kills: bytes of a word that are not uniform (fp8 codes are taken from them).
def test_bytes_are_uniform() -> None:
    counts = torch.bincount(words(8, "data", (COUNT,), "cpu").view(torch.uint8).long(), minlength=256).double()
    mean = COUNT * 4 / 256
    assert float(((counts - mean) ** 2 / mean).sum()) <= 255 + 5 * math.sqrt(2 * 255)


# Kills: a mask that lets a third exponent bit through, a base that is added instead of put in, a lost sign.
@pytest.mark.parametrize("base", [124, 128, 132])
def test_bf16_values_fill_four_binades_evenly(base: int) -> None:
    x = bf16_values(words(4, "q", (COUNT,), "cpu"), base)
    assert x.dtype == torch.bfloat16 and x.shape == (2 * COUNT,)
    size = x.double().abs()
    assert size.min() == 2.0 ** (base - 127) and size.max() == 2.0 ** (base - 124) * (2 - 2**-7)
    binade = (torch.frexp(size).exponent.long() - 1 - (base - 127)).bincount()
    sign = (x > 0).long().bincount()
    mantissa = (x.view(torch.int16) & 127).long().bincount(minlength=128)
    for counts in (binade, sign, mantissa):
        mean = 2 * COUNT / len(counts)
        square = float(((counts.double() - mean) ** 2 / mean).sum())
        assert square <= len(counts) - 1 + 5 * math.sqrt(2 * (len(counts) - 1))
