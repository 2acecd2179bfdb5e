"""How much a charge may make a worker write, told from counts, so that it can be refused before.

A charge writes what it changes (kept in Redis) and what is answered (kept in Redis until it is
published). What it can come to follows from how many users it has, the bytes of those ids that are
strings, the length of the dataset's name and the number of orders. A user takes most when it is
new, its odometer rises and its norm is clipped:

    9, or 3 + id                  its id, among those that are new
    4 + 8 orders                  its slot, and what it has spent
    12 + 8 orders                 its slot, base and ticks
    1                             three bits of the decision, which is published and kept
    4                             its slot, among the participants, in a separated run
    4                             its position on another roster, if it has accrued charges there
    24                            its position and its granted norm, there
    110 + 2 names + 9 orders      its checkpoint, whose key names the dataset too
    29, or 5 + 7 id               its id there; in the key, which is JSON, a byte may take six

Halted, it takes less: its id in the decision instead of all that is charged. Where datasets are one
within the other, all this is counted for each of their budgets. The accrued charges of a user in
other datasets are written, too, and counted in ``streams.ledger.accrual_limits``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streams.schemas import (
    MAX_CHARGE_USERS,
    MAX_REQUEST_BYTES,
    MAX_ROSTER_WRITE_BYTES,
    MAX_WRITE_BYTES,
    Charge,
    Enrol,
    Reason,
    Rejection,
    User,
    Users,
)

_FIXED = 4096  # names, tokens, headers
_PER_USER = 200
_PER_ORDER = 25
_PER_ID_BYTE = 8


def most_written(users: int, id_bytes: int, name: str, orders: int) -> int:
    """An upper bound of the bytes of changes and answers together.

    Args:
        users: how many the charge has.
        id_bytes: of the ids that are strings, in UTF-8.
        name: of the dataset.
        orders: of its policy; 1 for a measure without orders.
    """
    per_user = _PER_USER + 2 * len(name) + _PER_ORDER * orders
    return _FIXED + users * per_user + _PER_ID_BYTE * id_bytes


def check_size(charge: Charge, orders: Mapping[str, int], accrued: int = 0) -> None:
    """Refuse a charge of too many users, or that might write more than ``MAX_WRITE_BYTES``.

    Args:
        charge: one step in one partition.
        orders: of the policy of each dataset that it counts against, by name.
        accrued: what is written of accrued charges on rosters, at most; see ``most_accrued``.

    Raises:
        Rejection: TOO_LARGE.
    """
    users = count_of(charge.users)
    if users > MAX_CHARGE_USERS:
        detail = f"{users} users; a charge has at most {MAX_CHARGE_USERS}: use more partitions"
        raise Rejection(Reason.TOO_LARGE, detail)
    written = _most_written(users, id_bytes(charge.users), orders)
    if written <= MAX_WRITE_BYTES < written + accrued:
        detail = (
            f"{users} users may write {written} bytes, and {accrued} bytes of accrued charges, "
            f"together more than {MAX_WRITE_BYTES}: close runs that are done first, charge fewer "
            "users per step or use more partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)
    if written > MAX_WRITE_BYTES:
        detail = (
            f"{users} users at {sum(orders.values())} orders may write {written} bytes, more than "
            f"{MAX_WRITE_BYTES}: charge fewer users a step, use more partitions or fewer orders"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def check_decision(users: NDArray[np.int64] | list[User], *, clips: bool) -> None:
    """Reject a charge whose decision could exceed the maximum answer size.

    The decision has two bits for each user, and either the id and a reason byte, if the user is
    halted, or the granted norm. Usually that is less than the request, where a norm takes eight
    bytes. It is more where norms take fewer bytes, or where the keyed hashes of erased users are
    longer than their ids.

    Args:
        users: by the names that the decision has.
        clips: whether less than was asked for may be granted.

    Raises:
        Rejection: TOO_LARGE.
    """
    least = 12 if clips else 0
    if isinstance(users, np.ndarray):
        said = len(users) * max(8, least)
    elif not clips:
        strings = [user for user in users if isinstance(user, str)]
        said = 9 * (len(users) - len(strings)) + 3 * len(strings) + len("".join(strings).encode())
    else:
        said = sum(
            max(len(user.encode()) + 3 if isinstance(user, str) else 9, least) for user in users
        )
    said += _FIXED + 3 * len(users) // 2
    if said > MAX_REQUEST_BYTES:
        detail = (
            f"the decision about {len(users)} users may take {said} bytes, more than "
            f"{MAX_REQUEST_BYTES}: charge fewer users a step, or use more partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def most_answered(members: int, clip: bool) -> int:
    """An upper bound of the bytes of the longest answer about a roster, but for names.

    It tells level and grant of each member, who is halted and who is exhausted, and the decision of
    the last step: who is halted, readmitted or exhausted by it, and, if norms are clipped, who is
    granted another level, and which.
    """
    bits = 30 if clip else 21
    return members * bits // 8 + members // 256 + _FIXED


def check_roster(
    request: Enrol, members: int, id_bytes: int, orders: Mapping[str, int], *, clip: bool
) -> None:
    """Refuse an enrolment after which a step of the roster might write or say too much.

    Args:
        request: the enrolment.
        members: of the roster, after it.
        id_bytes: of those ids of all members that are strings, in UTF-8.
        orders: of the policy of each dataset that it counts against, by name.
        clip: whether norms are clipped to what is left.

    Raises:
        Rejection: TOO_LARGE.
    """
    users = count_of(request.users)
    if users > MAX_CHARGE_USERS:
        detail = f"{users} users; {MAX_CHARGE_USERS} at most are enrolled at once: send them apart"
        raise Rejection(Reason.TOO_LARGE, detail)
    written = _most_written(members, id_bytes, orders)
    if written > MAX_ROSTER_WRITE_BYTES:
        detail = (
            f"a step of {members} users at {sum(orders.values())} orders may write {written} "
            f"bytes, more than {MAX_ROSTER_WRITE_BYTES}: use more partitions or fewer orders"
        )
        raise Rejection(Reason.TOO_LARGE, detail)
    _check_answer(members, clip)


def _check_answer(members: int, clip: bool) -> None:
    said = most_answered(members, clip)
    if said > MAX_REQUEST_BYTES:
        detail = (
            f"what is said of a roster of {members} users may take {said} bytes, more than "
            f"{MAX_REQUEST_BYTES}: use more partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def ids_written(users: Users) -> int:
    """At most what a list of ids takes."""
    return len(users) if isinstance(users, bytes) else 9 * len(users) + id_bytes(users)


def id_bytes(users: Users) -> int:
    """The bytes of those ids that are strings, in UTF-8."""
    if isinstance(users, bytes):
        return 0
    return sum(len(user.encode()) for user in users if isinstance(user, str))


def _most_written(users: int, id_bytes: int, orders: Mapping[str, int]) -> int:
    return sum(most_written(users, id_bytes, name, count) for name, count in orders.items())


def count_of(users: Users) -> int:
    """How many users a list of ids has."""
    return len(users) // 8 if isinstance(users, bytes) else len(users)
