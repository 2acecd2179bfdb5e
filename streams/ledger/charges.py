"""Checks of one charge before anything changes: its mechanism, its users, its norms.

Every function raises ``Rejection`` for the first problem that it finds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accounting import Mechanism
from streams.ledger.index import UNKNOWN
from streams.ledger.policies import mechanism_of
from streams.records import ERASED_INTEGER, Charge, Policy, Reason, Rejection, User
from streams.records.packing import unpack_norms
from streams.records.users import UserIds


def check_charge(
    charge: Charge, held: Sequence[tuple[Policy, User | None]]
) -> tuple[UserIds, NDArray[np.float64], Mechanism]:
    """Check a charge as far as no accounts are needed.

    Args:
        charge: one step in one partition.
        held: of every dataset whose budget it counts against, that which is charged first, the
            policy and the first user in this partition, if it has one.

    Returns:
        The users, their norms and the mechanism.

    Raises:
        Rejection: LENGTH_MISMATCH to NORM_ABOVE_CLIP, the first that applies.
    """
    users, norms = UserIds.unpack(charge.users), unpack_norms(charge.norms)
    if len(norms) != len(users):
        raise Rejection(Reason.LENGTH_MISMATCH, f"{len(users)} users, but {len(norms)} norms")
    mechanism = mechanism_of(charge.mechanism, charge.scale, *(policy for policy, _ in held))
    for policy, first in held:
        check_kinds(policy, first, users)
    check_norms(norms, charge.clip_norm)
    return users, norms, mechanism


def check_once(users: UserIds, slots: NDArray[np.int64]) -> None:
    """Check that no known user appears twice.

    Args:
        users: of the charge.
        slots: of these users; UNKNOWN for those never seen.

    Raises:
        Rejection: DUPLICATE_USER.
    """
    ordered = np.sort(slots.astype(np.int32))  # half as long, sorted in half the time
    repeated = ordered[1:] == ordered[:-1]
    if not repeated.any():
        return
    twice = ordered[1:][repeated & (ordered[1:] != UNKNOWN)]
    if len(twice):
        first = int(np.flatnonzero(np.isin(slots, twice))[0])
        detail = f"user {plain(users[first])!r} appears twice in this step"
        raise Rejection(Reason.DUPLICATE_USER, detail)


def check_no_member(users: UserIds, slots: NDArray[np.int64], members: NDArray[np.int64]) -> None:
    """Check that no user is a member of the roster.

    Args:
        users: to be enrolled.
        slots: of these users; UNKNOWN for those never seen.
        members: the slots of all members.

    Raises:
        Rejection: DUPLICATE_USER.
    """
    repeated = np.isin(slots, members)
    if repeated.any():
        user = plain(users[int(repeated.argmax())])
        detail = f"user {user!r} is a member already, at another position"
        raise Rejection(Reason.DUPLICATE_USER, detail)


def check_new_users(
    users: UserIds,
    partition: int,
    partitions: int,
    erased: Collection[str],
) -> None:
    """Check new users; known users were checked when they were new.

    Args:
        users: the new users.
        partition: the one that charges them.
        partitions: P of the topic.
        erased: keyed hashes of erased users, which belong to no partition.

    Raises:
        Rejection: DUPLICATE_USER or WRONG_PARTITION.
    """
    if users.has_duplicates():
        raise Rejection(Reason.DUPLICATE_USER, "a user appears twice in this step")
    if not users.are_integers:
        users = UserIds([user for user in users if user not in erased])
    check_homes(users, partition, partitions)


def check_kinds(policy: Policy, first: User | None, users: UserIds) -> None:
    """Check that these ids are of the kinds that the dataset has.

    Args:
        policy: of the dataset.
        first: its first user in this partition, if it has one.
        users: of the charge.

    Raises:
        Rejection: MIXED_USERS.
    """
    allowed = policy.user_ids
    if allowed == "mixed" or not len(users):
        return
    kind = _kind(users[0] if first is None else first) if allowed == "one-kind" else allowed
    if users.are_integers:
        strange = None if kind == "integer" else users[0]
    else:
        strange = next((user for user in users if _kind(user) != kind), None)
    if strange is not None:
        detail = (
            f"user {strange!r} is of kind {_kind(strange)}, those of dataset {policy.dataset!r} "
            f"are of kind {kind} (user_ids: {allowed}): one person must not have two budgets"
        )
        raise Rejection(Reason.MIXED_USERS, detail)


def check_norms(norms: NDArray[np.float64], clip_norm: float | None) -> None:
    """Check that norms are finite, not negative and at most ``clip_norm``, itself such a number.

    Raises:
        Rejection: INVALID_NORM or NORM_ABOVE_CLIP.
    """
    if clip_norm is not None and not (0 <= clip_norm < np.inf):
        raise Rejection(Reason.INVALID_NORM, f"clip_norm {clip_norm} is not a finite number >= 0")
    if not len(norms):
        return
    largest = norms.max()
    if not (norms.min() >= 0 and largest < np.inf):  # NaN propagates through both
        position = int(np.flatnonzero(~((norms >= 0) & (norms < np.inf)))[0])
        norm = norms[position].item()
        detail = f"norm {norm} at position {position} is not a finite number >= 0"
        raise Rejection(Reason.INVALID_NORM, detail)
    if clip_norm is not None and largest > clip_norm:
        position = int(norms.argmax())
        detail = (
            f"norm {norms[position].item()} at position {position} is above clip_norm {clip_norm}: "
            "clip the contribution before it is charged"
        )
        raise Rejection(Reason.NORM_ABOVE_CLIP, detail)


def check_homes(users: UserIds, partition: int, partitions: int) -> None:
    """Check that all users live in this partition.

    Raises:
        Rejection: WRONG_PARTITION.
    """
    homes = users.homes(partitions)
    strangers = np.flatnonzero(homes != partition)
    if len(strangers):
        first = int(strangers[0])
        detail = (
            f"user {plain(users[first])!r} lives in partition {int(homes[first])} "
            f"of {partitions}, not in {partition}"
        )
        raise Rejection(Reason.WRONG_PARTITION, detail)


def _kind(user: User) -> Literal["integer", "string"]:
    """Return the kind of an id, or of the id that a keyed hash has taken the place of."""
    is_string = isinstance(user, str) and not user.startswith(ERASED_INTEGER)
    return "string" if is_string else "integer"


def plain(user: User | np.int64) -> User:
    """Return an id as a plain integer or string, for texts."""
    return user.item() if isinstance(user, np.int64) else user
