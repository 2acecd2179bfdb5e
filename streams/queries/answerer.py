"""Continual monitoring: a stream of linear queries under one guarantee.

Every query asks each user for a number or a vector; its answer is the sum over the users that the
filter admits, plus Gaussian noise (Feldman and Zrnic, section 4.2). With the noise of Cor. 4.7 any
number of queries, chosen from earlier answers, is rho-zCDP; neighbouring datasets differ by adding
or removing one user. A user pays for the days on which it contributes and for no other.

What is public: ``Answer``. Who was admitted, and how many, is data about users; it stands in
``last_charge``, apart, for those who may see it. The number of active users can be asked like
anything else: as a query that is charged.

One step, one answer. Two answers to one step would be two releases for one charge:

1. Everything is checked before the charge; nothing can fail between the charge and the noise.
2. The step is charged. An error leaves here, without an answer. After ``DecisionTimeout`` the same
   query can be asked again: it is the same charge, and no noise was drawn for it.
3. The step is checked against the last one answered: no step is answered twice by one object.
4. The noise is drawn, once.

After a restart, open the run again. A step that was decided everywhere is behind the new attempt:
it may have been answered or not, and is never answered again. A step that was interrupted has not
been answered by anyone, because its charge did not return and its attempt is fenced; it is
completed with the same users and contributions, or abandoned. An answerer that writes down the step
of an answer before the answer leaves can say so (``released=``): then a step that was decided and
not answered is handed back too. Do not answer from a copy of a process (``fork``, a snapshot that
is resumed twice): each copy would answer the same step, with noise of its own.

Contributions are rounded towards zero to a grid that is fine beside the noise, and summed as
integers; the noise is sampled exactly and rounded to the same grid (``accounting.release``). An
answer is therefore an exact Gaussian mechanism, rounded: the gaps between doubles give nothing away
(Mironov, "On significance of the least significant bits for differential privacy", 2012). Its bits
come from the operating system. What remains is how long an answer takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import Gaussian, noise_for_norm_budget
from accounting.release import ExactNoise
from streams.schemas import User
from streams.sdk.arguments import read_contributions
from streams.sdk.columns import read_users
from streams.sdk.errors import InvalidRequest, TurnstileError
from streams.wire.packing import select_users

_ULP = 2.0**-52
_GRID_BITS = 40
"""A step of the grid is this many powers of two below the noise."""
_NOISE_EXPONENTS = 400
_LARGEST_SUM = 2.0**1000  # in steps of the grid: it stays a float64


class AnsweredTwice(TurnstileError):
    """The charge came back with a step that has an answer already. Nothing was released."""


class Charged(Protocol):
    """What came of a charge, in the order of its users; ``StepDecision`` is one."""

    @property
    def step(self) -> int:
        """The step that was charged."""

    @property
    def admitted(self) -> NDArray[np.bool_]:
        """Who may contribute, (n,)."""

    @property
    def granted(self) -> NDArray[np.float64]:
        """The norm to which each contribution must be clipped, (n,); 0 if not admitted."""

    @property
    def exhausted(self) -> NDArray[np.bool_]:
        """Who has nothing left after this step, (n,)."""


class Charges(Protocol):
    """Charges steps, one after the other; ``Run`` does."""

    def charge(
        self,
        users: NDArray[np.int64] | Sequence[User],
        norms: ArrayLike,
        *,
        noise_stddev: float,
        clip_norm: float | None,
    ) -> Charged:
        """Charge one step and return when every decision is in, or raise."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What may be published of a query.

    Attributes:
        step: the step of the run; it depends on nothing but how many queries came before.
        value: the private sum, float64; shape () for numbers, (d,) for vectors.
        noise_stddev: standard deviation of the noise in each coordinate.
    """

    step: int
    value: NDArray[np.float64]
    noise_stddev: float


@dataclass(frozen=True, eq=False)
class ChargedUsers:
    """Who took part in a step. Sensitive: it tells who contributed and who has run out.

    Attributes:
        users: those with a contribution other than zero; nobody else was charged.
        decision: what the filter decided, in the order of these users.
    """

    users: NDArray[np.int64] | list[User]
    decision: Charged


class QueryAnswerer:
    """Answers linear queries on a run, each with Gaussian noise. Not to be shared between threads.

    Args:
        run: charges the steps; its dataset fixes the guarantee, whatever the noise is.
        noise_stddev: in the units of the contributions; see ``calibrated``.
        clip_norm: contributions with a larger L2 norm are scaled down to it before the charge.
        noise: draws the noise; None for the operating system. Any generator has a seed, and
            whoever knows it knows the noise: for tests.
    """

    def __init__(
        self,
        run: Charges,
        *,
        noise_stddev: float,
        clip_norm: float | None = None,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.noise_stddev = Gaussian(noise_stddev).noise_stddev
        exponent = math.frexp(self.noise_stddev)[1]
        if abs(exponent) > _NOISE_EXPONENTS:
            raise InvalidRequest(
                f"noise_stddev is {noise_stddev}; it must lie within 2**{_NOISE_EXPONENTS} and its "
                "inverse: choose another unit for the contributions"
            )
        self._grid = exponent - _GRID_BITS  # one step is 2 to this power
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise InvalidRequest(f"clip_norm is {clip_norm}; it must be finite and positive")
        self.clip_norm = clip_norm
        self.last_charge: ChargedUsers | None = None
        self._run = run
        self._noise = ExactNoise(noise)
        self._answered = -1

    @classmethod
    def calibrated(
        cls,
        run: Charges,
        *,
        norm_budget: float,
        rho: float,
        clip_norm: float | None = None,
        noise: np.random.Generator | None = None,
    ) -> QueryAnswerer:
        """An answerer whose users may each contribute ``norm_budget`` in squared norms.

        ``rho`` is the zCDP budget of the dataset (FZ Cor. 4.7, there kappa). For "did something
        today", ``norm_budget`` is the number of days on which a user counts.
        """
        stddev = noise_for_norm_budget(norm_budget, rho)
        return cls(run, noise_stddev=stddev, clip_norm=clip_norm, noise=noise)

    def answer(self, users: ArrayLike, contributions: ArrayLike) -> Answer:
        """Charge one query and answer it.

        Users whose contribution is zero are not sent: they pay nothing, and their absence changes
        nothing. A query to which nobody contributes is answered like any other.

        Lists, arrays and the columns of pandas and polars are taken by position: the first
        contribution is that of the first user, whatever their labels say.

        Args:
            users: n distinct ids.
            contributions: (n,) or (n, d), what each user adds to the sum; finite. The columns of
                a frame are coordinates.

        Raises:
            InvalidRequest: the arguments cannot be charged; nothing was published.
            AnsweredTwice: the run gave out a step a second time.
            TurnstileError: whatever the charge raises; there is no answer then.
        """
        # Step 1.
        ids = read_users(users)
        rows = read_contributions(contributions, len(ids))
        with np.errstate(over="ignore"):
            size = float(np.abs(self._on_grid(rows)).sum())
        if size > _LARGEST_SUM:
            raise InvalidRequest(
                f"contributions are too large beside a noise of {self.noise_stddev}; clip them"
            )
        norms = row_norms(rows)
        asked = norms if self.clip_norm is None else np.minimum(norms, self.clip_norm)
        present = np.flatnonzero(norms)
        senders = select_users(ids, present)
        # Step 2.
        decision = self._run.charge(
            senders, asked[present], noise_stddev=self.noise_stddev, clip_norm=self.clip_norm
        )
        # Step 3.
        if decision.step <= self._answered:
            raise AnsweredTwice(f"step {decision.step} comes after step {self._answered}")
        self._answered = decision.step
        self.last_charge = ChargedUsers(senders, decision)
        granted = np.where(decision.admitted, decision.granted, 0.0)
        sums = _whole_sums(self._on_grid(clip_rows(rows[present], norms[present], granted)))
        # Step 4.
        stddev = Fraction(self.noise_stddev) / Fraction(2) ** self._grid
        noisy = [
            math.ldexp(total + self._noise.rounded_normal(stddev), self._grid) for total in sums
        ]
        value = np.array(noisy if rows.ndim == 2 else noisy[0])
        return Answer(decision.step, value, self.noise_stddev)

    def _on_grid(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in steps of the grid, rounded towards zero: no norm grows."""
        with np.errstate(over="ignore", under="ignore"):
            return np.trunc(np.ldexp(rows, -self._grid))

    def error_bound(self, delta: float, dimension: int = 1) -> float:
        """How far an answer is from the sum over the admitted, with probability 1 - delta at least.

        The largest error over the coordinates of one answer. With calibrated noise this is
        sqrt(norm_budget log(dimension / delta) / rho) (FZ Cor. 4.7). What the users who were not
        admitted would have added is not in it.
        """
        if not 0 < delta < 1 or dimension < 1:
            raise InvalidRequest(
                f"delta is {delta}, dimension {dimension}; 0 < delta < 1 <= dimension is needed"
            )
        return self.noise_stddev * math.sqrt(2.0 * math.log(dimension / delta))


