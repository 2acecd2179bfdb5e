"""How much is written at most of what users owe on rosters, told from counts.

Whoever touches an account brings it up to date (``streams.ledger.arrears``), in every dataset that
the roster is charged to, those that are not charged now as well. A user is in arrears on one roster
at most, and then takes 4 + 8 orders in each of these datasets. Who is in arrears is not asked: that
differs with who holds the partition. So all users are taken to be on those rosters where this is
most, as far as these have members.
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
_PER_STEP_APART = 512  # of such a run: the name of who took part in it


class Counted(NamedTuple):
    """A roster, in counts."""

    dataset: str
    run: str
    members: int
    id_bytes: int  # of the ids that are strings, in UTF-8
    orders: Mapping[str, int]  # of the policy of each dataset that it counts against, by name


def most_owed(users: int, charged: Collection[str], rosters: Iterable[Counted]) -> int:
    """An upper bound of the bytes that say what users owed, where they are not charged now.

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
    owed = 0
    for price, members in sorted(prices, reverse=True):
        there = min(users, members)
        owed, users = owed + there * price, users - there
    return fixed + owed


def check_beside(enrolled: Counted, beside: Collection[Counted]) -> None:
    """Refuse an enrolment after which a step of some roster might write too much.

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
    fixed = most_owed(0, (), rosters)
    for stepping in rosters:
        written = sum(
            most_written(stepping.members, stepping.id_bytes, name, count)
            for name, count in stepping.orders.items()
        )
        if written + fixed + stepping.members * dearest <= MAX_ROSTER_WRITE_BYTES:
            continue  # as most do: to count each against all others takes long
        others = [roster for roster in rosters if roster is not stepping]
        owed = most_owed(stepping.members, stepping.orders, others)
        if written + owed > MAX_ROSTER_WRITE_BYTES:
            detail = (
                f"with {enrolled.members} users here a step of run {stepping.run!r} of dataset "
                f"{stepping.dataset!r} may write {written} bytes, and {owed} of what its users owe "
                "on other rosters that share a budget, together more than "
                f"{MAX_ROSTER_WRITE_BYTES}: {_close_first(beside)}, enrol fewer users or use more "
                "partitions"
            )
            raise Rejection(Reason.TOO_LARGE, detail)


def check_closing(
    dataset: str, users: int, datasets: int, apart: Collection[int], rosters: Collection[Counted]
) -> None:
    """Refuse to close a dataset if that might write more than ``MAX_ROSTER_WRITE_BYTES``.

    Args:
        dataset: that is to be closed.
        users: how many it has.
        datasets: how many are closed, with those nested in it.
        apart: of each of their runs that are open, how many steps it keeps participations apart;
            0 if it does not.
        rosters: of these runs.

    Raises:
        Rejection: TOO_LARGE.
    """
    written = _FIXED + _PER_CLOSED_DATASET * datasets + most_owed(users, (), rosters)
    written += _PER_CLOSED_RUN * len(apart) + _PER_STEP_APART * sum(apart)
    if written > MAX_ROSTER_WRITE_BYTES:
        first = _close_first(rosters) if rosters else "close runs of it first"
        detail = (
            f"to close dataset {dataset!r} with {len(apart)} open runs may write {written} bytes, "
            f"more than {MAX_ROSTER_WRITE_BYTES}: {first}"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def _close_first(rosters: Collection[Counted]) -> str:
    """What to do about rosters; the largest is an example."""
    largest = max(rosters, key=lambda roster: (roster.members, roster.dataset, roster.run))
    return (
        f"close runs that are done first, like run {largest.run!r} of dataset "
        f"{largest.dataset!r} with its {largest.members} users"
    )
