"""Groups of users against distributions of which everything is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from accounting import Gaussian, gdp_to_delta, zcdp_cost
from accounting.research import gdp_of_group, renyi_of_pair, zcdp_of_group
from tests.unit.accounting.refusals import refused

CELLS = 4
probabilities = st.lists(st.floats(0.01, 1.0), min_size=CELLS, max_size=CELLS).map(
    lambda weights: np.array(weights) / sum(weights)
)


def divergence(p: np.ndarray, q: np.ndarray, orders: npt.ArrayLike) -> np.ndarray:
    """At each order, of distributions over the cells."""
    a = np.asarray(orders)[..., np.newaxis]
    return logsumexp(a * np.log(p) + (1.0 - a) * np.log(q), axis=-1) / (a[..., 0] - 1.0)


def both(p: np.ndarray, q: np.ndarray, orders: npt.ArrayLike) -> np.ndarray:
    return np.maximum(np.maximum(divergence(p, q, orders), divergence(q, p, orders)), 0.0)


@given(probabilities, probabilities, probabilities, st.lists(st.floats(2.01, 40.0), min_size=1))
def test_a_chain_of_two_neighbours_is_within_the_divergence_of_a_pair(
    p: np.ndarray, q: np.ndarray, r: np.ndarray, orders: list[float]
) -> None:
    orders = sorted(set(orders))
    single = np.maximum(both(p, q, orders), both(q, r, orders))
    halves, pairs = renyi_of_pair(orders, single)
    assert halves.tolist() == [order / 2.0 for order in orders]
    assert (divergence(p, r, halves) <= pairs * (1.0 + 1e-9) + 1e-12).all()


@given(probabilities, probabilities, probabilities)
def test_a_chain_of_two_neighbours_is_within_the_rho_of_a_pair(
    p: np.ndarray, q: np.ndarray, r: np.ndarray
) -> None:
    orders = 1.0 + np.geomspace(1e-3, 1e3, 200)
    rho = float((np.maximum(both(p, q, orders), both(q, r, orders)) / orders).max())
    some = np.array([1.01, 1.5, 2.0, 5.0, 50.0])
    assert (divergence(p, r, some) <= some * zcdp_of_group(rho) * (1.0 + 1e-2) + 1e-12).all()


@given(st.floats(0.01, 5.0), st.integers(1, 20), st.floats(0.0, 20.0))
def test_a_group_of_gaussian_steps_is_one_step_of_as_many_times_the_norm(
    norm: float, users: int, epsilon: float
) -> None:
    rho = float(zcdp_cost(Gaussian(1.0), [norm])[0])
    assert zcdp_of_group(rho, users) == pytest.approx(
        float(zcdp_cost(Gaussian(1.0), [users * norm])[0]), rel=1e-14
    )
    assert gdp_of_group(norm, users) == pytest.approx(users * norm, rel=1e-15)
    # The definition, for two Gaussians that are `users` shifts apart.
    assert gdp_to_delta(gdp_of_group(norm, users), epsilon) >= gdp_to_delta(users * norm, epsilon)


def test_arrays_keep_their_shape_and_one_user_is_no_group() -> None:
    rho = np.array([[0.0, 0.1], [np.inf, 2.0]])
    np.testing.assert_array_equal(zcdp_of_group(rho, 1), rho)
    np.testing.assert_array_equal(gdp_of_group(rho, 2), 2.0 * rho)
    halves, pairs = renyi_of_pair([1.5, 4.0, 8.0], [[0.1, 0.2, 0.3], [0.0, 0.0, np.inf]])
    assert halves.tolist() == [2.0, 4.0]
    assert pairs.shape == (2, 2)
    assert pairs[1].tolist() == [0.0, np.inf]
    assert pairs[0] == pytest.approx([0.2 * 2.5, 0.3 * 6.5 / 3.0], rel=1e-12)


def test_what_is_no_group_is_refused() -> None:
    for users in (0, -1, 1.5, True, 2**26 + 1):
        with refused("users"):
            zcdp_of_group(1.0, users)
        with refused("users"):
            gdp_of_group(1.0, users)
    with refused("orders"):
        renyi_of_pair([1.5, 2.0], [0.1, 0.1])
    with refused("rdp"):
        renyi_of_pair([4.0], [0.1, 0.1])
    with refused("rho"):
        zcdp_of_group(-1.0)
