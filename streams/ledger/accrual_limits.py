"""The most bytes that a record writes for accrued charges, from counts.

A record that charges an account first charges what has accrued on it (``streams.ledger.accrual``),
in every dataset that the roster is charged to, also in those that this record does not charge.
Charges of a user accrue on one roster at most; they take 4 + 8 orders in each of these datasets.
The users with accrued charges depend on when the partition changed its owner, so they cannot be
counted. Instead, all users count as members of the rosters where this is most, as far as those have
members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from streams.ledger.limits import most_written
from streams.schemas import MAX_ROSTER_WRITE_BYTES, Reason, Rejection

_FIXED = 4096  # of a dataset that is closed: names, tokens, headers
_PER_ROSTER = 512  # names, headers
_PER_ROSTER_BUDGET = 256  # the same, for each dataset it is charged to that is not charged now
_PER_CLOSED_DATASET = 512
_PER_CLOSED_RUN = 2048  # names, a token
_PER_SEPARATED_STEP = 512  # of such a run: the name of who took part in it


class Counted(NamedTuple):
    """A roster, in counts."""

    dataset: str
    run: str
    members: int
    id_bytes: int  # of the ids that are strings, in UTF-8
    orders: Mapping[str, int]  # of the policy of each dataset that it counts against, by name


def most_accrued(users: int, charged: Collection[str], rosters: Iterable[Counted]) -> int:
    """Return the most bytes of accrued charges in datasets that the record does not charge.

    Args:
        users: how many are brought up to date.
        charged: the datasets in which they are charged.
        rosters: on which they may be.
    """
    fixed, prices = 0, []
    for roster in rosters:
        others = [count for name, count in roster.orders.items() if name not in charged]
        fixed += _PER_ROSTER + _PER_ROSTER_BUDGET * len(others)
        prices.append((sum(4 + 8 * count for count in others), roster.members))
    accrued = 0
    for price, members in sorted(prices, reverse=True):
        there = min(users, members)
        accrued, users = accrued + there * price, users - there
    return fixed + accrued


def check_beside(enrolled: Counted, beside: Collection[Counted]) -> None:
    """Reject an enrolment after which a step of some roster might write too much.

    Args:
        enrolled: the roster after it.
        beside: all other rosters that share a budget with it.

    Raises:
        Rejection: TOO_LARGE.
    """
    if not beside:
        return
    rosters = [enrolled, *sorted(beside, key=lambda roster: (roster.dataset, roster.run))]
    dearest = max(sum(4 + 8 * count for count in roster.orders.values()) for roster in rosters)
    fixed = most_accrued(0, (), rosters)
    for stepping in rosters:
        written = sum(
            most_written(stepping.members, stepping.id_bytes, name, count)
            for name, count in stepping.orders.items()
        )
        if written + fixed + stepping.members * dearest <= MAX_ROSTER_WRITE_BYTES:
            continue  # as most do: to count each against all others takes long
        others = [roster for roster in rosters if roster is not stepping]
        accrued = most_accrued(stepping.members, stepping.orders, others)
        if written + accrued > MAX_ROSTER_WRITE_BYTES:
            detail = (
                f"with {enrolled.members} users here a step of run {stepping.run!r} of dataset "
                f"{stepping.dataset!r} may write {written} bytes, and {accrued} of accrued charges "
                "on other rosters that share a budget, together more than "
                f"{MAX_ROSTER_WRITE_BYTES}: {_close_first(beside)}, enrol fewer users or use more "
                "partitions"
            )
            raise Rejection(Reason.TOO_LARGE, detail)


def check_closing(
    dataset: str,
    users: int,
    datasets: int,
    separations: Collection[int],
    rosters: Collection[Counted],
) -> None:
    """Reject closing a dataset if that might write more than ``MAX_ROSTER_WRITE_BYTES``.

    Args:
        dataset: that is to be closed.
        users: how many it has.
        datasets: how many are closed, with those nested in it.
        separations: the minimum separation of each of their open runs; 0 for a run without one.
        rosters: of these runs.

    Raises:
        Rejection: TOO_LARGE.
    """
    written = _FIXED + _PER_CLOSED_DATASET * datasets + most_accrued(users, (), rosters)
    written += _PER_CLOSED_RUN * len(separations) + _PER_SEPARATED_STEP * sum(separations)
    if written > MAX_ROSTER_WRITE_BYTES:
        first = _close_first(rosters) if rosters else "close runs of it first"
        detail = (
            f"closing dataset {dataset!r} with {len(separations)} open runs may write {written} "
            f"bytes, more than {MAX_ROSTER_WRITE_BYTES}: {first}"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def _close_first(rosters: Collection[Counted]) -> str:
    """What to do about rosters; the largest is an example."""
    largest = max(rosters, key=lambda roster: (roster.members, roster.dataset, roster.run))
    return (
        f"close runs that are done first, like run {largest.run!r} of dataset "
        f"{largest.dataset!r} with its {largest.members} users"
    )
