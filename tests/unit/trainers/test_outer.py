"""Steps and trainings with outer products that are not written out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest
from streams.trainers import Descent, PrivateTrainer
from streams.trainers.steps import PrivateSteps
from streams.trainers.sums import Outer
from tests.unit.trainers.rosters import FilterService
from tests.unit.trainers.test_steps import silenced


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
