"""The users of a step by partition, with their ids as the log has them: normal form or pseudonyms.

**Pseudonyms.** With a ``pseudonym_key``, the log never contains ids. A pseudonym is an integer: the
first 8 bytes of a keyed BLAKE2b hash of the id as text. So 1 and "1" are one user, as are two
spellings of a string that have the same normal form. A reader of the log without the key learns
that two steps were about the same user, but not which user. Deleting the key erases all users.

Under another key every user would begin with nothing spent. So a dataset's policy contains a
fingerprint of the key, and a client with another key, or with none, cannot charge the dataset.

Two ids may have the same pseudonym: among a million users with a probability of 1 in 37 million,
among a billion of 1 in 37. They would share a budget, which breaks no guarantee; in one step they
are rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, Final

import numpy as np
from msgspec import Raw
from msgspec.structs import replace
from numpy.typing import NDArray

from accounting.exact.invalid_input import quoted
from streams.ledger.validation import check_distinct, check_kinds
from streams.records import (
    MAX_CHARGE_USERS,
    Charge,
    Policy,
    User,
    Users,
    encode,
)
from streams.records.decision_ids import ids_of_step
from streams.records.digests import charge_digest
from streams.records.packing import pack_norms
from streams.records.users import UserIds, normal_form
from streams.sdk.arguments import check_strings, elements_of, read_users
from streams.sdk.decisions import (
    ChargePart,
    CollectedArrays,
    CollectedDecision,
    DecisionArrays,
    StepDecision,
)
from streams.sdk.errors import InvalidRequest, invalid_requests

MIN_KEY_BYTES: Final = 16
_MAX_KEY_BYTES: Final = 64
_BYTES: Final = 8
_MOST_RECENT: Final = 2**16
_PERSON: Final = b"dp-turnstile 1"
_FINGERPRINT: Final = b"dp-turnstile key"


class Pseudonyms:
    """Makes pseudonyms, and maps those that it has made back to ids. Thread-safe.

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
        self._lock = Lock()  # of all below
        self._made = np.empty(0, dtype=np.int64)  # increasing
        self._users: NDArray[np.object_] = np.empty(0, dtype=np.object_)  # of these pseudonyms
        self._recent: list[tuple[NDArray[np.int64], UserIds]] = []  # made, and not merged yet

    def of_user(self, user: User) -> int:
        """Return the pseudonym of one user, and remember it for ``user_of``."""
        return int(self.of(UserIds([user]))[0])

    def of(self, ids: UserIds) -> NDArray[np.int64]:
        """Return the pseudonyms of these users, in order, and remember them for ``user_of``."""
        digests = b"".join(map(self._digest, ids))
        made = np.frombuffer(digests, dtype=">i8").astype(np.int64)
        with self._lock:
            self._recent.append((made, ids))
            if sum(len(some) for some, _ in self._recent) > max(_MOST_RECENT, len(self._made)):
                self._remember()
        return made

    def user_of(self, pseudonym: User) -> User:
        """Return the id of a pseudonym; the pseudonym itself if this object has not made it."""
        if isinstance(pseudonym, str):
            return pseudonym  # of a dataset that was charged without a key
        with self._lock:
            if self._recent:
                self._remember()
            at = int(np.searchsorted(self._made, pseudonym))
            if at == len(self._made) or self._made[at] != pseudonym:
                return pseudonym
            user: User = self._users[at]
            return user

    def check_distinct(self, ids: UserIds, made: NDArray[np.int64]) -> None:
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
                f"user {quoted(second)} appears twice in one step: add its norms up first"
            )
        raise InvalidRequest(
            f"users {quoted(first)} and {quoted(second)} have the same pseudonym by chance, and "
            "share a budget: charge them in separate steps"
        )

    def _remember(self) -> None:
        made = np.concatenate([self._made, *(some for some, _ in self._recent)])
        recent = [np.array(ids.tolist(), dtype=object) for _, ids in self._recent]
        users = np.concatenate([self._users, *recent])
        self._made, first = np.unique(made, return_index=True)
        self._users, self._recent = users[first], []

    def _digest(self, user: User) -> bytes:
        state = self._hash.copy()
        state.update(_text(user).encode())
        return state.digest()


