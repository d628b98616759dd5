"""What ranks conclude from what all have said in the rounds of asynchronous sums, under any timing."""

from __future__ import annotations

import random

import pytest
from ringcore.adapter import Agreement, Verdict, Word


class Rank:
    """One that makes gradients at its own pace, and meets the others behind its last one."""

    def __init__(self, number: int, agreement: Agreement, paces: list[int]) -> None:
        self.number, self.agreement, self.paces = number, agreement, paces
        self.version = 0  # of its weights
        self.ready_at = paces.pop() if paces else 0
        self.offers = False
        self.done = not self.paces and self.ready_at == 0
        self.dropped = 0
        self.met = False

    def news(self, now: int, staleness: int) -> bool:
        """Whether it takes part in a round of its own accord."""
        if not self.done and not self.offers and now >= self.ready_at:
            self.offers = True
        if self.offers and self.agreement.version - self.version > staleness:
            self.dropped += 1
            self.next(now)
        return self.offers or (self.done and not self.agreement.is_meeting(self.number) and not self.met)

    def next(self, now: int) -> None:
        """Its gradient is in a sum, or dropped."""
        self.offers = False
        self.version = self.agreement.version
        if self.paces:
            self.ready_at = now + self.paces.pop()
        else:
            self.done = True


def simulate(seed: int) -> tuple[list[Rank], list[list[Verdict]]]:
    """A job, from its first gradient to its meeting: what each rank has concluded, round by round."""
    draw = random.Random(seed)
    count = draw.randrange(1, 6)
    threshold, staleness = draw.randrange(1, count + 1), draw.randrange(4)
    paces = [draw.choice([1, 1, 3, 20]) for _ in range(count)]
    ranks = [
        Rank(
            number, Agreement(count, threshold),
            [draw.randrange(1, 2 + pace * 2) for _ in range(draw.randrange(12))],
        )
        for number, pace in enumerate(paces)
    ]  # fmt: skip
    verdicts: list[list[Verdict]] = [[] for _ in ranks]
    words: list[Word | None] = [None] * count
    for now in range(20_000):
        order = draw.sample(ranks, count)  # in which they look at what has come
        for rank in order:
            if words[rank.number] is not None:
                continue
            heard = sum(word is not None for word in words)
            # News of others travel: not all of them have come.
            enough = heard >= rank.agreement.needed and draw.random() < 0.5
            if rank.news(now, staleness) or enough:
                words[rank.number] = Word(rank.offers, rank.done and not rank.offers)
        if any(word is None for word in words):
            continue
        spoken = [word for word in words if word is not None]
        for rank in ranks:
            before = rank.agreement.version
            verdict = rank.agreement.decide(spoken)
            verdicts[rank.number].append(verdict)
            assert rank.agreement.version == before + bool(verdict.contributors)
            if rank.number in verdict.contributors:
                assert 0 <= before - rank.version <= staleness
                rank.next(now)
            rank.met = rank.met or verdict.met
        if verdicts[0][-1].met:
            return ranks, verdicts
        left = sum(not word.meets for word in spoken)
        assert not verdicts[0][-1].contributors or len(verdicts[0][-1].contributors) >= min(threshold, left)
        words = [None] * count
    raise AssertionError(f"seed {seed}: ranks wait for each other")


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_ranks_agree_keep_the_bound_and_come_to_an_end(first: int) -> None:
    dropped = empty = 0
    for seed in range(first, first + 100):
        ranks, verdicts = simulate(seed)
        assert all(other == verdicts[0] for other in verdicts)
        assert len({rank.agreement.version for rank in ranks}) == 1
        dropped += sum(rank.dropped for rank in ranks)
        empty += sum(not verdict.contributors and not verdict.met for verdict in verdicts[0])
    assert dropped > 0
    assert empty > 0


def said(*letters: str) -> list[Word]:
    """By rank: c contributes, m meets, and - does neither."""
    return [Word(letter == "c", letter == "m") for letter in letters]


def test_a_sum_has_the_threshold_or_all_that_do_not_meet() -> None:
    agreement = Agreement(4, threshold=3)
    assert agreement.decide(said("c", "c", "-", "c")) == Verdict((0, 1, 3))
    assert agreement.decide(said("c", "c", "m", "-")) == Verdict()
    assert agreement.needed == 3
    assert agreement.decide(said("c", "m", "m", "c")) == Verdict((0, 3))
    assert (agreement.version, agreement.needed) == (2, 2)
    assert agreement.is_meeting(2)
    assert not agreement.is_meeting(0)


def test_when_all_have_met_they_begin_anew() -> None:
    agreement = Agreement(2, threshold=2)
    agreement.decide(said("m", "c"))
    assert (agreement.version, agreement.needed) == (1, 1)
    assert agreement.decide(said("m", "m")) == Verdict(met=True)
    assert (agreement.version, agreement.needed) == (1, 2)
    assert not agreement.is_meeting(0)
