"""Cohorts: which users are asked to take part in a step, chosen so that the accounting holds.

The theorem of the individual filter compares the releases with and without one user, i, and lets
every other user contribute the same in both (Feldman and Zrnic 2021, Theorem 4.5; docs/dp-ftrl.md).
So whether user j is asked to take part in a step may depend on

- released outputs and public facts,
- j's own data and j's own coins,

and on nothing else. In particular it must not depend on which users were admitted, halted or drawn
before, nor on how many: i's admission would then move other users from one release to another, by
far more than i is charged. A cohort of a fixed size drawn from the users who are left, and one of
the users who were not admitted lately, are unsound.

Sound cohorts are all available users, and what the functions here return. Whether a user is
available must follow the same condition.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import InvalidInput
from accounting.exact.validation import whole_number
from streams.normal_form import normal_form
from streams.schemas import User
from streams.sdk.arguments import read_users
from streams.sdk.errors import InvalidRequest
from streams.sdk.sampling import poisson_sample
from streams.wire.partitioner import user_key

_LARGEST_STEP = 2**62
_BYTES = 8


def sampled_cohort(
    users: ArrayLike,
    probability: float,
    *,
    not_private_generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Ask each user with an independent coin of that user.

    Draw once for a step. A step that was handed back is charged with the users that were drawn
    first, or given up.

    Args:
        users: n ids, of all users who are available.
        probability: of each coin.
        not_private_generator: for tests and figures that must be repeated.

    Returns:
        Positions in ``users``, increasing.

    Raises:
        InvalidRequest: no ids, or no probability.
    """
    everybody = np.ones(len(read_users(users)), dtype=np.bool_)
    try:
        return poisson_sample(everybody, probability, not_private_generator=not_private_generator)
    except InvalidInput as error:
        raise InvalidRequest(f"probability is {probability}: {error}") from error


def rotating_cohort(
    users: ArrayLike, step: int, *, period: int, key: str | bytes
) -> NDArray[np.int64]:
    """Ask the users of one of several fixed public groups, which take turns.

    The group of a user is a keyed hash of the id, modulo the number of groups. So it is the same in
    every step and after a restart, and does not change when other users come or go. A ``period`` of
    at least the ``min_separation`` of a run asks no user too soon.

    Args:
        users: n ids, of all users who are available.
        step: of the run, from 0 on.
        period: how many groups there are.
        key: any text, the same in all steps of a run. It need not be secret.

    Returns:
        Positions in ``users``, increasing.

    Raises:
        InvalidRequest: no ids, or no step, period or key.
    """
    ids = read_users(users)
    try:
        turn = whole_number("step", step, 0, _LARGEST_STEP)
        groups = whole_number("period", period, 1, _LARGEST_STEP)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    text = key.encode() if isinstance(key, str) else bytes(key)
    if not text:
        raise InvalidRequest("key is empty; it must be a text, the same in all steps of the run")
    secret = hashlib.blake2b(text).digest()
    everybody: list[User] = ids.tolist() if isinstance(ids, np.ndarray) else ids
    digests = b"".join(
        hashlib.blake2b(user_key(_known_as(user)), digest_size=_BYTES, key=secret).digest()
        for user in everybody
    )
    return np.flatnonzero(np.frombuffer(digests, dtype=">u8") % groups == turn % groups)


def _known_as(user: User) -> User:
    """An id as the service knows it: a text that can be written in two ways is one user."""
    return normal_form(user) if isinstance(user, str) else user
