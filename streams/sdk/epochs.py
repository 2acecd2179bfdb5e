"""Series of epochs: one dataset for each epoch of the events' own time.

An event belongs to the epoch in which it happened, whenever it is charged. Each epoch is an
ordinary dataset, so a user has a budget for the events of each epoch, and a charge to one epoch
changes nothing in another. The unit of the guarantee is then a user's events of one epoch
(docs/guarantees.md, A4). A shared parent also bounds what a user loses over all epochs.

There is no budget for a sliding window, and none that refills: what expires or returns there
depends on data, and the guarantee does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.exact.invalid_input import quoted
from streams.records import Policy
from streams.sdk.arguments import UsersLike
from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import BudgetHeld, InvalidRequest
from streams.sdk.run import Run

Period: TypeAlias = Literal["day", "week", "month"]


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"


_LABELS: Final[Mapping[str, tuple[str, Callable[[date], str]]]] = {
    "day": (r"\d{4}-\d{2}-\d{2}", date.isoformat),
    "week": (r"\d{4}-W\d{2}", _week),
    "month": (r"\d{4}-\d{2}", lambda day: day.isoformat()[:7]),
}
"""The pattern of the names of epochs, and the name of the epoch of a day."""


class Epochs:
    """A series of datasets under the same terms, one for each epoch.

    Args:
        turnstile: the client that creates and charges them.
        series: the name of the series; the dataset of epoch ``2026-W13`` is ``SERIES.2026-W13``.
        period: the length of an epoch in UTC: "day", "week" (ISO 8601, from Monday) or "month".
        policy: the terms of each dataset, as the arguments of ``Turnstile.create_dataset``. Every
            client of the series gives the same ones. With ``parents``, every charge draws on their
            budgets as well, for example on one for a user's lifetime.

    Raises:
        InvalidRequest: for another period.
    """

    def __init__(
        self, turnstile: Turnstile, series: str, *, period: Period = "week", **policy: Any
    ) -> None:
        if period not in get_args(Period):
            raise InvalidRequest(
                f"period is {quoted(period)}; it must be one of {get_args(Period)}. Budgets of "
                "sliding windows and budgets that refill are refused: what expires depends on "
                "data, and one event then changes all later releases (docs/guarantees.md#renewal)"
            )
        self._turnstile, self._series, self._policy = turnstile, series, policy
        self._pattern, self._label = _LABELS[period]

    def of(self, times: npt.ArrayLike) -> npt.NDArray[np.str_]:
        """Return the epoch of each event.

        Args:
            times: when the events happened, in UTC, as numpy's ``datetime64`` or text that it
                reads. The time at which an event arrives or is charged must not be used: it would
                depend on what else is processed.

        Raises:
            InvalidRequest: for other times, or missing ones.
        """
        given = np.asarray(times)
        if given.dtype.kind not in "MUO":
            raise InvalidRequest(
                f"times are {given.dtype} numbers: convert them, seconds since 1970 for example by "
                'np.asarray(times).astype("datetime64[s]")'
            )
        try:
            days = given.astype("datetime64[D]")
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"times must be datetime64 in UTC: {error}") from error
        found, at = np.unique(days, return_inverse=True)
        dates = found.tolist()
        if not all(isinstance(day, date) for day in dates):
            raise InvalidRequest("times must be in the years 1 to 9999, and none may be missing")
        labels = np.array([self._label(day) for day in dates], dtype=np.str_)
        return labels[at].reshape(days.shape)

    def dataset(self, epoch: str) -> str:
        """Return the name of the dataset of an epoch, without creating it.

        Raises:
            InvalidRequest: it is no name of an epoch of this period.
        """
        if not re.fullmatch(self._pattern, epoch):
            raise InvalidRequest(f"epoch is {quoted(epoch)}; it must have the form {self._pattern}")
        return f"{self._series}.{epoch}"

    def create(self, epoch: str) -> Policy:
        """Create the dataset of an epoch, or confirm that it exists under these terms.

        Raises:
            PolicyChanged: it exists under other terms, which never change.
            InvalidRequest: the terms make no policy.
        """
        return self._turnstile.create_dataset(self.dataset(epoch), **self._policy)

    def run(self, epoch: str, name: str, **options: Any) -> Run:
        """Create the dataset of an epoch if necessary, and open a run of it.

        Args:
            epoch: its name.
            name: of the run.
            options: as for ``Turnstile.run``, which lists the errors.
        """
        self.create(epoch)
        return self._turnstile.run(self.dataset(epoch), name, **options)

    def charge(
        self, query: str, contributions: Mapping[str, tuple[UsersLike, npt.ArrayLike]], **step: Any
    ) -> dict[str, StepDecision]:
        """Charge one release over several epochs, each of them for its own events.

        A user's contribution is the sum over the epochs that admit the user. Clip the part of each
        epoch by itself, to the norm that is granted there, and add the noise once, to the sum of
        all. The same call again returns the same decisions, until ``close``.

        Args:
            query: the name of the release, and of its run in each epoch. A run has one step.
            contributions: by epoch, the users with events there and the norms of these events.
            step: the mechanism, as for ``Run.charge``, which lists the errors.

        Returns:
            The decision of each epoch.

        Raises:
            BudgetHeld: another query or run holds a budget. Epochs that come before, in the order
                of their names, may be charged.
        """
        datasets = {(self.dataset(epoch), query) for epoch in contributions}
        decisions = {}
        for epoch in sorted(contributions):
            try:
                run = self.run(epoch, query, released=-1)
            except BudgetHeld as error:
                # The epochs' runs of one query follow each other on a budget that they share.
                if error.holder not in datasets:
                    raise
                run = self.run(epoch, query, released=-1, take_over=True)
            users, norms = contributions[epoch]
            decisions[epoch] = run.charge(users, norms, **step)
        return decisions

    def close(self, query: str, epochs: Iterable[str]) -> None:
        """Close the runs of a query permanently, after its release.

        Raises:
            RequestRejected: an epoch does not exist.
        """
        for epoch in sorted(epochs):
            self._turnstile.close_run(self.dataset(epoch), query)
