"""Users who were forgotten: in the place of the id there is a name that only a key makes of it.

    (never seen) --forget--> (never seen)
    known --forget--> forgotten, with nothing left                      its accounts stay
    forgotten --forget--> unchanged
    forgotten --charge, enrol--> halted, whatever the norm              nothing is created

The account stays where it is, so that what was spent stays spent, and all that is left of the
outermost budget is spent with it: every rule that there is then halts the user, those for rosters
and nested budgets too. Datasets that share a budget forget a user together.

The name is a keyed hash of the id. Who charges the id again is found out by it, and by nothing
else: so the key is needed wherever the log is applied on, and no decision depends on which it is.
Under one that is not known any more, users who were forgotten would begin anew. So a state says by
which keys it has names, and who does not have all of them does not go on from it.

Two ids may have one name, by chance or because somebody who has the key has looked for them. Then
the next name is taken that nobody has; it is kept how many have to be looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from streams.ledger.impasse import Impasse
from streams.ledger.tracked import Address, Tracked
from streams.schemas import Forget, Policy, Reason, Rejection, User
from streams.wire.packing import select_users

if TYPE_CHECKING:
    from streams.ledger.accounts import Accounts

_PERSON, _FINGERPRINT, _PUBLIC = b"turnstile forget", b"turnstile erase", b"turnstile public"
_NAME: Final = "forgotten:"


class LostErasureKey(Impasse):
    """A state has names by a key that is not known here."""

    kind = "erasure-key"

    def __init__(self, fingerprint: str) -> None:
        super().__init__(
            f"users were forgotten under the erasure key {fingerprint}, which is not among "
            "erasure_keys here: who they are would not be known again, and they would begin anew, "
            "with nothing spent",
            "Add that key to erasure_keys, behind the first one if it is to be used no more. A key "
            "can only go when no state has names by it. If nobody has it any more, delete nothing "
            "before docs/erasure.md says that the log has what that takes: where it was trimmed, "
            "what was spent is in Redis and in the topic checkpoints alone",
        )


class ErasureKeys:
    """The keys by which names are made.

    Args:
        keys: secrets of at most 64 bytes, with white space or commas between them, the one that is
            used first; none: names are made of what everybody knows, and a guess of an id can be
            tested.
        topic: the 16 bytes of the id of norms.

    Attributes:
        first: the fingerprint of the key that is used.
    """

    def __init__(self, keys: str, topic: bytes) -> None:
        secrets = [key.encode() for key in keys.replace(",", " ").split()]
        secrets.append(_public(topic))
        self._secrets = {_fingerprint(secret): secret for secret in secrets}
        self.first = next(iter(self._secrets))

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._secrets

    def name(self, user: User, fingerprint: str, number: int) -> User:
        """The name of that number for an id: of the same kind as the id."""
        size = 16 if isinstance(user, str) else 8
        secret = self._secrets[fingerprint]
        hashed = hashlib.blake2b(digest_size=size, key=secret, person=_PERSON)
        hashed.update(number.to_bytes(4, "big") + (b"s" if isinstance(user, str) else b"i"))
        hashed.update(user.encode() if isinstance(user, str) else str(user).encode())
        if isinstance(user, str):
            return _NAME + hashed.hexdigest()
        return int.from_bytes(hashed.digest(), "big", signed=True)


class KeysInUse(Tracked[int]):
    """(fingerprint,) -> the highest number of a name by this key. It refuses keys not known."""

    def __init__(self, ring: ErasureKeys) -> None:
        super().__init__("erasure", int)
        self.ring = ring

    def names(self, user: User) -> Iterator[User]:
        """All names that an id may have, in the order in which they are looked at."""
        for (fingerprint,), highest in self.items():
            for number in range(highest + 1):
                yield self.ring.name(user, fingerprint, number)

    def _moves(self, address: Address, before: int | None, after: int | None) -> None:
        if address[0] not in self.ring:
            raise LostErasureKey(address[0])


class Forgotten(Tracked[User]):
    """(dataset, slot) -> the name that is there instead of an id.

    Attributes:
        in_use: the keys that names are by.
    """

    def __init__(self, datasets: Mapping[str, Accounts], in_use: KeysInUse) -> None:
        super().__init__("forgotten", int | str)
        self.in_use = in_use
        self._datasets = datasets
        self._waiting: set[Address] = set()  # for users to be put back

    @property
    def is_uncompacted(self) -> bool:
        """Whether changes and pages that are kept may still have the id of somebody forgotten."""
        return bool(self._uncompacted)

    def rename(self) -> None:
        """Put names where users were put back meanwhile."""
        for address in list(self._waiting):
            self._rename(address, self[address])

    def known_as(
        self, users: NDArray[np.int64] | list[User], outermost: Accounts
    ) -> NDArray[np.int64] | list[User]:
        """These users, by their names those who were forgotten.

        Args:
            users: by their ids.
            outermost: accounts of all users with whom they share a budget.
        """
        if not outermost.forgotten:
            return users
        strangers = np.flatnonzero(~outermost.knows(users))
        if not len(strangers):
            return users
        known: NDArray[np.int64] | list[User] = users.copy()
        for at, user in zip(
            strangers.tolist(), _listed(select_users(users, strangers)), strict=True
        ):
            for name in self.in_use.names(user):
                if name in outermost.forgotten:
                    known[at] = name
        return known

    def new_name(self, user: User, family: Sequence[Accounts]) -> User:
        """A name for an id that nobody in these datasets has."""
        first = self.in_use.ring.first
        number, highest = 0, self.in_use.get((first,), -1)
        name: User = self.in_use.ring.name(user, first, number)
        while any(accounts.knows(alone(name))[0] for accounts in family):
            number += 1
            name = self.in_use.ring.name(user, first, number)
        if number > highest:
            self.in_use[first,] = number
        return name

    def _moves(self, address: Address, before: User | None, after: User | None) -> None:
        if after is not None:
            self._rename(address, after)

    def _rename(self, address: Address, name: User) -> None:
        dataset, slot = address[0], int(address[1])
        accounts = self._datasets.get(dataset)
        if accounts is None or slot >= len(accounts):
            self._waiting.add(address)
        else:
            self._waiting.discard(address)
            accounts.rename(slot, name)
            accounts.forgotten.add(name)


def blank(users: NDArray[np.int64] | list[User], at: NDArray[np.int64]) -> None:
    """Put nobody in some places of users, as digests of rosters have those who were forgotten."""
    if isinstance(users, np.ndarray):
        users[at] = 0
    else:
        for place in at.tolist():
            users[place] = "" if isinstance(users[place], str) else 0


def check_key(policy: Policy, request: Forget) -> None:
    """Check that a dataset knows users by what the request names.

    Raises:
        Rejection: MIXED_USERS.
    """
    if policy.pseudonyms != request.pseudonyms:
        detail = (
            f"dataset {policy.dataset!r} has pseudonyms of the key {policy.pseudonyms or 'none'}, "
            f"and this id is one of {request.pseudonyms or 'none'}: it would be somebody else"
        )
        raise Rejection(Reason.MIXED_USERS, detail)


def _public(topic: bytes) -> bytes:
    return hashlib.blake2b(topic, digest_size=32, person=_PUBLIC).digest()


def _fingerprint(secret: bytes) -> str:
    return hashlib.blake2b(b"", digest_size=8, key=secret, person=_FINGERPRINT).hexdigest()


def alone(user: User) -> NDArray[np.int64] | list[User]:
    """One user, as many are."""
    return [user] if isinstance(user, str) else np.array([user], dtype=np.int64)


def _listed(users: NDArray[np.int64] | list[User]) -> list[User]:
    return users if isinstance(users, list) else users.tolist()
