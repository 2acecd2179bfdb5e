"""What one owner is shown: the own accounts, in epsilon, and the steps that were without the owner.

Everything is asked for by one user, that of the claims, and nothing here knows another one. Where
the policy of a dataset is not known, or knows users by other pseudonyms than the link, nothing of
it is shown: the same id would be somebody else there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from streams.operations.guarantees import (
    budget_epsilon,
    spent_epsilon,
    spent_share,
)
from streams.schemas import Policy, User
from streams.sdk.errors import ServiceUnavailable
from streams.web.halt_index import Episode
from streams.web.links import Claims
from streams.web.odometer_index import IndexFull
from streams.web.reading import Account, NotYet, Point

_MOST_EPISODES = 100
_WHOLE = 1 - 1e-9


class Records(Protocol):
    """What ``Reader`` offers."""

    @property
    def as_of(self) -> float | None:
        """Up to when all is known."""

    @property
    def is_away(self) -> bool:
        """Whether Kafka did not answer the last request."""

    @property
    def answered(self) -> float | None:
        """When Kafka last answered."""

    @property
    def halts_since(self) -> float | None:
        """From when on all steps are known that somebody was left out of."""

    def policy(self, dataset: str) -> Policy | None:
        """The policy of a dataset."""

    def is_closed(self, dataset: str) -> bool:
        """Whether nothing is charged to it any more."""

    def accounts(self, user: User, datasets: Collection[str]) -> dict[str, Account]:
        """What a user has spent at most."""

    def episodes(self, user: User) -> list[Episode]:
        """What a user was left out of."""


class Owners:
    """Tells what the records say of one user.

    Args:
        records: of the service.
        delta: at which epsilons are told.
        now: seconds since 1970.
    """

    def __init__(
        self, records: Records, delta: float, now: Callable[[], float] = time.time
    ) -> None:
        self._records, self._delta, self._now = records, delta, now

    def told(self, claims: Claims) -> dict[str, Any]:
        """What the owner of a link is shown.

        ``state`` is "ready", or "reading" with how much was read in ``done``, or "away". If
        ``is_away``, what is shown may be old: Kafka does not answer, and last did at ``answered``.
        """
        told: dict[str, Any] = {
            "user": str(claims.user) if claims.pseudonyms is None else None,
            "ends": claims.ends,
            "delta": self._delta,
            "now": self._now(),
            "as_of": self._records.as_of,
            "is_away": self._records.is_away,
            "answered": self._records.answered,
        }
        try:
            accounts = self._records.accounts(claims.user, claims.datasets)
        except NotYet as error:
            return {**told, "state": "reading", "done": error.done}
        except IndexFull:
            return {**told, "state": "away"}
        except ServiceUnavailable:
            return {**told, "state": "away", "is_away": True}
        try:
            episodes = self._records.episodes(claims.user)
        except NotYet:
            episodes = None
        names = list(claims.datasets) or sorted({*accounts, *(e.dataset for e in episodes or ())})
        found = {name: accounts.get(name, Account()) for name in names}
        shown = [
            self._dataset(policy, account, episodes)
            for name, account in found.items()
            if (policy := self._own_policy(claims, name, account)) is not None
        ]
        return {
            **told,
            "state": "ready",
            "datasets": shown,
            "not_shown": len(names) - len(shown),
            "all": not claims.datasets,
            "halts_known": episodes is not None,
            "halts_since": self._records.halts_since,
        }

    def _own_policy(self, claims: Claims, dataset: str, account: Account) -> Policy | None:
        """The policy of a dataset, if it is known for sure what the user of the link has there."""
        policy = self._records.policy(dataset)
        if policy is None or (policy.pseudonyms or None) != claims.pseudonyms:
            return None
        if account.is_doubtful:
            return None
        if account.points:
            last = self._point(policy, account.points[-1])
            return None if last["epsilon"] is None else policy  # of another policy than this one
        return policy

    def _dataset(
        self, policy: Policy, account: Account, episodes: list[Episode] | None
    ) -> dict[str, Any]:
        points = [self._point(policy, point) for point in account.points]
        order = account.points[-1].order if account.points else None
        own = [one for one in episodes or () if one.dataset == policy.dataset]
        return {
            "dataset": policy.dataset,
            "measure": policy.measure,
            "within": policy.within or None,
            "budget": budget_epsilon(policy, order, self._delta),
            "spent": self._spent(policy, account, points),
            "points": points,
            "state": self._state(policy, account, points, own),
            "halts": [] if account.is_forgotten else [_episode(e) for e in own[:_MOST_EPISODES]],
        }

    def _state(
        self, policy: Policy, account: Account, points: list[dict[str, Any]], own: list[Episode]
    ) -> str:
        """How it stands: "spent" only where a HALT says so.

        The odometer is rounded up. Where it is at the budget, up to an increment may be left.
        """
        if account.is_forgotten:
            return "forgotten"
        if any(episode.exhausted for episode in own):
            return "spent"
        if self._records.is_closed(policy.dataset):
            return "closed"
        return "nearly" if points and (points[-1]["share"] or 0.0) >= _WHOLE else "open"

    def _spent(
        self, policy: Policy, account: Account, points: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """At most so much; before there is a checkpoint, that is the first increment."""
        if account.is_forgotten:
            return None
        if points:
            return points[-1]
        shares = zip(policy.first_increment, policy.budget, strict=True)
        return {
            "time": None,
            "epsilon": policy.first_epsilon(self._delta),
            "share": max(units / budget for units, budget in shares),
        }

    def _point(self, policy: Policy, point: Point) -> dict[str, Any]:
        return {
            "time": point.time,
            "epsilon": spent_epsilon(policy, point.bound, point.order, self._delta),
            "share": spent_share(policy, point.bound, point.order),
        }


def _episode(one: Episode) -> dict[str, Any]:
    return {
        "run": one.run,
        "first": one.first,
        "last": one.last,
        "began": one.began,
        "ended": one.ended,
        "times": one.times,
        "from_there_on": one.is_roster,
        "reason": one.reason,
        "exhausted": one.exhausted,
        "refused_by": one.refused_by if one.refused_by != one.dataset else None,
    }
