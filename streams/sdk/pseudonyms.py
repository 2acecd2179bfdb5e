"""Names for users that only who has the key can make: ids never reach the log.

A pseudonym is an integer: the first 8 bytes of a keyed BLAKE2b of the id as text, so that 1 and "1"
are one user, and a string that can be written in two ways is one, too. Who has the log and not the
key learns that two steps were about the same person, and not who it was. To forget who somebody was
is to forget the key.

Under another key every user would begin anew, with nothing spent. So a dataset says of which key
its pseudonyms are, for ever, and nobody charges it with another one, or with none.

Two ids may have one pseudonym: among a million users with a chance of 1 in 37 million, among a
billion of 1 in 37. They would then share a budget, which harms no promise; in one step they are
refused.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.normal_form import normal_form
from streams.schemas import Policy, User
from streams.sdk.arguments import Ids
from streams.sdk.errors import InvalidRequest

MIN_KEY_BYTES: Final = 16
_MAX_KEY_BYTES: Final = 64
_BYTES: Final = 8
_MOST_RECENT: Final = 2**16
_PERSON: Final = b"dp-turnstile 1"
_FINGERPRINT: Final = b"dp-turnstile key"


class Pseudonyms:
    """Makes pseudonyms, and knows again those that it has made; not for two threads at once.

    Args:
        key: 16 to 64 bytes, or as many characters, that nobody guesses.

    Attributes:
        fingerprint: by which a dataset says whose pseudonyms it has.

    Raises:
        InvalidRequest: a key that is too short or too long.
    """

    def __init__(self, key: str | bytes) -> None:
        secret = key.encode() if isinstance(key, str) else bytes(key)
        if not MIN_KEY_BYTES <= len(secret) <= _MAX_KEY_BYTES:
            raise InvalidRequest(
                f"pseudonym_key has {len(secret)} bytes; it must have {MIN_KEY_BYTES} to "
                f"{_MAX_KEY_BYTES}, as `openssl rand -hex 32` makes them"
            )
        mark = hashlib.blake2b(b"", digest_size=_BYTES, key=secret, person=_FINGERPRINT)
        self.fingerprint = mark.hexdigest()
        self._hash = hashlib.blake2b(digest_size=_BYTES, key=secret, person=_PERSON)
        self._made = np.empty(0, dtype=np.int64)  # in order
        self._users: NDArray[np.object_] = np.empty(0, dtype=np.object_)  # of each of these
        self._recent: list[tuple[NDArray[np.int64], Ids]] = []  # not yet among them

    def of(self, ids: Ids) -> NDArray[np.int64]:
        """The pseudonyms of these users, in their order; they are known again from now on."""
        users: list[User] = ids.tolist() if isinstance(ids, np.ndarray) else ids
        digests = b"".join(map(self._digest, users))
        made = np.frombuffer(digests, dtype=">i8").astype(np.int64)
        self._recent.append((made, ids))
        if sum(len(some) for some, _ in self._recent) > max(_MOST_RECENT, len(self._made)):
            self._remember()
        return made

    def user_of(self, pseudonym: User) -> User:
        """Who this is; the pseudonym itself if its user was not seen by this object."""
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
        """Refuse users of whom two have one pseudonym.

        Raises:
            InvalidRequest: with the first of them.
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
            f"users {first!r} and {second!r} have one pseudonym, by chance, and share a budget: "
            "charge them in steps of their own"
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
    """Whether the users of a dataset are known to a client that has these pseudonyms, or none.

    Raises:
        InvalidRequest: they would all be somebody else.
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
        told = f"has pseudonyms of the key {wanted}, and this pseudonym_key is {given}"
    raise InvalidRequest(
        f"dataset {policy.dataset!r} {told}. Otherwise its users would all be somebody else, with "
        "nothing spent"
    )


def _text(user: User) -> str:
    return normal_form(user) if isinstance(user, str) else str(int(user))
