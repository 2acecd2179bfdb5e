"""Builds the content of the portal for one user: the own accounts in epsilon, and the own HALTs.

Every query is for the user of the link's claims. A dataset is not shown if its policy is unknown,
or if it has other pseudonyms than the link: the same id could belong to another person there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from streams.operations.guarantees import budget_epsilon, spent_epsilon, spent_share
from streams.records import HALT_REASONS, Policy
from streams.sdk.errors import ServiceUnavailable
from streams.web.indexes import Episode, IndexFull
from streams.web.links import Claims
from streams.web.reading import Account, NotYet, Point, RecordReader

_MOST_EPISODES = 100
_WHOLE = 1 - 1e-9


class Owners:
    """Builds the content of the portal.

    Args:
        records: of the service.
        delta: for converting odometers and budgets to epsilon.
        now: returns seconds since 1970.
    """

    def __init__(
        self, records: RecordReader, delta: float, now: Callable[[], float] = time.time
    ) -> None:
        self._records, self._delta, self._now = records, delta, now

    def content(self, claims: Claims) -> dict[str, Any]:
        """Return the content of the page for the user of a link.

        ``state`` is "ready", "away", or "reading", with the share that was read in ``done``. If
        ``is_away``, the content may be outdated: Kafka does not answer, and last did at
        ``answered``.
        """
        common: dict[str, Any] = {
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
            return {**common, "state": "reading", "done": error.done}
        except IndexFull:
            return {**common, "state": "away"}
        except ServiceUnavailable:
            return {**common, "state": "away", "is_away": True}
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
            **common,
            "state": "ready",
            "datasets": shown,
            "not_shown": len(names) - len(shown),
            "all": not claims.datasets,
            "halts_known": episodes is not None,
            "halts_since": self._records.halts_since,
        }

    def _own_policy(self, claims: Claims, dataset: str, account: Account) -> Policy | None:
        """Return the policy of a dataset, or None if the account there may be of another person."""
        policy = self._records.policy(dataset)
        if policy is None or (policy.pseudonyms or None) != claims.pseudonyms:
            return None
        if account.is_doubtful:
            return None
        if account.points:
            _, _, bound, order = account.points[-1]
            return None if spent_share(policy, bound, order) is None else policy
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
            "parents": policy.parents or [],
            "share_of": policy.share_of or None,
            "budget": budget_epsilon(policy, order, self._delta),
            "risk": policy.risk(order=order if order in policy.orders else None)._asdict(),
            "only_budget": policy.has_sampled_levels,  # no smaller epsilon is a guarantee
            "spent": self._spent(policy, account, points),
            "points": points,
            "state": self._state(policy, account, points, own),
            "halts": [] if account.is_erased else [_episode(e) for e in own[:_MOST_EPISODES]],
        }

    def _state(
        self, policy: Policy, account: Account, points: list[dict[str, Any]], own: list[Episode]
    ) -> str:
        """Return the state of an account, which is "spent" only after a HALT that says so.

        The odometer is rounded up: if it is at the budget, less than one tick may be left.
        """
        if account.is_erased:
            return "erased"
        if any(episode.exhausted for episode in own):
            return "spent"
        if self._records.is_closed(policy.dataset):
            return "closed"
        return "nearly" if points and (points[-1]["share"] or 0.0) >= _WHOLE else "open"

    def _spent(
        self, policy: Policy, account: Account, points: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Return a bound on the spending: the first tick until there is an odometer record."""
        if account.is_erased:
            return None
        if points:
            return points[-1]
        shares = zip(policy.first_tick, policy.budget, strict=True)
        return {
            "time": None,
            "epsilon": None if policy.has_sampled_levels else policy.first_epsilon(self._delta),
            "share": max(units / budget for units, budget in shares),
        }

    def _point(self, policy: Policy, point: Point) -> dict[str, Any]:
        return {
            "time": point.time,
            "epsilon": spent_epsilon(policy, point.bound, point.order, self._delta),
            "share": spent_share(policy, point.bound, point.order),
        }


_TEXTS = {reason.name: reason.to_user for reason in HALT_REASONS.values()}


def _episode(one: Episode) -> dict[str, Any]:
    return {
        **asdict(one),
        "because": _TEXTS.get(one.reason, ""),
        "refused_by": one.refused_by if one.refused_by != one.dataset else None,
    }