def known_as(user: User, pseudonyms: Pseudonyms | None) -> User:
    """Return a user's id as the log has it; a pseudonym is remembered for ``user_of``."""
    if pseudonyms is not None:
        return pseudonyms.of_user(user)
    return normal_form(user) if isinstance(user, str) else user


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
        problem = "has pseudonyms of users: give its pseudonym_key"
    elif wanted is None:
        problem = "was created without a pseudonym_key: leave the key out"
    else:
        problem = f"has pseudonyms of the key {wanted}, but the given pseudonym_key is {given}"
    raise InvalidRequest(
        f"dataset {policy.dataset!r} {problem}. Otherwise all its users would count as new, with "
        "nothing spent"
    )


def _text(user: User) -> str:
    return normal_form(user) if isinstance(user, str) else str(int(user))


@dataclass(frozen=True, eq=False)
class Layout:
    """Users by partition, computed once for all steps with the same users.

    Attributes:
        ids: all users as the caller gave them.
        known: the same users as the log knows them: normalised ids or pseudonyms.
        positions: for each partition, the indices of its users in ``ids``, increasing.
    """

    ids: UserIds
    known: UserIds
    positions: list[NDArray[np.int64]]

    def users_of(self, partition: int) -> UserIds:
        """Return the users of a partition, as the log knows them."""
        return self.known.select(self.positions[partition])

    @cached_property
    def _packed(self) -> list[tuple[Users, Raw | None]]:
        """Return each partition's users as a request has them; with strings also encoded."""
        packed = [self.users_of(partition).pack() for partition in range(len(self.positions))]
        return [(ids, None if isinstance(ids, bytes) else Raw(encode(ids))) for ids in packed]

    def parts(self, charge: Charge, norms: NDArray[np.float64]) -> dict[int, ChargePart]:
        """Return each partition's part of a charge.

        Args:
            norms: (n,) in the order of the users given.

        Raises:
            InvalidRequest: too many users live in one partition.
        """
        parts = {}
        for partition, (users, encoded) in enumerate(self._packed):
            mine = norms[self.positions[partition]]
            full = replace(charge, users=encoded or users, norms=pack_norms(mine))
            if len(mine) > MAX_CHARGE_USERS:
                raise InvalidRequest(
                    f"partition {partition} has {len(mine)} users, and {MAX_CHARGE_USERS} are "
                    "allowed: charge fewer users per step, or use more partitions"
                )
            parts[partition] = ChargePart(encode(full), charge_digest(full, names=encoded), mine)
        return parts

    def put_together(
        self,
        step: int,
        log: bytes,
        parts: Mapping[int, ChargePart],
        decisions: Mapping[int, DecisionArrays],
    ) -> StepDecision:
        """Return the decision of a log's partitions, in the order of the users given."""
        count = len(self.ids)
        granted, reasons = np.zeros(count), np.zeros(count, dtype=np.uint8)
        admitted, exhausted = np.zeros((2, count), dtype=np.bool_)
        for partition, decision in decisions.items():
            mine = self.positions[partition]
            admitted[mine], exhausted[mine] = decision.admitted, decision.exhausted
            # Not from the caller's norms, which may have been changed since.
            granted[mine] = np.where(decision.admitted, parts[partition].norms, 0.0)
            granted[mine[decision.clipped]] = decision.granted
            reasons[mine] = decision.reasons
        ids = ids_of_step(log, {p: decision.offset for p, decision in decisions.items()})
        return StepDecision(step, admitted, granted, exhausted, reasons, ids)


