"""Prefixes found by content: what is shared, for how long, and by whom."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of
from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.prefix_cache import PrefixCache, page_names


class Segment(NamedTuple):
    sequence: int
    ids: tuple[int, ...]
    x: Tensor


def cache(kept: int = 1, sequences: int = 2) -> PrefixCache:
    case = LayerCase("AttentionLayer", 128, "p0:600" + "".join(f" p{n}:1" for n in range(1, sequences)))
    return PrefixCache(spec_of(case, "cpu"), "cpu", kept)


def hidden() -> int:
    return spec_of(LayerCase("AttentionLayer", 128, "p0:1"), "cpu").geometry.hidden_size


# Kills: pages named by their own tokens, or by their number.
def test_a_page_is_named_by_all_tokens_up_to_its_end() -> None:
    ids = list(range(600))
    other = [*ids[:100], 7, *ids[101:]]
    assert len(page_names(ids)) == 2
    assert page_names(ids)[:1] == page_names(ids[:256])
    assert not set(page_names(ids)) & set(page_names(other))
    assert page_names(ids) != page_names(ids[256:] + ids[:256])


@pytest.fixture
def width() -> int:
    return hidden()


# Kills: hits of a whole prompt, of half pages, of a prompt's second page without its first.
def test_whole_pages_are_found_and_one_token_is_left(width: int) -> None:
    made = cache()
    ids = list(range(512))

    def run(sequence: int, prompt: list[int]) -> int:
        hit = made.admit(sequence, prompt)
        made.step([Segment(sequence, tuple(prompt[hit:]), torch.ones(len(prompt) - hit, width))])
        return hit

    assert run(0, ids) == 0
    assert made.lookup(ids) == 256 and made.lookup([*ids, 1]) == 512 and made.lookup(ids[:256]) == 0
    assert made.lookup([*ids[:255], 9999, *ids[256:]]) == 0
    assert run(1, [*ids[:300], 8, 9]) == 256
    assert made.compressed_slots(1).tolist()[:2] == made.compressed_slots(0).tolist()[:2]


# Kills: finished prompts that keep their place for ever, or lose it at once; pages that vanish with one of two holders.
def test_places_of_finished_prompts_are_reused_the_oldest_first(width: int) -> None:
    made = cache(kept=1, sequences=1)
    prompts = [[100 * n + k for k in range(257)] for n in range(1, 4)]
    for prompt in prompts[:2]:
        made.admit(0, prompt)
        made.step([Segment(0, tuple(prompt), torch.ones(257, width))])
        made.finish(0)
    assert [made.lookup(prompt) for prompt in prompts] == [256, 256, 0]
    made.admit(0, prompts[2])
    made.step([Segment(0, tuple(prompts[2]), torch.ones(257, width))])
    assert [made.lookup(prompt) for prompt in prompts] == [0, 256, 256]
    with pytest.raises(BadInput, match="sequence 0 is alive"):
        made.admit(0, prompts[0])


def test_what_makes_no_sense_is_refused(width: int) -> None:
    made = cache()
    with pytest.raises(BadInput, match="not alive"):
        made.finish(0)
    made.admit(0, [1, 2, 3])
    with pytest.raises(BadInput, match="2 ids and 3 rows"):
        made.step([Segment(0, (1, 2), torch.ones(3, width))])
