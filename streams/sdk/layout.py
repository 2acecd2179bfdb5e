"""A cache of the user ids that were read last, for callers that pass the same list at every step.

Reading, placing and packing a million strings takes seconds, and the result is the same at each
step. The cache compares every id, so a list that was modified in between is noticed. If a list
starts with the known ids, only the rest is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from msgspec import Raw
from msgspec.structs import replace
from numpy.typing import NDArray

from streams.records import (
    MAX_CHARGE_USERS,
    MAX_REQUEST_BYTES,
    Charge,
    Policy,
    User,
    Users,
    encode,
)
from streams.records.digests import charge_digest
from streams.records.packing import pack_norms, pack_users, select_users
from streams.records.users import normal_form, partitions_of
from streams.sdk.arguments import Ids, check_strings, elements_of, read_users, strings_of
from streams.sdk.decisions import ChargePart, StepDecision
from streams.sdk.errors import InvalidRequest


class KnownUsers:
    """The ids that were read last.

    Attributes:
        ids: these ids, never modified; None before the first.
    """

    def __init__(self) -> None:
        self.ids: Ids | None = None
        self._text: NDArray[Any] | None = None  # the array of strings that they were read from

    def read(self, users: object) -> Ids:
        """Return ids as ``read_users`` does; for the same ids as last time, the same object.

        Raises:
            InvalidRequest: an id is invalid, or the container has no order.
        """
        text = users if type(users) is np.ndarray and users.dtype.kind == "U" else None
        if text is None or not _is_same(text, self._text):
            self.ids = self._read(users if text is None else text.tolist())
            self._text = None if text is None else text.copy()
        assert self.ids is not None
        return self.ids

    def _read(self, users: object) -> Ids:
        known = self.ids
        elements = elements_of("users", users)
        if isinstance(elements, list):
            # Only int and str: an element of another type may equal an id and still be no valid id.
            plain = set(map(type, elements)) <= {int, str}
            if isinstance(known, list) and plain:
                more = elements[len(known) :]
                if not more and elements == known:
                    return known
                if more and elements[: len(known)] == known:
                    ids = read_users(more)
                    return known + (ids if isinstance(ids, list) else ids.tolist())
            ids = read_users(elements)
            return ids.copy() if ids is elements else ids
        ids = read_users(elements)
        return known if isinstance(known, np.ndarray) and np.array_equal(ids, known) else ids


def _is_same(text: NDArray[Any], known: NDArray[Any] | None) -> bool:
    return known is not None and text.dtype == known.dtype and np.array_equal(text, known)


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


@dataclass(frozen=True, eq=False)
class Layout:
    """Users by partition, computed once for all steps with the same users.

    Attributes:
        ids: all users as the caller gave them; never modified.
        known: the same users as the log knows them: normalised ids or pseudonyms.
        homes: the partition of each user.
        positions: for each partition, the indices of its users in ``ids``.
        users: for each partition, its users as they are packed in a request.
    """

    ids: Ids
    known: Ids
    homes: NDArray[np.int64]
    positions: list[NDArray[np.int64]]
    users: list[Users]

    def is_of(self, ids: Ids) -> bool:
        """Return whether these are the same users in the same order."""
        return ids is self.ids or (len(ids) == len(self.ids) and self.begins(ids))

    def begins(self, ids: Ids) -> bool:
        """Return whether ``ids`` starts with the users of this layout, in the same order."""
        first = ids[: len(self.ids)]
        if isinstance(first, list) and isinstance(self.ids, list):
            return first == self.ids
        return type(first) is type(self.ids) and np.array_equal(first, self.ids)

    @cached_property
    def names(self) -> list[Raw | None]:
        """Return the encoded ids of each partition; None where all of them are integers."""
        return [
            Raw(encode(users)) if isinstance(users, list) and strings_of(users) else None
            for users in self.users
        ]

    def parts(self, charge: Charge, norms: NDArray[np.float64]) -> dict[int, ChargePart]:
        """Return each partition's part of a charge.

        Args:
            charge: the charge without users and norms.
            norms: (n,) in the order of the users given.

        Raises:
            InvalidRequest: too many users live in one partition.
        """
        return {
            partition: _part(partition, replace(charge, users=users), names, norms[mine])
            for partition, (users, names, mine) in enumerate(
                zip(self.users, self.names, self.positions, strict=True)
            )
        }

    def put_together(self, step: int, decisions: Mapping[int, StepDecision]) -> StepDecision:
        """Return the decision over all partitions, in the order of the users given."""
        whole = StepDecision(
            step,
            admitted=np.zeros(len(self.ids), dtype=np.bool_),
            granted=np.zeros(len(self.ids)),
            exhausted=np.zeros(len(self.ids), dtype=np.bool_),
            too_soon=np.zeros(len(self.ids), dtype=np.bool_),
            erased=np.zeros(len(self.ids), dtype=np.bool_),
        )
        for partition, decision in decisions.items():
            mine = self.positions[partition]
            whole.admitted[mine] = decision.admitted
            whole.granted[mine] = decision.granted
            whole.exhausted[mine] = decision.exhausted
            whole.too_soon[mine] = decision.too_soon
            whole.erased[mine] = decision.erased
        return whole


def lay_out(
    ids: Ids,
    policy: Policy,
    before: Layout | None = None,
    pseudonyms: Pseudonyms | None = None,
) -> Layout:
    """Find the partition of each user.

    Args:
        ids: the users; they must not be modified afterwards.
        policy: the policy of their dataset.
        before: an earlier layout of this dataset; if ``ids`` starts with its users, it is extended.
        pseudonyms: make the users' pseudonyms; None if the log has their ids.

    Raises:
        InvalidRequest: an id appears twice, or is of a kind that the dataset does not have.
    """
    count = len(before.ids) if before is not None and before.begins(ids) else 0
    more = _known(ids[count:], policy, pseudonyms)
    homes = partitions_of(more, policy.partitions)
    known = more
    if before is not None and count:
        known = _joined(before.known, more)
        homes = np.concatenate([before.homes, homes])
    if pseudonyms is not None and isinstance(known, np.ndarray):
        pseudonyms.check_distinct(ids, known)
    check_distinct(known)
    _check_kinds(known, policy)
    order = np.argsort(homes, kind="stable")
    bounds = np.searchsorted(homes[order], np.arange(policy.partitions + 1))
    positions = [order[start:stop] for start, stop in pairwise(bounds)]
    users = [pack_users(select_users(known, mine)) for mine in positions]
    return Layout(ids, known, homes, positions, users)


def check_distinct(ids: Ids) -> None:
    """Check that no id appears twice.

    Raises:
        InvalidRequest: names the first id that does.
    """
    if isinstance(ids, np.ndarray):
        in_order = np.sort(ids)
        twice = in_order[1:][in_order[1:] == in_order[:-1]].tolist()
    elif len(set(ids)) == len(ids):
        return
    else:
        seen: set[User] = set()
        twice = [user for user in ids if user in seen or seen.add(user)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidRequest(f"user {twice[0]!r} appears twice in one step: add its norms up first")


def _joined(ids: Ids, more: Ids) -> Ids:
    if isinstance(ids, np.ndarray) and isinstance(more, np.ndarray):
        return np.concatenate([ids, more])
    return [*ids, *more]


def _known(ids: Ids, policy: Policy, pseudonyms: Pseudonyms | None) -> Ids:
    """Return the users as the log knows them."""
    if pseudonyms is not None:
        return pseudonyms.of(ids)
    return _in_normal_form(ids)


def _in_normal_form(ids: Ids) -> Ids:
    """Return the ids in normal form, so that two spellings of one name are one user."""
    if isinstance(ids, np.ndarray) or "".join(strings_of(ids)).isascii():
        return ids
    ids = [normal_form(user) if isinstance(user, str) else user for user in ids]
    check_strings(strings_of(ids))
    return ids


def _check_kinds(ids: Ids, policy: Policy) -> None:
    """Check that all ids are of a kind that the dataset has."""
    allowed = policy.user_ids
    kinds = {int} if isinstance(ids, np.ndarray) else set(map(type, ids))
    wrong = {"integer": str, "string": int}.get(str(allowed))
    if len(ids) and wrong in kinds:
        raise InvalidRequest(f"the users of dataset {policy.dataset!r} have {allowed} ids only")
    if allowed == "one-kind" and len(kinds) > 1:
        raise InvalidRequest(
            f"users have integer and string ids, but dataset {policy.dataset!r} has one kind: 1 "
            "and '1' would be two users with a budget each. Convert the ids to one kind, or create "
            "a dataset with user_ids='mixed' if its users have both kinds"
        )


def _part(
    partition: int, charge: Charge, names: Raw | None, norms: NDArray[np.float64]
) -> ChargePart:
    charge = replace(charge, norms=pack_norms(norms))
    record = encode(charge if names is None else replace(charge, users=cast(Users, names)))
    if len(norms) > MAX_CHARGE_USERS or len(record) > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"partition {partition} has {len(norms)} users in {len(record)} bytes; the maximum is "
            f"{MAX_CHARGE_USERS} users and {MAX_REQUEST_BYTES} bytes: charge fewer users per step, "
            "or use more partitions"
        )
    return ChargePart(record, charge_digest(charge, names=names), norms)
