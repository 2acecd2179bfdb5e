"""Continual monitoring: a stream of linear queries under one guarantee.

Every query asks each user for a number or a vector. The release is the sum over the users that the
filter admits, plus Gaussian noise (Feldman and Zrnic, section 4.2). With the noise of Cor. 4.7, any
number of queries, chosen from earlier releases, is mu-Gaussian DP, and rho-zCDP with
rho = mu^2 / 2. Neighbouring datasets differ by adding or removing one user. A user pays only for
the windows to which it contributes.

``Release`` is public. The admitted users, and their number, are data about users. They are kept
separately in ``last_charge``, for callers with access to such data. The number of active users can
be asked like anything else, as a query that is charged.

One step has one release. Two releases would need two charges:

1. Check everything before the charge, so that nothing can fail between the charge and the noise.
2. Charge the step. If this raises, nothing is released. After ``DecisionTimeout`` the same query
   can be asked again: it is the same charge, and no noise was drawn for it.
3. Compare the step with the last one released: one object releases no step twice.
4. Draw the noise, once.

After a restart, open the run again. A step that all partitions have decided is done: it may have
been released or not, and is never released again. A step that was interrupted has not been
released, because its charge did not return and its attempt is fenced. Complete it with the same
users and contributions, or abandon it. An answerer that records the step of a release before it
leaves can pass it (``released=``); a step that was decided and not released is then handed back as
well. Do not answer from a copy of a process (``fork``, a snapshot that is resumed twice): each copy
would release the same step, with different noise.

Contributions are rounded towards zero to a grid that is fine relative to the noise, and summed as
integers. The noise is sampled exactly and rounded to the same grid (``accounting.release``). A
release is therefore an exact Gaussian mechanism, rounded: the gaps between doubles reveal nothing
(Mironov, "On significance of the least significant bits for differential privacy", 2012). The
operating system provides the random bits. The duration of a release is not protected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import Gaussian, noise_for_norm_budget
from accounting.exact.invalid_input import quoted
from accounting.release import ExactNoise, KeySelection
from accounting.release.clipping import clip_rows, row_norms
from streams.records.users import UserIds
from streams.sdk.arguments import read_rows, read_users
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import InvalidRequest, ReleasedTwice
from streams.sdk.run import Run

_GRID_BITS = 40
"""The grid spacing is this many powers of two below the noise."""
_NOISE_EXPONENTS = 400
_LARGEST = 2.0**_NOISE_EXPONENTS
"""Larger numbers count as this one, which no budget pays for."""


@dataclass(frozen=True, eq=False)
class Release:
    """The public answer to a query.

    Attributes:
        step: the step of the run; it depends only on the number of earlier queries.
        value: the private sum, float64; shape () for numbers, (d,) for vectors.
        noise_stddev: standard deviation of the noise in each coordinate.
    """

    step: int
    value: NDArray[np.float64]
    noise_stddev: float

    def interval(self, confidence: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return lower and upper bounds of the sum over the admitted users.

        They follow from the Gaussian noise alone. The noise of the coordinates is independent, so
        the intervals of all d coordinates hold together with this probability if each holds with
        its d-th root. They do not cover the contributions of users who were halted or clipped.

        Args:
            confidence: the probability that all coordinates are covered together; above 0, below 1.

        Returns:
            Two arrays of the shape of ``value``.

        Raises:
            InvalidRequest: the confidence is out of range.
        """
        if not 0.0 < confidence < 1.0:
            raise InvalidRequest(
                f"confidence is {quoted(confidence)}; it must be above 0 and below 1"
            )
        width = self.noise_stddev * quantile_of_noise(confidence, self.value.size)
        return self.value - width, self.value + width


@dataclass(frozen=True, eq=False)
class KeyRelease(Release):
    """The public answer to a query about keys that are not known beforehand.

    Attributes:
        value: the private sum of each published key's values, (m,). Its noise is independent of the
            choice of the keys.
        keys: the numbers of the published keys, sorted.
    """

    keys: list[int]


