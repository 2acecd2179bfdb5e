"""Builds the content of the portal for one user: the own accounts in epsilon, and the own HALTs.

Every query is for the user of the link's claims. A dataset is not shown if its policy is unknown,
or if it has other pseudonyms than the link: the same id could belong to another person there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from streams.operations.guarantees import budget_epsilon, spent_epsilon, spent_share
from streams.operations.status import DatasetStatus
from streams.records import HALT_REASONS, Policy
from streams.web.links import Claims
from streams.web.record_reader import RecordReader
from streams.web.user_records import Account, Episode, Point

_MOST_EPISODES = 100
_WHOLE = 1 - 1e-9


class Owners:
    """Builds the content of the portal.

    Args:
        delta: for converting odometers and budgets to epsilon.
        now: returns seconds since 1970.
    """

    def __init__(
        self, reader: RecordReader, delta: float, now: Callable[[], float] = time.time
    ) -> None:
        self._reader, self._delta, self._now = reader, delta, now

    def content(self, claims: Claims) -> dict[str, Any]:
        """Return the content of the page for the user of a link.

        ``state`` is "ready", or "reading", with the share that was read in ``done``. If
        ``is_away``, Kafka does not answer, and the content may be older than ``as_of``.
        """
        records = self._reader.records
        common: dict[str, Any] = {
            "user": str(claims.user) if claims.pseudonyms is None else None,
            "ends": claims.ends,
            "delta": self._delta,
            "now": self._now(),
            "as_of": self._reader.as_of,
            "is_away": self._reader.is_away,
        }
        own = records.of(claims.user)
        if own is None:
            return {**common, "state": "reading", "done": records.done}
        names = list(claims.datasets)
        names = names or sorted({*own.accounts, *(one.dataset for one in own.episodes)})
        shown = []
        for name in names:
            account, dataset = own.accounts.get(name, Account()), self._reader.datasets.get(name)
            if dataset is not None and _is_own(claims, dataset.policy, account):
                episodes = [one for one in own.episodes if one.dataset == name]
                shown.append(self._dataset(dataset, account, episodes))
        return {
            **common,
            "state": "ready",
            "datasets": shown,
            "not_shown": len(names) - len(shown),
            "all": not claims.datasets,
            "halts_since": records.halts_since,
        }

    def _dataset(
        self, dataset: DatasetStatus, account: Account, episodes: list[Episode]
    ) -> dict[str, Any]:
        policy = dataset.policy
        points = [self._point(policy, point) for point in account.points]
        order = account.points[-1].order if account.points else None
        return {
            "dataset": policy.dataset,
            "measure": policy.measure,
            "parents": policy.parents or [],
            "share_of": policy.share_of or None,
            "budget": budget_epsilon(policy, order, self._delta),
            "risk": policy.risk(order=order if order in policy.orders else None)._asdict(),
            "only_budget": policy.has_sampled_levels,  # no smaller epsilon is a guarantee
            "spent": None if account.is_erased else (points or [self._first_tick(policy)])[-1],
            "points": points,
            "state": _state(account, points, episodes, is_closed=dataset.closed),
            "halts": [] if account.is_erased else [_halts(e) for e in episodes[:_MOST_EPISODES]],
        }

    def _point(self, policy: Policy, point: Point) -> dict[str, Any]:
        return {
            "time": point.time,
            "epsilon": spent_epsilon(policy, point.bound, point.order, self._delta),
            "share": spent_share(policy, point.bound, point.order),
        }

    def _first_tick(self, policy: Policy) -> dict[str, Any]:
        """Return the bound on the spending of a user without an odometer record."""
        shares = zip(policy.first_tick, policy.budget, strict=True)
        return {
            "time": None,
            "epsilon": None if policy.has_sampled_levels else policy.first_epsilon(self._delta),
            "share": max(units / budget for units, budget in shares),
        }


def _is_own(claims: Claims, policy: Policy, account: Account) -> bool:
    """Return whether an account is of the link's user, and its bound of this policy."""
    if (policy.pseudonyms or None) != claims.pseudonyms or account.is_doubtful:
        return False
    last = account.points[-1:]
    return all(spent_share(policy, point.bound, point.order) is not None for point in last)


def _state(
    account: Account, points: list[dict[str, Any]], episodes: list[Episode], *, is_closed: bool
) -> str:
    """Return the state of an account, which is "spent" only after a HALT that says so.

    The odometer is rounded up: if it is at the budget, less than one tick may be left.
    """
    if account.is_erased:
        return "erased"
    if any(episode.exhausted for episode in episodes):
        return "spent"
    if is_closed:
        return "closed"
    return "nearly" if points and points[-1]["share"] >= _WHOLE else "open"


_TEXTS = {reason.name: reason.to_user for reason in HALT_REASONS.values()}


def _halts(one: Episode) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(one),
        "because": _TEXTS.get(one.reason, ""),
        "refused_by": one.refused_by if one.refused_by != one.dataset else None,
    }