def row_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """L2 norms of shape (n,) of numbers (n,), exactly, or of vectors (n, d), rounded up.

    Raises:
        InvalidRequest: a norm that no float64 can hold.
    """
    if rows.ndim == 1:
        return np.abs(rows)
    # Scaled by the largest entry: squares neither overflow nor vanish.
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    root = np.sqrt(np.square(scaled).sum(axis=1))
    with np.errstate(over="ignore"):
        norms = np.asarray(largest * root * (1.0 + (rows.shape[1] + 4) * _ULP))
    # Among subnormal numbers a relative margin is nothing: one step up is.
    norms = np.where(norms > 0, np.nextafter(norms, np.inf), 0.0)
    if not np.isfinite(norms).all():
        raise InvalidRequest("a contribution is too long for its norm to be a float64")
    return norms


def clip_rows(
    rows: NDArray[np.float64], norms: NDArray[np.float64], granted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rows scaled down to the granted norms, rounded down; those within them stay as they are."""
    shorter = granted < norms
    scale = np.ones_like(norms)
    scale[shorter] = granted[shorter] / norms[shorter] * (1.0 - 4 * _ULP)
    return rows * (scale if rows.ndim == 1 else scale[:, None])


def _whole_sums(rows: NDArray[np.float64]) -> list[int]:
    """The exact sum over users of whole numbers, of each coordinate."""
    columns = rows[:, np.newaxis] if rows.ndim == 1 else rows
    return [sum(map(int, column)) for column in columns.T.tolist()]
