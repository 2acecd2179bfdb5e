"""Pseudonyms of users, which only the holder of the key can make: the log never contains ids.

A pseudonym is an integer: the first 8 bytes of a keyed BLAKE2b hash of the id as text. So 1 and "1"
are one user, as are two spellings of a string that have the same normal form. A reader of the log
without the key learns that two steps were about the same user, but not which user. Deleting the key
erases all users.

Under another key every user would begin with nothing spent. So a dataset's policy contains a
fingerprint of the key, and a client with another key, or with none, cannot charge the dataset.

Two ids may have the same pseudonym: among a million users with a probability of 1 in 37 million,
among a billion of 1 in 37. They would share a budget, which breaks no guarantee; in one step they
are rejected.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.records import Policy, User
from streams.records.users import normal_form
from streams.sdk.arguments import Ids
from streams.sdk.errors import InvalidRequest

MIN_KEY_BYTES: Final = 16
_MAX_KEY_BYTES: Final = 64
_BYTES: Final = 8
_MOST_RECENT: Final = 2**16
_PERSON: Final = b"dp-turnstile 1"
_FINGERPRINT: Final = b"dp-turnstile key"


class Pseudonyms:
    """Makes pseudonyms, and maps those that it has made back to ids. Not thread-safe.

    Args:
        key: 16 to 64 secret, random bytes, or as many characters.

    Attributes:
        fingerprint: identifies the key in a dataset's policy.

    Raises:
        InvalidRequest: the key is too short or too long.
    """

    def __init__(self, key: str | bytes) -> None:
        secret = key.encode() if isinstance(key, str) else bytes(key)
        if not MIN_KEY_BYTES <= len(secret) <= _MAX_KEY_BYTES:
            raise InvalidRequest(
                f"pseudonym_key has {len(secret)} bytes; it must have {MIN_KEY_BYTES} to "
                f"{_MAX_KEY_BYTES}. Make one with `openssl rand -hex 32`"
            )
        mark = hashlib.blake2b(b"", digest_size=_BYTES, key=secret, person=_FINGERPRINT)
        self.fingerprint = mark.hexdigest()
        self._hash = hashlib.blake2b(digest_size=_BYTES, key=secret, person=_PERSON)
        self._made = np.empty(0, dtype=np.int64)  # increasing
        self._users: NDArray[np.object_] = np.empty(0, dtype=np.object_)  # of these pseudonyms
        self._recent: list[tuple[NDArray[np.int64], Ids]] = []  # made, and not merged yet

    def of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the pseudonyms of these users, in order, and remember them for ``user_of``."""
        users: list[User] = ids.tolist() if isinstance(ids, np.ndarray) else ids
        digests = b"".join(map(self._digest, users))
        made = np.frombuffer(digests, dtype=">i8").astype(np.int64)
        self._recent.append((made, ids))
        if sum(len(some) for some, _ in self._recent) > max(_MOST_RECENT, len(self._made)):
            self._remember()
        return made

    def user_of(self, pseudonym: User) -> User:
        """Return the id of a pseudonym; the pseudonym itself if this object has not made it."""
        if isinstance(pseudonym, str):
            return pseudonym  # of a dataset that was charged without a key
        if self._recent:
            self._remember()
        at = int(np.searchsorted(self._made, pseudonym))
        if at == len(self._made) or self._made[at] != pseudonym:
            return pseudonym
        user: User = self._users[at]
        return user

    def check_distinct(self, ids: Ids, made: NDArray[np.int64]) -> None:
        """Check that no two users have the same pseudonym.

        Raises:
            InvalidRequest: names the first two that do.
        """
        order = np.argsort(made, kind="stable")
        twice = np.flatnonzero(made[order[1:]] == made[order[:-1]])
        if not len(twice):
            return
        first, second = (ids[int(order[place])] for place in (twice[0], twice[0] + 1))
        if _text(first) == _text(second):
            raise InvalidRequest(
                f"user {second!r} appears twice in one step: add its norms up first"
            )
        raise InvalidRequest(
            f"users {first!r} and {second!r} have the same pseudonym by chance, and share a "
            "budget: charge them in separate steps"
        )

    def _remember(self) -> None:
        made = np.concatenate([self._made, *(some for some, _ in self._recent)])
        users = np.concatenate([self._users, *(np.array(i, dtype=object) for _, i in self._recent)])
        self._made, first = np.unique(made, return_index=True)
        self._users, self._recent = users[first], []

    def _digest(self, user: User) -> bytes:
        state = self._hash.copy()
        state.update(_text(user).encode())
        return state.digest()


def check_key(policy: Policy, pseudonyms: Pseudonyms | None) -> None:
    """Check that a dataset has its users' ids in the form that this client sends.

    Raises:
        InvalidRequest: every user would count as a new one.
    """
    wanted = policy.pseudonyms or None
    given = None if pseudonyms is None else pseudonyms.fingerprint
    if wanted == given:
        return
    if given is None:
        told = "has pseudonyms of users: give its pseudonym_key"
    elif wanted is None:
        told = "was created without a pseudonym_key: leave the key out"
    else:
        told = f"has pseudonyms of the key {wanted}, but the given pseudonym_key is {given}"
    raise InvalidRequest(
        f"dataset {policy.dataset!r} {told}. Otherwise all its users would count as new, with "
        "nothing spent"
    )


def _text(user: User) -> str:
    return normal_form(user) if isinstance(user, str) else str(int(user))
