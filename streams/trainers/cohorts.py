"""Which users take part in a step: cohorts, and ways to draw batches, that the accounting covers.

The theorem of the individual filter compares the releases with and without one user, i, and lets
every other user contribute the same in both (Feldman and Zrnic 2021, Theorem 4.5; docs/dp-ftrl.md).
So whether user j is asked to take part in a step may depend on

- released outputs and public facts,
- j's own data and j's own coins,

and on nothing else. In particular it must not depend on which users, or how many, were admitted,
halted or drawn before. Otherwise i's admission would move other users from one release to another,
by far more than i is charged. A cohort of a fixed size drawn from the users who are left is
unsound, and so is one of the users who were not admitted lately.

Sound cohorts are all available users, and those that the functions here return. Whether a user is
available must follow the same condition.

Of the ways to draw batches only Poisson sampling is accepted. The charged cost of a sampled step is
proven for users who are drawn independently, each with the charged rate. Other ways spend more than
is counted, often by orders of magnitude; `check_sampling` rejects them by name.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import InvalidInput
from accounting.exact.validation import whole_number
from streams.records import User
from streams.records.users import normal_form, user_key
from streams.sdk.arguments import read_users
from streams.sdk.errors import InvalidRequest
from streams.sdk.roster_steps import poisson_sample

_LARGEST_STEP = 2**62
_BYTES = 8


def sampled_cohort(
    users: ArrayLike,
    probability: float,
    *,
    not_private_generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Return the users for whom an independent coin of that user comes up.

    Draw once for a step. A step that was handed back is charged with the users that were drawn
    first, or given up.

    Args:
        users: n ids, of all users who are available.
        probability: of each coin.
        not_private_generator: for tests and figures that must be repeated.

    Returns:
        Positions in ``users``, increasing.

    Raises:
        InvalidRequest: an id or the probability is invalid.
    """
    available = np.ones(len(read_users(users)), dtype=np.bool_)
    try:
        return poisson_sample(available, probability, not_private_generator=not_private_generator)
    except InvalidInput as error:
        raise InvalidRequest(f"probability is {probability}: {error}") from error


def rotating_cohort(
    users: ArrayLike, step: int, *, period: int, key: str | bytes
) -> NDArray[np.int64]:
    """Return the users of one of several fixed public groups, which take turns.

    The group of a user is a keyed hash of the id, modulo the number of groups. So it is the same
    in every step and after a restart, and does not change when other users come or go. If
    ``period`` is at least the ``min_separation`` of a run, no user is asked too soon.

    Args:
        users: n ids, of all users who are available.
        step: of the run, from 0.
        period: the number of groups.
        key: any text, the same in all steps of a run. It need not be secret.

    Returns:
        Positions in ``users``, increasing.

    Raises:
        InvalidRequest: an id, the step, the period or the key is invalid.
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
    digests = b"".join(
        hashlib.blake2b(user_key(_known_as(user)), digest_size=_BYTES, key=secret).digest()
        for user in ids
    )
    return np.flatnonzero(np.frombuffer(digests, dtype=">u8") % groups == turn % groups)


def _known_as(user: User) -> User:
    """Return an id as the service knows it: strings in normal form."""
    return normal_form(user) if isinstance(user, str) else user


_UNSOUND: Final = {
    "fixed": (
        "a batch of a fixed size is not a Poisson sample: it costs more at the same rate, and more "
        "again if neighbouring datasets differ by replacing a user"
    ),
    "shuffled": (
        "batches of shuffled passes are not amplified as Poisson samples are (arXiv 2411.04205): "
        "a user in one batch of a pass is in no other batch"
    ),
    "weighted": (
        "with weights some users are drawn more often than at the charged rate: their real cost "
        "exceeds the charge by any factor"
    ),
    "truncated": (
        "a Poisson sample cut to a largest size depends on how many other users were drawn, so "
        "users are not independent any more. Large samples are computed in parts instead"
    ),
    "padded": (
        "a sample filled up to a size depends on how many other users were drawn, so users are "
        "not independent any more"
    ),
    "sequential": "without coins there is no amplification: charge sampling_rate=1",
    "redrawn": (
        "a sample that is drawn again, or a step that is skipped, because of which users were "
        "drawn is conditioned on all users' coins, so users are not independent any more"
    ),
    "drawn-users": (
        "a roster of the users who were drawn charges them the amplified cost only when drawn: "
        "enrol all users, who are charged at every step"
    ),
}
_NAMES: Final = {
    "fixed-size": "fixed",
    "fixed_size": "fixed",
    "rejection": "redrawn",
    "shuffle": "shuffled",
    "uniform": "fixed",
    "without-replacement": "fixed",
}


def check_sampling(sampling: object) -> None:
    """Check that batches are Poisson samples; otherwise raise with the reason.

    Raises:
        InvalidRequest: another way to draw batches, or an unknown name.
    """
    if sampling == "poisson":
        return
    reason = _UNSOUND.get(_NAMES.get(str(sampling), str(sampling)))
    if reason is None:
        raise InvalidRequest(f"sampling is {sampling!r}; it must be 'poisson'")
    raise InvalidRequest(f"sampling is {sampling!r}, and {reason}. Use sampling='poisson'")
