"""The costs of steps of banded matrix mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    ZcdpFilter,
    banded_step,
    banded_steps,
    square_root_column,
)
from tests.unit.accounting.refusals import refused

entries = st.floats(-4.0, 4.0).filter(lambda entry: entry == 0.0 or abs(entry) > 1e-3)


@given(
    st.lists(entries, min_size=1, max_size=6).filter(any),
    st.floats(0.1, 1e3),
    st.floats(0.0, 4.0),
)
@example([1e-200, 1e-200], 1.5e-200, 1.0)
@example([1e200, 3e200], 1.5e200, 1.0)
def test_participation_is_charged_the_norm_of_its_column(
    column: list[float], noise: float, norm: float
) -> None:
    step = banded_step(column, noise)
    square = sum(Fraction(entry) ** 2 for entry in column)
    exact = Fraction(norm) ** 2 * square / (2 * Fraction(noise) ** 2)
    assert Fraction(step.noise_stddev) ** 2 * square <= Fraction(noise) ** 2
    above = Fraction(math.nextafter(step.noise_stddev, math.inf))
    assert above**2 * square > Fraction(noise) ** 2
    charge = int(MEASURES["zcdp"].charge_units(step, [norm])[0])
    assert exact * 2**44 <= charge <= exact * 2**44 * (1 + Fraction(1, 2**50)) + 1


@given(st.data())
def test_what_a_run_moves_is_at_most_what_was_charged_for_it(data: st.DataObject) -> None:
    """With the noise of one standard deviation: the squared distance of all rows, both worlds."""
    bands, steps = data.draw(st.integers(1, 4)), 12
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    factor = np.tril(rng.normal(size=(steps + bands, steps)))
    factor = np.where(np.arange(steps + bands)[:, None] - np.arange(steps) < bands, factor, 0.0)
    rule = ZcdpFilter(6.0)
    state, norms = rule.initial_state(1), np.zeros(steps)
    for step in range(steps):
        norm = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        if norms[max(0, step - bands + 1) : step].any():
            norm = 0.0
        mechanism = banded_step(factor[step : step + bands, step], 1.0)
        state, admitted = rule.admit_norms(state, mechanism, [norm])
        norms[step] = norm if admitted[0] else 0.0
    signs = rng.choice([-1.0, 1.0], steps)
    moved = float(np.square(factor @ (norms * signs)).sum())
    assert moved / 2.0 <= float(state[0]) * 2.0**-44 * (1 + 1e-12) + 1e-12


# --- the steps of a matrix ----------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
def test_square_root_column_squared_maps_gradients_to_models(momentum: float) -> None:
    column = square_root_column(30, momentum=momentum)
    matrix = sum(np.diag(np.full(30 - k, entry), -k) for k, entry in enumerate(column))
    models, model, velocity = [], 0.0, 0.0
    for gradient in [1.0] + [0.0] * 29:
        velocity = momentum * velocity + gradient
        model += velocity
        models.append(model)
    np.testing.assert_allclose((matrix @ matrix)[:, 0], models, rtol=1e-12)
    assert (np.diff(column) < 0.0).all()
    assert square_root_column(7, momentum=momentum).tolist() == column[:7].tolist()


def banded(rng: np.random.Generator, steps: int, bands: int) -> np.ndarray:
    """A lower triangular matrix of so many bands, none of whose columns is 0."""
    below = np.arange(steps)[:, None] - np.arange(steps)
    entries = rng.normal(size=(steps, steps)) + 3.0 * np.eye(steps)
    return np.where((below >= 0) & (below < bands), entries, 0.0)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**32), st.floats(0.1, 50.0))
def test_each_step_of_a_matrix_is_charged_its_column_norm(
    steps: int, bands: int, seed: int, noise: float
) -> None:
    matrix = banded(np.random.default_rng(seed), steps, bands)
    mechanisms = banded_steps(matrix, noise, min_separation=bands)
    norms = np.linalg.norm(matrix, axis=0)
    assert [step.noise_stddev for step in mechanisms] == pytest.approx((noise / norms).tolist())
    for column, step in zip(matrix.T, mechanisms, strict=True):
        square = sum(Fraction(entry) ** 2 for entry in column.tolist())
        assert Fraction(step.noise_stddev) ** 2 * square <= Fraction(noise) ** 2


@given(st.lists(entries, min_size=1, max_size=6), st.integers(0, 9), st.floats(0.1, 50.0))
def test_a_toeplitz_matrix_is_charged_as_it_is_written_out(
    column: list[float], more: int, noise: float
) -> None:
    column[0] = column[0] or 1.0
    steps = len(column) + more
    dense = sum(np.diag(np.full(steps - k, entry), -k) for k, entry in enumerate(column))
    short = banded_steps(column, noise, min_separation=len(column), steps=steps)
    assert short == banded_steps(dense, noise, min_separation=len(column))
    assert short[0] == banded_step(column, noise)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32), st.data())
def test_sensitivity_to_participations_apart_is_their_norm(
    bands: int, more: int, seed: int, data: st.DataObject
) -> None:
    """In whole numbers, and against every choice of signs: none moves the rows further."""
    rng, steps = np.random.default_rng(seed), 3 * (bands + more)
    below = np.arange(steps)[:, None] - np.arange(steps)
    matrix = rng.integers(-3, 4, (steps, steps)) * ((below >= 0) & (below < bands))
    np.fill_diagonal(matrix, 1 + matrix.diagonal() % 3)
    first, separation = data.draw(st.integers(0, bands)), bands + data.draw(st.integers(0, 2))
    taken = list(range(first, steps, separation))
    columns = [sum(int(entry) ** 2 for entry in matrix[:, step]) for step in taken]
    for _ in range(8):
        signs = rng.choice([-1, 1], len(taken))
        moved = sum(int(row) ** 2 for row in matrix[:, taken] @ signs)
        assert moved == sum(columns)
    prices = banded_steps(matrix.astype(float), 1.0, min_separation=bands)
    charged = sum(int(MEASURES["zcdp"].charge_units(prices[step], [1.0])[0]) for step in taken)
    assert Fraction(sum(columns), 2) <= Fraction(charged, 2**44)
    assert charged <= sum(columns) * 2**43 * (1 + Fraction(1, 2**50)) + len(taken)


def test_participations_closer_than_the_bands_cost_more() -> None:
    """One step too close: rows in common add up before they are squared."""
    matrix = np.array([[2.0, 0.0, 0.0], [1.0, 2.0, 0.0], [1.0, 1.0, 2.0]])
    prices = banded_steps(matrix, 1.0, min_separation=3)
    charged = sum(
        float(MEASURES["zcdp"].charge_units(prices[step], [1.0])[0]) * 2.0**-44 for step in (0, 2)
    )
    moved = matrix[:, 0] + matrix[:, 2]
    assert float(moved @ moved) / 2.0 > charged * 1.3
    with refused("min_separation"):
        banded_steps(matrix, 1.0, min_separation=2)


@pytest.mark.parametrize(
    ("matrix", "options", "argument"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], {}, "matrix[0, 1]"),
        ([[1.0, 0.0]], {}, "matrix"),
        ([[[1.0]]], {}, "matrix"),
        ([], {"steps": 3}, "matrix"),
        ([1.0] * 4, {"steps": 3}, "matrix"),
        ([1.0, 0.5], {}, "steps"),
        ([1.0, 0.5], {"steps": 0}, "steps"),
        ([[1.0]], {"steps": 2}, "steps"),
        ([[1.0, 0.0], [1.0, 0.0]], {}, "matrix[:, 1]"),
        ([[math.nan]], {}, "column"),
        ([[1.0, math.nan], [0.0, 1.0]], {}, "matrix[0, 1]"),
        ([[1.0]], {"min_separation": 0}, "min_separation"),
        ([[1.0]], {"noise_stddev": 0.0}, "noise_stddev"),
        ([1.0, 0.5, 0.25, 0.0], {"steps": 9}, "min_separation"),
    ],
)
def test_invalid_banded_matrices_are_rejected_by_argument(
    matrix: list, options: dict, argument: str
) -> None:
    arguments = {"noise_stddev": 1.0, "min_separation": 2, **options}
    with refused(argument):
        banded_steps(matrix, **arguments)
