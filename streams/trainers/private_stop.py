"""Stop a training when few users can still pay (Feldman and Zrnic, section 5).

How many users are left follows from their data, so it must not end a training. A noisy count of
them may: it is a release, which is charged.

1. Before the training every user is charged for all counts, in a run of their own: one Gaussian
   step of norm sqrt(counts). A user adds 0 or 1 to each count, so no user changes all of them
   together by more than this norm. That the training's steps come in between changes nothing: a
   mechanism that is charged in full may be interleaved with others.
2. After every so many steps, the users who were admitted to both this step and the charge are
   counted. Noise is added, exactly sampled. If the noisy count is below the threshold, the training
   ends. The counts are public, like everything that follows from them.

Halted users may be admitted again, so the counts are no running count that could be charged less.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from accounting.exact.argument_checks import positive_finite, whole_number
from accounting.exact.rounding import UP, root_toward
from accounting.release.exact_normals import ExactNormals
from streams.sdk.arguments import UsersLike, read_users
from streams.sdk.client import Turnstile
from streams.sdk.errors import InvalidRequest, RunIsClosed, invalid_requests

_GRID_BITS: Final = 16  # counts are whole, and noise is rounded to this many bits below one user
_LARGEST: Final = 2.0**24  # of the noise, which fits an int64 on the grid
_MOST: Final = 2**20


class PrivateStop:
    """Noisy counts of the users who can still pay, which end a training.

    Neighbouring datasets differ by adding or removing one user. An object serves one training, on
    one process. After a restart it charges and counts nothing: the training makes all its steps.

    Args:
        turnstile: the service.
        dataset: that of the training.
        run: a name for the run of the counts. No other run of the dataset may be open.
        users: those of the training, in the same order.
        threshold: the training ends when a noisy count is below it. Public, in users.
        noise_stddev: the standard deviation of the noise in each count, in users.
        every: the number of steps between two counts.
        counts: the largest number of counts. After the last one the training goes on to its end.
        not_private_generator: draws the noise, for tests.

    Attributes:
        counted: the noisy counts so far, with the steps after which they were made. Public.

    Raises:
        InvalidRequest: an argument is invalid, or the dataset cannot charge the counts.
        TurnstileError: any error of the charge.
    """

    def __init__(
        self,
        turnstile: Turnstile,
        dataset: str,
        run: str,
        users: UsersLike,
        *,
        threshold: float,
        noise_stddev: float,
        every: int,
        counts: int,
        not_private_generator: np.random.Generator | None = None,
    ) -> None:
        with invalid_requests():
            self.noise_stddev = positive_finite("noise_stddev", noise_stddev)
            self.threshold = positive_finite("threshold", threshold)
            self.every = whole_number("every", every, 1, _MOST)
            self.counts = whole_number("counts", counts, 1, _MOST)
        if self.noise_stddev > _LARGEST:
            raise InvalidRequest(f"noise_stddev is {noise_stddev}; it must be at most {_LARGEST}")
        self.run, self.users = run, read_users(users)
        self.charged_norm = root_toward(Fraction(self.counts), UP)
        self.counted: list[tuple[int, float]] = []
        self._normals = ExactNormals(not_private_generator)
        self._pays = self._charge(turnstile, dataset)

    def _charge(self, turnstile: Turnstile, dataset: str) -> NDArray[np.bool_] | None:
        """Return who has paid for all counts; None if an earlier process has charged them."""
        try:  # a charge of which no answer came is asked for again
            run = turnstile.run(dataset, self.run, released=-1)
        except RunIsClosed:
            return None
        norms = np.full(len(self.users), self.charged_norm)
        try:
            if any(policy.per_user_order is True for policy in (run.policy, *run.outer)):
                raise InvalidRequest(
                    f"dataset {dataset!r} binds each user to a Rényi order with its first charge: "
                    "use gdp or zcdp, or give orders to create_dataset"
                )
            charged = run.charge(
                self.users, norms, noise_stddev=self.noise_stddev, clip_norm=self.charged_norm
            )
        except InvalidRequest:  # nothing was charged, and the budget is free for another run
            run.close()
            raise
        run.close()
        return np.asarray(charged.granted >= self.charged_norm)

    def ends_after(self, step: int, admitted: NDArray[np.bool_]) -> bool:
        """Count users after a step, if a count is due and not made yet; return whether to end.

        Args:
            step: the step of the training.
            admitted: to this step, (n,), in the order of ``users``.
        """
        number, early = divmod(step + 1, self.every)
        if self._pays is None or early or not len(self.counted) < number <= self.counts:
            return False
        units = int(np.count_nonzero(admitted & self._pays)) << _GRID_BITS
        stddev = Fraction(self.noise_stddev) * 2**_GRID_BITS
        noisy = units + int(self._normals.draw(stddev, 1)[0])
        self.counted.append((step, noisy / 2**_GRID_BITS))
        return self.counted[-1][1] < self.threshold

    @property
    def stated(self) -> dict[str, Any]:
        """Return the public settings for statements, as values that JSON has.

        Every user was charged one Gaussian step of ``charged_norm`` and this noise for all counts
        together, each of which a user changes by at most 1.
        """
        names = "run", "threshold", "noise_stddev", "every", "counts", "charged_norm"
        return {name: getattr(self, name) for name in names}
