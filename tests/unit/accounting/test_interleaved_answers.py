"""Mechanisms with several answers between sampled steps (docs/research/filters.md).

A counter answers twice, and counts the user in at most one of its answers. It is charged in full
before its first answer. Sampled steps lie between and after the answers. The user's policy follows
outputs and the user's own coins; so the coin of a sampled step may decide what the counter counts.
All policies are enumerated, in exact numbers: moments of the likelihood ratio in place of
divergences, since those of steps are multiplied.

Under the measure `steps`, a participation may be released row by row. Here it moves two bits, in
one row or in two, with a sampled step between them. Policies are drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.accounting.exact_deltas import hockey_stick_excess

NOISE = (Fraction(2, 3), Fraction(1, 3))
RATE = Fraction(1, 3)
BITS = (0, 1)


class CountedPolicy(NamedTuple):
    """The contributions of one user.

    Attributes:
        first: whether the user is counted in the first answer.
        step: by the first answer, whether the user takes part in the first sampled step.
        second: by the output and the coin of that step, whether the second answer counts the user.
        last: by the second answer and the coin, whether the user takes part in the last step.
    """

    first: int
    step: tuple[int, ...]
    second: tuple[int, ...]
    last: tuple[int, ...]


def policies() -> Iterator[CountedPolicy]:
    for first in BITS:
        for step, second, last in product(
            product(BITS, repeat=2), product(BITS, repeat=4), product(BITS, repeat=4)
        ):
            yield CountedPolicy(first, step, second, last)


@cache
def shifted(counted: int, output: int) -> Fraction:
    """Return the likelihood ratio of an output if the user adds this."""
    return NOISE[output - counted] / NOISE[output]


@cache
def sampled(takes_part: int, output: int) -> Fraction:
    rate = RATE * takes_part
    return 1 - rate + rate * shifted(1, output)


def larger(ratios: Iterator[tuple[Fraction, Fraction]], order: int) -> Fraction:
    """Return the larger moment of (probability without the user, likelihood ratio)."""
    moments = [Fraction(0), Fraction(0)]
    for probability, ratio in ratios:
        moments[0] += probability * ratio**order
        moments[1] += probability * ratio ** (1 - order)
    return max(moments)


@cache
def costs(order: int) -> tuple[Fraction, Fraction]:
    """Return the moments of the counter and of a sampled step."""
    counter = larger(((NOISE[y], shifted(1, y)) for y in BITS), order)
    return counter, larger(((NOISE[y], sampled(1, y)) for y in BITS), order)


def moment_of(policy: CountedPolicy, order: int, budget: Fraction, once: bool = True) -> Fraction:
    """Return the moment of all outputs; the filter admits to a step what its budget pays for."""
    counter, step_cost = costs(order)

    def likelihood_ratio(a: int, b: int, c: int, d: int) -> Fraction:
        takes_part = policy.step[a] if counter * step_cost <= budget else 0
        spent = counter * (step_cost if takes_part else 1)
        total = Fraction(0)
        for coin in BITS:
            if coin > takes_part:
                continue
            chance = (RATE if coin else 1 - RATE) if takes_part else Fraction(1)
            counted = policy.second[2 * b + coin]
            if once and policy.first:
                counted = 0
            last = policy.last[2 * c + coin] if spent * step_cost <= budget else 0
            total += chance * shifted(coin, b) * shifted(counted, c) * sampled(last, d)
        return shifted(policy.first, a) * total

    return larger(
        (
            (NOISE[a] * NOISE[b] * NOISE[c] * NOISE[d], likelihood_ratio(a, b, c, d))
            for a, b, c, d in product(BITS, repeat=4)
        ),
        order,
    )


def budgets(order: int) -> list[Fraction]:
    """Return budgets for the counter and none, one or both of the sampled steps."""
    counter, step = costs(order)
    return [counter, counter * step, counter * step**2]


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3])
def test_no_policy_exceeds_its_budget_between_answers_of_a_counter(order: int) -> None:
    for budget in budgets(order):
        worst = max(moment_of(policy, order, budget) for policy in policies())
        assert worst == budget  # met, not only kept


@pytest.mark.slow
def test_a_user_who_is_counted_twice_loses_more_than_was_charged() -> None:
    budget = budgets(2)[1]
    assert max(moment_of(policy, 2, budget, once=False) for policy in policies()) > budget


# --- rows of a participation, under the measure `steps` -----------------------------------------

ROWS = range(4)  # two bits
UNMOVED, MOVED = np.array([0.75, 0.25]), np.array([0.25, 0.75])


class RowsPolicy(NamedTuple):
    """The contributions of one user, who may take part twice.

    Attributes:
        first: how many bits the first row of the first participation moves.
        step: by the first row, whether the sampled step is the second participation.
        second: by the first row, the output and the coin of the sampled step, how many bits the
            second row of the first participation moves.
        last: by all of these and the second row, how many bits a later row moves.
    """

    first: int
    step: NDArray[np.int64]
    second: NDArray[np.int64]
    last: NDArray[np.int64]


def row(moved: int) -> NDArray[np.float64]:
    """Return the law of two bits, of which this many are moved."""
    return np.outer(*(MOVED if at < moved else UNMOVED for at in BITS)).ravel()


def law_of_rows(policy: RowsPolicy, shares: int = 2) -> NDArray[np.float64]:
    """Return the law of all outputs; the first participation moves at most `shares` bits."""
    law = np.zeros((4, 4, 4, 4))
    for a, b, coin, c in product(ROWS, ROWS, BITS, ROWS):
        rate = float(RATE) * policy.step[a]
        second = min(int(policy.second[a, b, coin]), shares - policy.first)
        last = 0 if policy.step[a] else int(policy.last[a, b, coin, c])
        chance = (rate if coin else 1.0 - rate) * row(policy.first)[a] * row(2 * coin)[b]
        law[a, b, c] += chance * row(second)[c] * row(last)
    return law.ravel()


def excess_over_copies(law: NDArray[np.float64]) -> float:
    """Return by how much a hockey-stick divergence, in either direction, exceeds two copies."""
    outputs = list(product(ROWS, repeat=4))
    without = np.array([np.prod([row(0)[y] for y in each]) for each in outputs])
    copies = np.array([row(2)[a] * row(2)[b] * row(0)[c] * row(0)[d] for a, b, c, d in outputs])
    return hockey_stick_excess((law, without), (copies, without))


def drawn_policy(rng: np.random.Generator) -> RowsPolicy:
    options = [0, 1, 2, 2]
    return RowsPolicy(
        int(rng.choice(options)),
        rng.integers(0, 2, 4),
        rng.choice(options, (4, 4, 2)),
        rng.choice(options, (4, 4, 2, 4)),
    )


@pytest.mark.slow
def test_no_policy_exceeds_the_copies_between_rows() -> None:
    rng = np.random.default_rng(3)
    found = [excess_over_copies(law_of_rows(drawn_policy(rng))) for _ in range(60)]
    assert max(found) <= 1e-12
    both = RowsPolicy(1, np.zeros(4, int), np.full((4, 4, 2), 1), np.full((4, 4, 2, 4), 2))
    assert excess_over_copies(law_of_rows(both)) == pytest.approx(0.0, abs=1e-12)


def test_rows_that_move_more_than_was_charged_exceed_the_copies() -> None:
    more = RowsPolicy(1, np.zeros(4, int), np.full((4, 4, 2), 2), np.full((4, 4, 2, 4), 2))
    assert excess_over_copies(law_of_rows(more, shares=3)) > 0.01
