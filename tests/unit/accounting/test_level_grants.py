"""Of a step that is charged by levels, the highest level that fits is granted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import InvalidInput, RenyiFilter, ZcdpFilter
from accounting.rules.level_grants import grant_levels

PRICES = st.lists(st.integers(0, 50), min_size=1, max_size=8).map(
    lambda steps: np.cumsum([0, *steps], dtype=np.int64)
)


@given(prices=PRICES, data=st.data())
def test_the_granted_level_fits_and_the_next_one_up_to_what_was_asked_does_not(prices, data):
    budget = data.draw(st.integers(1, 200))
    spent = np.array(data.draw(st.lists(st.integers(0, budget), min_size=1, max_size=6)))
    asked = np.array([data.draw(st.integers(0, len(prices) - 1)) for _ in spent])
    after, granted = grant_levels(ZcdpFilter.from_units(budget), spent, prices, asked)
    for before, end, wanted, level in zip(spent, after, asked, granted, strict=True):
        assert level <= wanted
        assert end == before + prices[level] <= budget
        assert level == wanted or before + prices[level + 1] > budget


def test_all_orders_have_to_fit():
    rule = RenyiFilter.from_units([2.0, 4.0], [10, 100])
    prices = np.array([[0, 0], [4, 10], [5, 90], [11, 95]])
    spent = np.array([[0, 0], [0, 20], [6, 0], [7, 0]])
    after, granted = grant_levels(rule, spent, prices, np.array([3, 3, 3, 3]))
    assert granted.tolist() == [2, 1, 1, 0]
    assert after.tolist() == [[5, 90], [4, 30], [10, 10], [7, 0]]


@pytest.mark.parametrize(
    ("prices", "levels"), [([0, 1], [2]), ([1, 2], [0]), ([0, 2, 1], [0]), ([0, 1], [0, 1])]
)
def test_what_is_no_tariff_no_level_or_not_one_a_user_is_refused(prices, levels):
    with pytest.raises(InvalidInput):
        grant_levels(ZcdpFilter.from_units(5), np.array([0]), np.array(prices), np.array(levels))