def collected_by(
    step: int,
    log: bytes,
    decisions: Mapping[int, CollectedArrays],
    pseudonyms: Pseudonyms | None,
) -> CollectedDecision:
    """Return the decision of a log's partitions about a step whose norms were collected."""
    parts = [decisions[partition] for partition in sorted(decisions)]
    users = [user for part in parts for user in part.users]
    if pseudonyms is not None:
        users = [pseudonyms.user_of(user) for user in users]
    return CollectedDecision(
        step,
        np.concatenate([part.arrays.admitted for part in parts]),
        np.concatenate([part.granted for part in parts]),
        np.concatenate([part.arrays.exhausted for part in parts]),
        np.concatenate([part.arrays.reasons for part in parts]),
        ids_of_step(log, {p: part.arrays.offset for p, part in decisions.items()}),
        users,
    )


def place(ids: UserIds, partitions: int, pseudonyms: Pseudonyms | None) -> Layout:
    """Find the partition of each user.

    Args:
        pseudonyms: make the users' pseudonyms; None if the log has their ids.

    Raises:
        InvalidRequest: an id appears twice.
    """
    if pseudonyms is None:
        known = _in_normal_form(ids)
    else:
        known = UserIds(pseudonyms.of(ids))
        pseudonyms.check_distinct(ids, known.integers)
    with invalid_requests():
        check_distinct(known)
    homes = known.homes(partitions)
    order = np.argsort(homes, kind="stable")
    bounds = np.searchsorted(homes[order], np.arange(partitions + 1))
    return Layout(ids, known, [order[start:stop] for start, stop in pairwise(bounds)])


def lay_out(ids: UserIds, policy: Policy, pseudonyms: Pseudonyms | None = None) -> Layout:
    """Find the partition of each user of a dataset.

    Raises:
        InvalidRequest: an id appears twice, or is of a kind that the dataset does not have.
    """
    layout = place(ids, policy.partitions, pseudonyms)
    with invalid_requests():
        check_kinds(policy, None, layout.known)
    return layout


class LastLayout:
    """The layout of the users given last, for callers that pass the same users at every step.

    Reading, placing and packing a million strings takes seconds. Every id is compared with those
    given last, so a list that was modified in between is noticed.
    """

    def __init__(self, policy: Policy, pseudonyms: Pseudonyms | None) -> None:
        self._policy, self._pseudonyms = policy, pseudonyms
        self._elements: NDArray[Any] | list[Any] = []  # a copy of those of the users
        self._layout: Layout | None = None

    def of(self, users: object) -> Layout:
        """Return the layout of users; for the same ids as last time, the same object.

        Raises:
            InvalidRequest: an id is invalid, appears twice or is of a kind that the dataset does
                not have, or the container has no order.
        """
        is_text = type(users) is np.ndarray and users.dtype.kind == "U"
        elements: Any = users if is_text else elements_of("users", users)
        if self._layout is None or not _are_same(elements, self._elements):
            self._layout = lay_out(read_users(elements), self._policy, self._pseudonyms)
            self._elements = elements.copy()
        return self._layout


def _are_same(given: NDArray[Any] | list[Any], known: NDArray[Any] | list[Any]) -> bool:
    if isinstance(given, np.ndarray) and isinstance(known, np.ndarray):
        return given.dtype == known.dtype and np.array_equal(given, known)
    # Only int and str: an element of another type may equal an id and still be no valid id.
    return (
        type(given) is type(known) is list
        and set(map(type, given)) <= {int, str}
        and given == known
    )


def _in_normal_form(ids: UserIds) -> UserIds:
    """Return the ids in normal form, so that two spellings of one name are one user."""
    if ids.are_integers:
        return ids
    if "".join(user for user in ids if isinstance(user, str)).isascii():
        return ids
    users = [normal_form(user) if isinstance(user, str) else user for user in ids]
    check_strings([user for user in users if isinstance(user, str)])
    return UserIds(users)
