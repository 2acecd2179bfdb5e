"""Erased users: a keyed hash replaces the id.

    (never seen) --erase--> (never seen)
    known --erase--> erased, with nothing left                         its accounts stay
    erased --erase--> unchanged
    erased --charge, enrol--> halted, even at norm 0

The account stays where it is, so that what was spent stays spent. All that is left of the outermost
budgets is spent as well: so every rule halts the user, those for rosters and nested budgets too.
The datasets of a family erase a user together (``streams.ledger.budgets``). If an erased user joins
a roster later, what is left of an outermost budget is spent then.

A keyed hash is a string that begins with ``erased:``, of 128 bits of BLAKE2b. No id may begin so:
hence a hash is never the id of a living user, and never comes in a request. If an erased id is
charged again, it is recognised by its hash and by nothing else. Without the key, erased users would
be new users with a full budget. So the state contains the fingerprints of the keys that its hashes
were made with, and a worker that lacks one of them suspends the partition.

A replay may have another key than the first application had, so no output may depend on it. Outputs
name an erased user by the prefix alone (``streams.ledger.validation.published``). Only erasures
that are not ``hidden`` are published with the hash: of these, the oldest key makes the hash,
because a newer one was not there when the log was first applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from streams.ledger.partition_errors import LostErasureKey
from streams.ledger.tracked import Address, Tracked
from streams.records import (
    ERASED_INTEGER,
    ERASED_STRING,
    HIDDEN,
    Erase,
    NormEvent,
    NormEvents,
    Policy,
    Reason,
    Rejection,
    User,
)
from streams.records.users import UserIds

if TYPE_CHECKING:
    from streams.ledger.accounts import Accounts

_PERSON, _FINGERPRINT = b"turnstile erased", b"turnstile erase"
_PUBLIC: Final = b"turnstile: no erasure key is set"
_HASH_BYTES = 16


class ErasureKeys:
    """The keys of the hashes.

    Args:
        keys: secrets of at most 64 bytes, with white space or commas between them, the newest one
            first. Without any, a public key takes their place, and guesses of ids can be tested.

    Attributes:
        newest: the fingerprint of the key that makes new hashes.
        oldest: that of the key that makes new hashes which outputs may have.
    """

    def __init__(self, keys: str = "") -> None:
        secrets = [key.encode() for key in keys.replace(",", " ").split()] or [_PUBLIC]
        self.newest, self.oldest = _fingerprint(secrets[0]), _fingerprint(secrets[-1])
        self._secrets = {_fingerprint(secret): secret for secret in (*secrets, _PUBLIC)}

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._secrets

    def name(self, user: User, fingerprint: str) -> str:
        """Return the keyed hash of an id."""
        kind = ERASED_STRING if isinstance(user, str) else ERASED_INTEGER
        secret = self._secrets[fingerprint]
        hashed = hashlib.blake2b(digest_size=_HASH_BYTES, key=secret, person=_PERSON)
        hashed.update(kind.encode() + str(user).encode())
        return kind + hashed.hexdigest()


class KeysInUse(Tracked[bool]):
    """(fingerprint,) -> true if the state has hashes by this key; unknown keys are refused."""

    def __init__(self, ring: ErasureKeys) -> None:
        super().__init__("erasure", bool)
        self.ring = ring

    def names(self, user: User) -> Iterator[str]:
        """Yield the hashes that an id can have."""
        for (fingerprint,) in self:
            name = self.ring.name(user, fingerprint)
            yield from (name, _hidden(name))

    def _moves(self, address: Address, before: bool | None, after: bool | None) -> None:
        if address[0] not in self.ring:
            raise LostErasureKey(address[0])


class ErasedUsers(Tracked[str]):
    """(dataset, slot) -> the keyed hash that replaces an id; ``in_use`` has the keys."""

    def __init__(self, datasets: Mapping[str, Accounts], in_use: KeysInUse) -> None:
        super().__init__("erased", str)
        self.in_use = in_use
        self._datasets = datasets
        self._waiting: set[Address] = set()  # entries whose users are not restored yet

    @property
    def is_unmerged(self) -> bool:
        """Return whether stored deltas and pages may still have the id of an erased user."""
        return bool(self._changed_pages)

    def rename(self) -> None:
        """Replace the ids of erased users who were restored since."""
        for address in list(self._waiting):
            self._rename(address, self[address])

    def known_as(
        self, users: UserIds, outermost: Accounts, erased_there: Sequence[AbstractSet[str]]
    ) -> UserIds:
        """Return these users, with the keyed hashes of those who were erased.

        Args:
            users: by their ids.
            outermost: accounts in which users are known by their ids if they are not erased and
                have been charged.
            erased_there: the keyed hashes in the outermost datasets of their family.
        """
        strangers = np.flatnonzero(~outermost.knows(users))
        erased: dict[int, User] = {}
        for at, user in zip(strangers.tolist(), users.select(strangers), strict=True):
            for name in self.in_use.names(user):
                if any(name in names for names in erased_there):
                    erased[at] = name
        return users.replace(erased)

    def new_name(self, user: User, *, hidden: bool) -> str:
        """Return the keyed hash of a user who is erased now.

        ``hidden`` says whether outputs must not have the hash.
        """
        ring = self.in_use.ring
        fingerprint = ring.newest if hidden else ring.oldest
        if (fingerprint,) not in self.in_use:
            self.in_use[fingerprint,] = True
        name = ring.name(user, fingerprint)
        return _hidden(name) if hidden else name

    def _moves(self, address: Address, before: str | None, after: str | None) -> None:
        if after is not None:
            self._rename(address, after)

    def _rename(self, address: Address, name: str) -> None:
        dataset, slot = address[0], int(address[1])
        accounts = self._datasets.get(dataset)
        if accounts is None or slot >= len(accounts):
            self._waiting.add(address)
        else:
            self._waiting.discard(address)
            accounts.erase(slot, name)


def blanked(users: UserIds, at: NDArray[np.int64]) -> UserIds:
    """Return users as the digests of rosters have them: 0 or "" for those erased, at positions."""
    blanks: dict[int, User] = {}
    for place in at.tolist():
        user = users[place]
        is_string = isinstance(user, str) and not user.startswith(ERASED_INTEGER)
        blanks[place] = "" if is_string else 0
    return users.replace(blanks)


def check_key(policy: Policy, request: Erase | NormEvent | NormEvents) -> None:
    """Check that dataset and request use ids of the same pseudonym key (MIXED_USERS)."""
    if policy.pseudonyms != request.pseudonyms:
        detail = (
            f"dataset {policy.dataset!r} has pseudonyms of the key {policy.pseudonyms or 'none'}, "
            f"and the request has ids of {request.pseudonyms or 'none'}: they would be other users"
        )
        raise Rejection(Reason.MIXED_USERS, detail)


def _hidden(name: str) -> str:
    """Return a keyed hash in the form that no output has."""
    kind, cut = name[: len(ERASED_STRING)], name[len(ERASED_STRING) :]
    return kind + HIDDEN + cut


def _fingerprint(secret: bytes) -> str:
    return hashlib.blake2b(b"", digest_size=8, key=secret, person=_FINGERPRINT).hexdigest()
