"""Clipped sums of outer products that are not written out, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest
from streams.trainers import Descent, PrivateTrainer
from streams.trainers import sums as sums_module
from streams.trainers.steps import PrivateSteps
from streams.trainers.sums import FINER_BITS, ClippedSum, Outer
from tests.unit.trainers.rosters import FilterService
from tests.unit.trainers.test_steps import silenced

USERS = 12
SCALES = [1.0, 1e-12, 1e-38, 1e30]


def exact(vector: NDArray[np.floating]) -> list[Fraction]:
    return [Fraction(float(x)) for x in vector]


def factors(left_scale: float, right_scale: float, seed: int = 0) -> Outer:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1.0, 1e-3, 0.0, 30.0], (2, USERS, 1))
    left = rng.normal(0.0, left_scale, (USERS, 3)) * lengths[0]
    right = rng.normal(0.0, right_scale, (USERS, 5)) * lengths[1]
    left[:, 1] *= 1e-6  # entries of one row differ in size
    return Outer(left.astype(np.float32), right.astype(np.float32))


def one_of(rows: Outer, user: int) -> Outer:
    return Outer(rows.left[user : user + 1], rows.right[user : user + 1])


def squared(clipped: ClippedSum) -> Fraction:
    return sum(
        (
            Fraction(int(units)) ** 2 * Fraction(4) ** exponent
            for exponent, total in clipped.totals()
            for units in total
        ),
        start=Fraction(0),
    )


@pytest.mark.parametrize("exponent", [-26, -3])
@pytest.mark.parametrize("left_scale", SCALES)
@pytest.mark.parametrize("right_scale", SCALES)
@pytest.mark.parametrize("level", [1e-3, 0.37])
def test_one_user_changes_the_sum_by_no_more_than_the_level(
    left_scale: float, right_scale: float, exponent: int, level: float
) -> None:
    rows = factors(left_scale, right_scale)
    biases = rows.left.copy()  # written out, on a grid of its own
    for user in range(USERS):
        one = ClippedSum(exponent, outer={0})
        parts = [one_of(rows, user), biases[user : user + 1]]
        (norm,) = one.add(parts, np.array([level]))
        left, right = exact(rows.left[user]), exact(rows.right[user])
        square = sum(x * x for x in left) * (1 + sum(x * x for x in right))
        assert square <= Fraction(float(norm)) ** 2
        assert squared(one) <= min(Fraction(level) ** 2, square)
        if norm > 1e-150:  # nor is it much longer than it has to be
            rounded = float(square) ** 0.5
            assert norm <= rounded * 1.001 or rounded < 1e-30


def test_sums_are_those_of_clipped_rows_but_for_the_grid() -> None:
    rows = factors(0.3, 2.0)
    levels = np.linspace(0.1, 1.0, USERS)
    clipped = ClippedSum(-24, outer={0})
    norms = clipped.add([rows], levels)
    written = rows.left[:, :, None].astype(np.float64) * rows.right[:, None, :]
    written = written.reshape(USERS, -1)
    lengths = np.linalg.norm(written, axis=1)
    assert norms == pytest.approx(lengths, rel=1e-4)
    shorter = np.minimum(1.0, levels / np.maximum(lengths, 1e-300))
    ((exponent, total),) = clipped.totals()
    assert exponent == -24 - FINER_BITS
    wanted = (written * shorter[:, None]).sum(axis=0)
    assert np.ldexp(total.astype(float), exponent) == pytest.approx(wanted, abs=1e-4)
    again = ClippedSum(-24, outer={0})  # the same rows, written out: on the same grid
    again.add([written], levels)
    ((same, total),) = again.totals()
    assert same == exponent
    assert np.ldexp(total.astype(float), exponent) == pytest.approx(wanted, abs=USERS * 2.0**-24)


def test_a_norm_over_many_parts_does_not_depend_on_the_other_users() -> None:
    random = np.random.default_rng(4)
    parts = [
        Outer(*(random.normal(size=(USERS, 5)).astype(np.float32) for _ in range(2)))
        for _ in range(40)
    ]
    levels = np.full(USERS, 0.5)
    together = ClippedSum(-24, outer=range(40)).add(parts, levels)
    alone = [
        ClippedSum(-24, outer=range(40)).add([one_of(part, user) for part in parts], levels[:1])[0]
        for user in range(USERS)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("at_once", [2.0**50, 2.0**37])
@pytest.mark.parametrize("exponent", [-24, -20])
def test_sums_depend_neither_on_the_order_of_users_nor_on_how_they_come(
    exponent: int, at_once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_module, "_EXACT_PRODUCTS", at_once)
    rows, levels = factors(3.0, 7.0), np.linspace(0.1, 0.9, USERS)
    totals = []
    for order in (np.arange(USERS), np.arange(USERS)[::-1]):
        clipped = ClippedSum(exponent, outer={0})
        for users in (order[:5], order[5:]):
            clipped.add([Outer(rows.left[users], rows.right[users])], levels[users])
        totals.append(clipped.totals()[0][1])
    one_by_one = np.zeros(15, dtype=object)
    for user in range(USERS):
        alone = ClippedSum(exponent, outer={0})
        alone.add([one_of(rows, user)], levels[user : user + 1])
        one_by_one += alone.totals()[0][1].astype(object)
    assert totals[0].tolist() == totals[1].tolist() == one_by_one.tolist()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_count_as_zero(bad: float, side: str) -> None:
    rows = Outer(np.ones((3, 2), np.float32) / 10, np.ones((3, 4), np.float32) / 10)
    getattr(rows, side)[1, 1] = bad
    clipped = ClippedSum(-24, outer={0})
    norms = clipped.add([rows], np.ones(3))
    assert np.isinf(norms).tolist() == [False, True, False]
    ((exponent, total),) = clipped.totals()
    assert total * 2.0**exponent == pytest.approx(np.full(8, 0.02), abs=2e-5)


def test_the_grid_of_what_is_released_follows_no_data() -> None:
    widths = [6, 2, 6]
    rows = Outer(np.ones((1, 2), np.float32), np.ones((1, 3), np.float32))
    sums = [ClippedSum(-24, outer={0, 2}) for _ in range(3)]
    sums[0].begin(widths)  # nobody was drawn
    sums[1].add([rows, rows.left, rows], np.ones(1))
    sums[2].add([np.ones((1, 6)), rows.left, rows], np.ones(1))  # not all as outer products
    grids = [[(exponent, len(total)) for exponent, total in one.totals()] for one in sums]
    assert grids[0] == grids[1] == grids[2] == [(-36, 6), (-24, 2), (-36, 6)]


def steps(**changes: object) -> PrivateSteps:
    arguments: dict[str, object] = {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling_rate": 1.0,
        "expected_batch": 4.0,
        "outer_parts": {0},
        "not_private_generator": np.random.default_rng(0),
        **changes,
    }
    return PrivateSteps(FilterService(epsilon=50.0).open(), np.arange(4), **arguments)


def test_steps_add_up_outer_products_and_rows() -> None:
    rows = Outer(np.full((4, 2), 0.1, np.float32), np.full((4, 3), 0.1, np.float32))
    private = steps()
    silenced(private)
    step = private.begin()
    step.add([rows, rows.left])
    released = step.release([6, 2])
    assert released == pytest.approx([0.01] * 6 + [0.1] * 2, abs=1e-5)


def test_a_step_of_nobody_is_noise_on_every_part() -> None:
    private = steps(sampling_rate=1e-12)
    step = private.begin()
    with pytest.raises(InvalidRequest):
        step.release(8)
    released = step.release([6, 2])
    assert len(released) == 8
    assert np.abs(released).min() > 0.0
    units = np.ldexp(released * 4.0, 23)  # the noise is 1: the grid of rows is 2**-23
    assert np.array_equal(np.rint(units[6:]), units[6:])
    assert not np.array_equal(np.rint(units[:6]), units[:6])


def test_a_trainer_takes_gradients_that_are_not_written_out() -> None:
    lefts, rights = np.full((4, 2), 0.5, np.float32), np.full((4, 3), 0.5, np.float32)

    def gradients(model: NDArray[np.float64], positions: NDArray[np.int64]) -> Outer:
        return Outer(lefts[positions], rights[positions])

    private = steps(sampling_rate=0.3)  # in some steps nobody is drawn
    silenced(private)
    trained = PrivateTrainer(private, gradients, Descent(1.0)).run(np.zeros(6), 10)
    assert len(set(trained.tolist())) == 1
    assert -25.0 < trained[0] / 0.0625 < -3.0  # users who were drawn, each a quarter of a quarter
    assert trained[0] / 0.0625 == pytest.approx(round(trained[0] / 0.0625), abs=1e-3)


def test_what_was_not_said_to_come_as_outer_products_is_refused() -> None:
    private = steps(outer_parts=())
    step = private.begin()
    rows = Outer(np.ones((4, 2), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises(InvalidRequest):
        step.add(rows)


@pytest.mark.parametrize("noise_multiplier", [1e-7, 1e-34])
def test_grids_without_exact_sums_are_rejected(noise_multiplier: float) -> None:
    with pytest.raises(InvalidRequest):
        steps(noise_multiplier=noise_multiplier)