def quantile_of_noise(confidence: float, coordinates: int) -> float:
    """Return the number of standard deviations that holds all coordinates' noise with this
    probability.
    """
    outside = -np.expm1(np.log(confidence) / max(coordinates, 1))  # of one coordinate
    return -NormalDist().inv_cdf(float(outside) / 2.0)


@dataclass(frozen=True, eq=False)
class ChargedUsers:
    """The users charged in a step. Sensitive: it reveals which users contributed and which are
    exhausted.

    Attributes:
        users: those with a contribution other than zero; no other user was charged.
        decision: the decision about them, in the order of these users.
        admitted: the part of each user's contribution that was admitted, (n,) or (n, d).
        left_out: the rest of it.
    """

    users: UserIds
    decision: StepDecision
    admitted: NDArray[np.float64]
    left_out: NDArray[np.float64]


class QueryAnswerer:
    """Answers linear queries on a run, each with Gaussian noise. Not to be shared between threads.

    Args:
        run: charges the steps; its dataset fixes the guarantee, whatever the noise is.
        noise_stddev: in the units of the contributions; see ``calibrated``.
        clip_norm: contributions with a larger L2 norm are scaled down to it before the charge.
        reserve: the share of each budget that has to remain after a charge; see ``Run.charge``.
        noise: draws the noise, for tests; None for the operating system. A party that knows a
            generator's seed knows the noise.
    """

    def __init__(
        self,
        run: Run,
        *,
        noise_stddev: float,
        clip_norm: float | None = None,
        reserve: float = 0.0,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.noise_stddev = Gaussian(noise_stddev).noise_stddev
        exponent = math.frexp(self.noise_stddev)[1]
        if abs(exponent) > _NOISE_EXPONENTS:
            raise InvalidRequest(
                f"noise_stddev is {quoted(noise_stddev)}; it must be between "
                f"2**-{_NOISE_EXPONENTS} and "
                f"2**{_NOISE_EXPONENTS}: choose another unit for the contributions"
            )
        self._grid = exponent - _GRID_BITS  # the spacing is 2**grid
        self._spread = Fraction(self.noise_stddev) / Fraction(2) ** self._grid
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise InvalidRequest(
                f"clip_norm is {quoted(clip_norm)}; it must be finite and positive"
            )
        self.clip_norm = clip_norm
        self.reserve = reserve
        self.last_charge: ChargedUsers | None = None
        self._run = run
        self._noise = ExactNoise(noise)
        self._released = -1

    @classmethod
    def calibrated(
        cls,
        run: Run,
        *,
        norm_budget: float,
        rho: float | None = None,
        clip_norm: float | None = None,
        noise: np.random.Generator | None = None,
    ) -> QueryAnswerer:
        """Return an answerer whose users may each contribute ``norm_budget`` in squared norms.

        For a query like "was the user active today", ``norm_budget`` is the number of days on which
        a user counts.

        Args:
            run: as for ``QueryAnswerer``.
            norm_budget: the sum of squared norms that a user can pay for.
            rho: the part of the dataset's budget to spend, in nats of zCDP (FZ Cor. 4.7, there
                kappa). Gaussian noise of mu-GDP has rho = mu^2 / 2. None: the whole budget of the
                dataset itself, whatever its parent budgets are.
            clip_norm: as for ``QueryAnswerer``.
            noise: as for ``QueryAnswerer``.

        Raises:
            InvalidRequest: no rho follows from the measure of the dataset: renyi or pure-dp.
        """
        if rho is None:
            rho = run.policy.row.gaussian_rho(run.policy.budget[0])
            if rho is None:
                raise InvalidRequest(
                    f"dataset {run.dataset!r} has measure {run.policy.measure}, from which no rho "
                    "follows: give rho, or use a dataset with gdp or zcdp"
                )
        stddev = noise_for_norm_budget(norm_budget, rho)
        return cls(run, noise_stddev=stddev, clip_norm=clip_norm, noise=noise)

    def answer(
        self, users: ArrayLike, contributions: ArrayLike, *, dimension: int | None = None
    ) -> Release:
        """Charge one query and answer it, once.

        Users whose contribution is zero are not sent: they pay nothing, and their absence changes
        nothing. A query without contributions is answered like any other.

        Lists, arrays and the columns of pandas and polars are read by position: the first
        contribution belongs to the first user, whatever the labels.

        Args:
            users: n distinct ids. An invalid id (of another kind than the dataset's, longer than
                256 characters, or beginning with ``erased:``) refuses the query for all users. That
                tells that it is there, so leave out such ids first (docs/query/python.md).
            contributions: (n,) or (n, d), each user's part of the sum. The columns of a frame are
                coordinates. A missing value (NaN, None, NA) counts as 0, and a number beyond
                2**400, as infinity, as 2**400. In a list, text, a ``Decimal``, a truth value, or a
                vector of another length refuses the query for all users: convert each first.
            dimension: d, if contributions are vectors. An answer then has this length also if there
                are no users.

        Raises:
            InvalidRequest: the arguments cannot be charged; nothing was published.
            ReleasedTwice: the run returned a step a second time.
            TurnstileError: any error of the charge; nothing is released then.
        """
        ids = read_users(users)
        return self._answer(ids, read_contributions(contributions, len(ids), dimension))

    def answer_keys(
        self,
        users: ArrayLike,
        contributions: ArrayLike,
        keys: Sequence[Sequence[int]],
        selection: KeySelection,
    ) -> KeyRelease:
        """Charge one query about keys that are not known beforehand, and answer it, once.

        Which keys have users is private. So the answer has the keys that are selected, with a noisy
        sum of values for each (``accounting.release.key_selection``). A user is charged for the L2
        norm of the values and of ``selection.contribution`` for each of the keys. Only users who
        are admitted in full count: one with a norm above ``clip_norm`` pays, and does not count.

        Args:
            users: n distinct ids.
            contributions: (n, g), the value of a user's j-th key in column j. The columns of
                further keys do not count.
            keys: n lists of the distinct numbers of each user's keys, at most g each.
            selection: selects keys; its noise is ``noise_stddev``.

        Raises:
            InvalidRequest: the arguments cannot be charged; nothing was published.
            TurnstileError: as ``answer``.
        """
        ids = read_users(users)
        given = read_rows("contributions", contributions)
        columns = given.shape[1] if len(ids) and given.ndim == 2 else 1
        own_values = read_contributions(given, len(ids), columns)
        self._check_keys(len(ids), columns, keys, selection)
        is_used = np.arange(columns) < np.array([len(own) for own in keys]).reshape(-1, 1)
        rows = np.zeros((len(ids), 2 * columns))
        rows[:, ::2] = np.where(is_used, selection.contribution, 0.0)
        rows[:, 1::2] = np.where(is_used, own_values, 0.0)
        step, present, admitted = self._admitted(ids, rows)
        counts: dict[int, int] = {}
        values: dict[int, int] = {}
        charged, whole = self.last_charge, self._on_grid(admitted).tolist()
        assert charged is not None
        is_whole = ~charged.left_out.any(axis=1)
        for place in np.flatnonzero(is_whole).tolist():
            row = whole[place]
            for number, key in enumerate(keys[present[place]]):
                counts[key] = counts.get(key, 0) + int(row[2 * number])
                values[key] = values.get(key, 0) + int(row[2 * number + 1])
        # Step 4.
        found = selection.selected(counts, self._grid, self._noise)
        value = np.array([self._noisy(values.get(key, 0)) for key in found])
        return KeyRelease(step, value, self.noise_stddev, found)

    def _check_keys(
        self, users: int, columns: int, keys: Sequence[Sequence[int]], selection: KeySelection
    ) -> None:
        if selection.noise_stddev != self.noise_stddev:
            raise InvalidRequest(
                f"the selection has a noise of {selection.noise_stddev} and the answerer one of "
                f"{self.noise_stddev}: give both the same"
            )
        if len(keys) != users or any(
            len(set(own)) < len(own)
            or len(own) > columns
            or not all(0 <= key < selection.universe for key in own)
            for own in keys
        ):
            raise InvalidRequest(
                f"keys has {len(keys)} lists for {users} users; each user needs a list of at most "
                f"{columns} distinct keys from 0 to below {selection.universe}"
            )

    def _answer(self, ids: UserIds, rows: NDArray[np.float64]) -> Release:
        step, _, admitted = self._admitted(ids, rows)
        sums = _whole_sums(self._on_grid(admitted))
        # Step 4.
        noisy = [self._noisy(total) for total in sums]
        value = np.array(noisy if rows.ndim == 2 else noisy[0])
        return Release(step, value, self.noise_stddev)

    def _noisy(self, total: int) -> float:
        """Return a sum in grid spacings with noise, in the units of the contributions."""
        return math.ldexp(total + self._noise.rounded_normal(self._spread), self._grid)

    def _admitted(
        self, ids: UserIds, rows: NDArray[np.float64]
    ) -> tuple[int, NDArray[np.intp], NDArray[np.float64]]:
        """Charge a step; return it, the users with a contribution, and their admitted parts."""
        # Step 1.
        norms = row_norms(rows)
        asked = norms if self.clip_norm is None else np.minimum(norms, self.clip_norm)
        present = np.flatnonzero(norms)
        senders = ids.select(present)
        # Step 2.
        decision = self._run.charge(
            senders,
            asked[present],
            noise_stddev=self.noise_stddev,
            clip_norm=self.clip_norm,
            reserve=self.reserve,
        )
        # Step 3.
        if decision.step <= self._released:
            raise ReleasedTwice(
                f"the run returned step {decision.step} after step {self._released} was released: "
                "release nothing more, and open the run again"
            )
        self._released = decision.step
        admitted = clip_rows(rows[present], decision.granted)
        self.last_charge = ChargedUsers(senders, decision, admitted, rows[present] - admitted)
        return decision.step, present, admitted

    def _on_grid(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows in grid spacings, rounded towards zero, so that no norm grows."""
        with np.errstate(over="ignore", under="ignore"):
            return np.trunc(np.ldexp(rows, -self._grid))

    def error_bound(self, delta: float, dimension: int = 1) -> float:
        """Return a bound on the error of an answer that holds with probability at least 1 - delta.

        It bounds the largest error over the coordinates of one answer, relative to the sum over
        the admitted users. With calibrated noise it is sqrt(norm_budget log(dimension / delta) /
        rho) (FZ Cor. 4.7). It does not cover the contributions of users who were not admitted.
        """
        if not 0 < delta < 1 or dimension < 1:
            raise InvalidRequest(
                f"delta is {quoted(delta)} and dimension is {quoted(dimension)}; 0 < delta < 1 <= "
                "dimension is required"
            )
        return self.noise_stddev * math.sqrt(2.0 * math.log(dimension / delta))


def read_contributions(
    contributions: object, users: int, dimension: int | None
) -> NDArray[np.float64]:
    """Return each user's part of a sum: numbers (n,), or vectors (n, dimension).

    The columns of a frame are coordinates, in their order. A number that cannot be added up is
    replaced, and a missing one is 0: a refusal would tell that there is a user with such a number.

    Raises:
        InvalidRequest: anything else.
    """
    rows = read_rows("contributions", contributions)
    if dimension is not None and (type(dimension) is not int or dimension < 1):
        raise InvalidRequest(
            f"dimension is {quoted(dimension)}; it must be a whole number, at least 1"
        )
    if not users and dimension is not None:  # an empty list does not say how long vectors are
        rows = np.empty((0, dimension))
    if rows.shape != ((users,) if dimension is None else (users, dimension)):
        raise InvalidRequest(
            f"contributions has shape {rows.shape}; with {users} users it must be ({users},), or "
            f"({users}, d) with dimension=d"
        )
    return np.clip(np.where(np.isnan(rows), 0.0, rows), -_LARGEST, _LARGEST)


def _whole_sums(rows: NDArray[np.float64]) -> list[int]:
    """Return the exact sum over users of integers, for each coordinate."""
    columns = rows[:, np.newaxis] if rows.ndim == 1 else rows
    return [sum(map(int, column)) for column in columns.T.tolist()]
