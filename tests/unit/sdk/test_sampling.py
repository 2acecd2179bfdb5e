from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from accounting import InvalidInput
from streams.sdk.sampling import poisson_sample


def test_everybody_admitted_is_drawn_at_the_rate_independently_of_the_others() -> None:
    rng = np.random.default_rng(1)
    admitted = np.array([True, False, True, True, False, True])
    draws = [poisson_sample(admitted, 0.3, not_private_generator=rng) for _ in range(4000)]
    # Which of the four were drawn, as a number: 16 outcomes of independent coins.
    places = {0: 0, 2: 1, 3: 2, 5: 3}
    outcomes = [sum(1 << places[int(user)] for user in drawn) for drawn in draws]
    counts = np.bincount(outcomes, minlength=16)
    chances = [0.3 ** bin(k).count("1") * 0.7 ** (4 - bin(k).count("1")) for k in range(16)]
    assert stats.chisquare(counts, np.array(chances) * len(draws)).pvalue > 1e-6


def test_positions_come_in_order_and_each_once() -> None:
    drawn = poisson_sample(np.ones(10_000, dtype=np.bool_), 0.3)
    assert drawn.dtype == np.int64
    assert (np.diff(drawn) > 0).all()
    assert 2500 < len(drawn) < 3500


def test_rate_one_draws_all_who_are_admitted_and_rate_zero_nobody() -> None:
    admitted = np.array([False, True, True])
    assert poisson_sample(admitted, 1.0).tolist() == [1, 2]
    assert poisson_sample(admitted, 0.0).tolist() == []
    assert poisson_sample(admitted[:0], 0.5).tolist() == []


def test_coins_are_fresh_whatever_seeds_were_set() -> None:
    admitted = np.ones(1000, dtype=np.bool_)
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(poisson_sample(admitted, 0.5))
    assert not np.array_equal(*draws)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(InvalidInput):
        poisson_sample(np.ones(3, dtype=np.bool_), rate)
