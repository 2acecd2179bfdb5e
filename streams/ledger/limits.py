"""The maxima of what one record may charge, so that every answer fits into its topic.

A record changes one balance per user, budget and order. The number of balances bounds what a worker
computes, writes to Redis and publishes for the record. The store writes large batches in pieces, so
no limit depends on a size in bytes, except that of a decision, which is one Kafka record.
"""

from __future__ import annotations

from collections.abc import Mapping

from streams.records import (
    MAX_ACCOUNTS,
    MAX_ANSWER_BYTES,
    MAX_BALANCES,
    MAX_CHARGE_USERS,
    MAX_ROSTERS,
    Reason,
    Rejection,
    Users,
)
from streams.records.users import UserIds

_FIXED = 4096  # names, tokens, headers


def check_request(users: int) -> None:
    """Check the number of users in one request.

    Raises:
        Rejection: TOO_LARGE.
    """
    if users > MAX_CHARGE_USERS:
        detail = f"the request has {users} users; it may have {MAX_CHARGE_USERS}: send several"
        raise Rejection(Reason.TOO_LARGE, detail)


def check_balances(users: int, orders: Mapping[str, int]) -> None:
    """Check the number of accounts and balances that one step changes.

    Args:
        users: the users of the charge, or the members of the roster.
        orders: for each budget that the step counts against, its number of orders (at least 1).

    Raises:
        Rejection: TOO_LARGE.
    """
    accounts, balances = users * len(orders), users * sum(orders.values())
    if accounts > MAX_ACCOUNTS or balances > MAX_BALANCES:
        detail = (
            f"{users} users have {accounts} accounts and {balances} balances in the budgets "
            f"{sorted(orders)}; a step may change {MAX_ACCOUNTS} accounts and {MAX_BALANCES} "
            "balances per partition: charge fewer users per step, use fewer orders or create the "
            "topics with more partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def check_rosters(rosters: int) -> None:
    """Check whether another roster may charge a budget that so many rosters charge.

    A user has accrued charges on one roster at most. Charging the user settles them in all budgets
    of that roster, so the number of rosters bounds what one record settles.

    Raises:
        Rejection: TOO_LARGE.
    """
    if rosters >= MAX_ROSTERS:
        detail = (
            f"{rosters} runs with a roster share this budget, and no more may: close those that "
            "are finished"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def check_decision(users: UserIds, *, clips: bool) -> None:
    """Check that a charge's decision fits into an answer.

    The decision has two bits for each user, and either the id and a reason byte, if the user is
    halted, or the granted norm. Usually that is less than the request, where a norm takes eight
    bytes. It is more where norms take fewer bytes, or where the keyed hashes of erased users are
    longer than their ids.

    Args:
        users: by the names that the decision has.
        clips: True if less than the requested norm may be granted.

    Raises:
        Rejection: TOO_LARGE.
    """
    least = 12 if clips else 0
    if users.are_integers:
        size = len(users) * max(8, least)
    elif not clips:
        strings = [user for user in users if isinstance(user, str)]
        size = 9 * (len(users) - len(strings)) + 3 * len(strings) + len("".join(strings).encode())
    else:
        size = sum(
            max(len(user.encode()) + 3 if isinstance(user, str) else 9, least) for user in users
        )
    size += _FIXED + 3 * len(users) // 2
    if size > MAX_ANSWER_BYTES:
        detail = (
            f"the decision about {len(users)} users may take {size} bytes, more than "
            f"{MAX_ANSWER_BYTES}: charge fewer users per step, or create the topics with more "
            "partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def count_of(users: Users) -> int:
    """Return the number of users in a list of ids."""
    return len(users) // 8 if isinstance(users, bytes) else len(users)
