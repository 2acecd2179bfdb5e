"""Which users take part in a step: cohorts, and ways to draw batches, that the accounting covers.

The theorem of the individual filter compares the releases with and without one user, i, and lets
every other user contribute the same in both (Feldman and Zrnic 2021, Theorem 4.5; docs/dp-ftrl.md).
So whether user j is asked to take part in a step may depend on released outputs and public facts,
and on j's own data and coins. It must not depend on which users, or how many, were admitted, halted
or drawn before: i's admission would then move other users from one release to another, by far more
than i is charged. A cohort of a fixed size drawn from the users who are left is unsound, and so is
one of the users who were not admitted lately.

Sound cohorts are all available users, those for whom an independent coin comes up, and those of
`rotating_cohort`. Whether a user is available must follow the same condition.

Batches are drawn by Poisson sampling alone. Batches of a fixed size, shuffled passes, weights,
samples that are cut, padded or drawn again, and rosters of the drawn users spend more than is
counted, often by orders of magnitude (arXiv 2411.04205 for shuffled passes).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting.exact.argument_checks import whole_number
from streams.records.users import normal_form, user_key
from streams.sdk.arguments import UsersLike, read_users
from streams.sdk.errors import InvalidRequest, invalid_requests

_LARGEST_STEP = 2**62
_BYTES = 8


def rotating_cohort(
    users: ArrayLike, step: int, *, period: int, key: str | bytes
) -> NDArray[np.int64]:
    """Return the users of one of several fixed public groups, which take turns.

    The group of a user is a keyed hash of the id, modulo the number of groups. So it is the same
    in every step and after a restart, and does not change when other users come or go. If
    ``period`` is at least the ``min_separation`` of a run, no user is asked too soon.

    Args:
        users: n ids, of all users who are available.
        step: the step of the run, from 0.
        period: the number of groups.
        key: any text, the same in all steps of a run. It need not be secret.

    Returns:
        Positions in ``users``, increasing.

    Raises:
        InvalidRequest: an id, the step, the period or the key is invalid.
    """
    with invalid_requests():
        turn = whole_number("step", step, 0, _LARGEST_STEP)
    return np.flatnonzero(rotating_groups(users, period=period, key=key) == turn % period)


def rotating_groups(
    users: UsersLike, *, period: int, key: str | bytes
) -> NDArray[np.unsignedinteger]:
    """Return the group of each user, (n,), from 0 to ``period`` - 1, as for `rotating_cohort`.

    Raises:
        InvalidRequest: an id, the period or the key is invalid.
    """
    ids = read_users(users)
    with invalid_requests():
        groups = whole_number("period", period, 1, _LARGEST_STEP)
    text = key.encode() if isinstance(key, str) else bytes(key)
    if not text:
        raise InvalidRequest("key is empty; it must be a text, the same in all steps of the run")
    secret = hashlib.blake2b(text).digest()
    known = (normal_form(user) if isinstance(user, str) else user for user in ids)  # to the service
    digests = b"".join(
        hashlib.blake2b(user_key(user), digest_size=_BYTES, key=secret).digest() for user in known
    )
    return np.asarray(np.frombuffer(digests, dtype=">u8") % groups)
