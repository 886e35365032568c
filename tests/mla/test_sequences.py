"""Pages, state rows and lengths of sequences (spec §4, §6, §9.4)."""

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.sequences import LOOKBACK, Sequences


def pages(sequences: Sequences, number: int) -> list[int]:
    return list(sequences[number].pages)


# Kills: a page per step, one page too many at a multiple of 256, page 0 handed out, pages in another order.
def test_pages_are_taken_as_tokens_need_them() -> None:
    s = Sequences(2, 600)
    assert (s.width, s.pages.num_pages, s.state_rows) == (3, 7, 3)
    assert [s.grow(5, n) for n in (255, 1, 1, 255)] == [0, 255, 256, 257]
    assert s[5].length == 512 and len(pages(s, 5)) == 2
    s.grow(5, 1)
    s.grow(2, 1)
    taken = pages(s, 5) + pages(s, 2)
    assert len(set(taken)) == 4 and 0 not in taken and s.pages.live() == set(taken)
    assert s.page_row(5) == pages(s, 5) and s.page_row(2) == [*pages(s, 2), 0, 0]
    assert sorted(s.live_rows()) == [1, 2] and s.state_rows == 3


# Kills: a page kept that holds nothing, one given back that still holds tokens, a page lost to both.
@pytest.mark.parametrize(("held", "cut", "kept"), [(258, 257, 2), (258, 256, 1), (258, 255, 1), (3, 0, 0)])
def test_truncate_gives_back_pages_without_tokens(held: int, cut: int, kept: int) -> None:
    s = Sequences(1, 768)
    s.grow(0, held)
    before = pages(s, 0)
    s.truncate(0, cut)
    assert s[0].length == cut and pages(s, 0) == before[:kept] and s.pages.live() == set(before[:kept])
    s.grow(0, 768 - cut)
    assert len(pages(s, 0)) == 3 and pages(s, 0)[:kept] == before[:kept]


# Kills: a lookback counted from what is held now: drafts taken back twice would reach further back than the state.
def test_tokens_can_be_taken_back_as_far_as_the_state_goes() -> None:
    s = Sequences(1, 256)
    s.grow(0, 40)
    s.truncate(0, 40)
    s.truncate(0, 40 - LOOKBACK)
    with pytest.raises(BadInput, match="holds 32 tokens and cannot be cut to 31; its state goes back to 32"):
        s.truncate(0, 31)
    s.grow(0, 3)
    with pytest.raises(BadInput, match="cannot be cut to 36"):
        s.truncate(0, 36)
    s.truncate(0, 33)
    assert s[0].reached == 40
    s.grow(0, 20)
    assert s[0].reached == 53


# Kills: pages copied, pages that go with the source, pages that stay when both are gone, a state row shared.
def test_a_fork_shares_whole_pages_until_both_are_gone() -> None:
    s = Sequences(3, 768)
    s.grow(0, 700)
    s.fork(0, 1, 512)
    s.fork(1, 2, 256)
    assert pages(s, 1) == pages(s, 0)[:2] and pages(s, 2) == pages(s, 0)[:1]
    assert len(set(s.live_rows())) == 3
    first, second, third = pages(s, 0)
    s.release(0)
    assert s.pages.live() == {first, second}
    s.grow(1, 1)
    assert s[1].pages[2] == third  # freed last, handed out first
    s.release(1)
    assert s.pages.live() == {first}
    s.release(2)
    assert s.pages.live() == set() and s.live_rows() == []


# Kills: a prefix that its source may write again, a target cut below what its state holds.
def test_a_shared_prefix_is_not_taken_back_by_either_side() -> None:
    s = Sequences(3, 1024)
    s.grow(0, 514)
    s.fork(0, 1, 512)
    s.fork(0, 2, 256)
    s.grow(1, 2)
    for number in (0, 1):
        with pytest.raises(BadInput, match=f"sequence {number} holds 514 .* cut to 511; its state goes back to 512"):
            s.truncate(number, 511)
        s.truncate(number, 512)
    s.grow(0, 300)
    with pytest.raises(BadInput, match="goes back to 804"):
        s.truncate(0, 600)


# Kills: pages or rows taken by a fork that is refused.
@pytest.mark.parametrize(
    ("source", "target", "length", "said"),
    [
        (0, 9, 100, "prefix of 100 tokens of a sequence of 300 cannot be shared; give a multiple of 256"),
        (0, 9, 512, "prefix of 512 tokens"),
        (0, 9, -256, "prefix of -256 tokens"),
        (0, 1, 256, "sequence 1 is alive; release it before"),
        (0, 0, 256, "sequence 0 is alive"),
        (4, 9, 256, "sequence 4 is not alive; give it tokens first"),
        (0, 9, 256, r"sequences \[9\] need 1 state rows and 0 are free; release some"),
    ],
)
def test_a_fork_that_is_refused_changes_nothing(source: int, target: int, length: int, said: str) -> None:
    s = Sequences(2, 512)
    s.grow(0, 300)
    s.grow(1, 1)
    before = (s[0].own_from, list(s._free_rows), list(s.pages._free), dict(s.pages._holders))
    with pytest.raises(BadInput, match=said):
        s.fork(source, target, length)
    assert before == (s[0].own_from, list(s._free_rows), list(s.pages._free), dict(s.pages._holders))


# Kills: rows counted per sequence that is alive already, a check that opens what it checks.
def test_new_sequences_are_counted_together() -> None:
    s = Sequences(2, 256)
    s.grow(0, 1)
    s.check_new([0, 1])
    with pytest.raises(BadInput, match=r"sequences \[1, 2\] need 2 state rows and 1 are free"):
        s.check_new([0, 1, 2])
    assert s.live_rows() == [1]
    s.release(0)
    s.check_new([1, 2])


@pytest.mark.parametrize(
    ("number", "count", "said"),
    [
        (0, 0, "sequence 0 is given 0 tokens"),
        (1, -1, "sequence 1 is given -1 tokens"),
        (0, 157, "sequence 0 would reach 257 tokens; the layer was opened for 256"),
        (1, 257, "sequence 1 would reach 257 tokens"),
    ],
)
def test_tokens_without_room_are_refused(number: int, count: int, said: str) -> None:
    s = Sequences(2, 256)
    s.grow(0, 100)
    s.check_room(0, 156)
    with pytest.raises(BadInput, match=said):
        s.check_room(number, count)


# Kills: pools of which a full house does not fit; a sequence that is gone taken for one without tokens.
def test_all_sequences_fit_at_their_longest() -> None:
    s = Sequences(3, 300)
    for number in range(3):
        s.grow(number, 300)
    assert len(s.pages.live()) == 6 == s.pages.num_pages - 1
    s.release(1)
    for gone in (s.release, s.page_row):
        with pytest.raises(BadInput, match="sequence 1 is not alive"):
            gone(1)
