"""Training with correlated noise (DP-FTRL), step by step: cohorts in place of Poisson samples.

The states of a step are those of ``streams.trainers.steps``, and so is the code, except that

- a step charges one cohort, by norms, and draws no coins. A user who took part less than
  ``min_separation`` steps ago must wait, and is charged nothing: the service enforces it;
- the noise of a step cancels a part of the noise of earlier steps (`CorrelatedNoise`). Its price is
  that of a column of a banded matrix (``accounting.banded_steps``), charged when a user takes part;
- a checkpoint has the last rows of noise, and is as secret as the data.

A step that was charged and not released when its process ended is given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import banded_step, banded_steps
from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import quoted
from streams.sdk.arguments import UsersLike, read_users
from streams.sdk.errors import InvalidRequest, invalid_requests
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint, Saved
from streams.trainers.cohorts import rotating_groups
from streams.trainers.correlated_noise import CorrelatedNoise
from streams.trainers.planning import Plan
from streams.trainers.steps import GRID_BITS, Levels, OpenStep, PrivateSteps, StepSum

_CHARGED: Final = "correlated_noise_charged"
_MOST_STEPS: Final = 2**20
_BITS: Final = 40 - GRID_BITS  # exact normals have at most 2^40 as standard deviation


class CorrelatedSteps(PrivateSteps):
    """Private means of gradients over cohorts that take turns, with correlated noise.

    Every step is charged before it is computed. Neighbouring datasets differ by adding or removing
    one user. The other attributes and methods are those of ``PrivateSteps``.

    Args:
        run: from ``Turnstile.run``, with a ``min_separation`` of at least the number of bands.
        users: distinct ids, in the order of positions.
        column: the first column of C, one entry per band, from 1 on decreasing: that of
            ``accounting.square_root_column``. It must not depend on the data. Its entries are
            rounded to multiples of 2^-16.
        clip_norm: the largest norm of a contribution.
        noise_multiplier: a participation at the clip norm costs as much as a Gaussian step with
            this noise, as a multiple of ``clip_norm``. Each row of Z has this noise times the norm
            of the column.
        expected_batch: the divisor of sums, a public number: the expected number of users in a
            cohort, and never the true one.
        steps: the number of steps, those before a restart included. If the noise is too low for the
            participations of a user in so many steps, this is an error before the first one.
        cohort: returns the positions of the users who are asked to take part in a step. It may
            depend on released outputs, public facts, and for each user on that user's own data and
            coins; never on which users were admitted (docs/dp-ftrl.md). None: ``min_separation``
            fixed groups take turns, as ``rotating_cohort`` makes them with the run's name as key.
        levels: "own" charges each user twice the norm that its gradient had when it took part last,
            at most ``clip_norm``; "clip_norm" charges all of them the clip norm. None: "own" where
            lower levels save budget.
        new_sum: as for ``PrivateSteps``.
        not_private_generator: draws noise, for tests and for figures that must be repeated.

    Raises:
        InvalidRequest: an argument is invalid, the run has no such minimum separation, or the noise
            is too low for the steps; nothing was charged.
        TurnstileError: a step that was handed back could not be given up; call again.
    """

    def __init__(
        self,
        run: Run,
        users: UsersLike,
        *,
        column: ArrayLike,
        clip_norm: float,
        noise_multiplier: float,
        expected_batch: float,
        steps: int,
        cohort: Callable[[int], ArrayLike] | None = None,
        levels: Levels | None = None,
        new_sum: Callable[[int], StepSum] | None = None,
        not_private_generator: np.random.Generator | None = None,
    ) -> None:
        if callable(noise_multiplier):
            raise InvalidRequest("noise_multiplier is a schedule; correlated noise needs a number")
        self._separation = run.min_separation or 1
        with invalid_requests():
            whole_number("steps", steps, 1, _MOST_STEPS)
            self._correlated = CorrelatedNoise(column, _BITS)
        bands = len(self._correlated.column)
        if self._separation < bands:
            raise InvalidRequest(
                f"run {run.name!r} keeps participations {self._separation} steps apart, fewer than "
                f"the {bands} bands of the matrix: open it with min_separation={max(bands, 2)}"
            )
        self._cohort = cohort
        self._users = read_users(users)
        if (twice := self._users.duplicate()) is not None:
            raise InvalidRequest(f"user {quoted(twice)} appears twice in users")
        self._charging: tuple[int, NDArray[np.int64], NDArray[np.float64]] | None = None
        super().__init__(
            run,
            self._users,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            sampling_rate=1.0,
            expected_batch=expected_batch,
            steps=steps,
            levels=levels,
            new_sum=new_sum,
            not_private_generator=not_private_generator,
        )

    @property
    def column(self) -> NDArray[np.float64]:
        """Return the first column of C, as rounded."""
        return self._correlated.column

    def save(self, checkpoint: Checkpoint, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the file with the rows of noise that later steps need, as ``PrivateSteps.save``.

        The file is as secret as the data: only its owner may read it.
        """
        checkpoint.is_secret = True
        charged = {_CHARGED: self._charged()}
        super().save(checkpoint, {**arrays, **charged, **self._correlated.arrays()})

    def resume(self, checkpoint: Checkpoint) -> Saved | None:
        """Return what was saved of this run, as ``PrivateSteps.resume``, and restore the noise.

        Raises:
            InvalidRequest: as there; or the steps of the file were charged with another column or
                noise, or for fewer steps. With their rows, later steps would release more of them.
        """
        checkpoint.is_secret = True
        saved = super().resume(checkpoint)
        if saved is None:
            return None
        arrays = dict(saved.arrays)
        before, now = arrays.pop(_CHARGED, np.zeros(1)), self._charged()
        if not np.array_equal(before[1:], now[1:]) or now[0] > before[0]:
            raise InvalidRequest(
                f"{checkpoint.path} has steps that were charged with another column or noise, or "
                f"as steps of a training of fewer than {self.planned}: give the same arguments as "
                "before"
            )
        # Callers may copy what they get to files that others can read.
        return Saved(saved.released, self._correlated.restore(arrays))

    def _charged(self) -> NDArray[np.float64]:
        """Return the numbers that the prices of steps follow from, the planned steps first."""
        assert self.planned is not None
        return np.array([self.planned, self._row_noise, *self._correlated.column])

    def _check_plan(self, steps: int) -> None:
        noise, participations = self.noise_multiplier, -(-steps // self._separation)
        Plan(self.policies, noise, 1.0, participations, self._clip_norm).check("participations")

    def _prepare(self, users: UsersLike) -> None:
        run, separation, column = self._run, self._separation, self._correlated.column
        noise = self._settings()[0].noise_stddev
        self._row_noise = _row_noise(column, noise)
        self._grid = self._exponent_of(self._row_noise)
        self._prices = banded_steps(
            column[: self.planned], self._row_noise, min_separation=separation, steps=self.planned
        )
        self._norms = np.full(len(self._users), self._clip_norm)
        if self._cohort is None:
            self._groups = rotating_groups(users, period=separation, key=run.name)
        run.abandon()

    def _next(self, ahead: bool) -> OpenStep:
        if ahead:
            raise InvalidRequest("steps with correlated noise cannot be charged ahead")
        step = self._run.step
        if self._charging is None or self._charging[0] != step:  # after an error: the same content
            positions = self._positions(step)
            self._charging = step, positions, self._norms[positions]
        _, positions, norms = self._charging
        decision = self._run.charge(
            self._users.select(positions),
            norms,
            mechanism=self._prices[step],
            clip_norm=self._clip_norm,
        )
        self._check_new(decision.step)
        admitted = decision.admitted
        self._open = opened = OpenStep(
            self,
            decision.step,
            positions[admitted],
            decision.granted[admitted],
            self._row_noise,
            self._grid,
        )
        return opened

    def _positions(self, step: int) -> NDArray[np.int64]:
        """Return the positions of the cohort of a step, increasing."""
        if self._cohort is None:
            return np.flatnonzero(self._groups == step % self._separation)
        asked = np.asarray(self._cohort(step))
        found = np.unique(asked)
        inside = asked.dtype.kind in "iu" and ((found >= 0) & (found < len(self._users))).all()
        if asked.size and not (inside and asked.shape == found.shape):
            raise InvalidRequest(
                f"cohort returns {quoted(asked)} in step {step}; it must return distinct indices "
                f"below {len(self._users)}, the number of users"
            )
        return found.astype(np.int64)

    def _set_levels(self, positions: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        self._norms[positions] = norms

    def _add_noise(self, step: OpenStep, units: NDArray[np.int64]) -> None:
        drawn = self._noise.draw(math.ldexp(self._row_noise, _BITS - step.exponent), len(units))
        units += self._correlated.row(step.step, drawn)


def _row_noise(column: NDArray[np.float64], noise: float) -> float:
    """Return the noise of a row of Z with which a participation costs at most that of ``noise``."""
    stddev = noise * float(np.linalg.norm(column))
    while banded_step(column, stddev).noise_stddev < noise:
        stddev = math.nextafter(stddev, math.inf)
    return stddev
