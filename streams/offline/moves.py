"""What a dataset comes to in a log, and how that is said to another log of another P.

All of it is a function of the old log up to the records that close the dataset there for the move
(one in each partition, since nothing of it changes after them) and of the new P. So whoever breaks
off and begins again says the same, and anybody who has both logs can say it once more and compare.

Users go where their ids live among the new partitions. Of who was forgotten the id is not known,
only a name, and in which old partition q of P the id lived. It is in one of those new partitions r
of P' with r = q modulo gcd(P, P'): there the name goes, to all of them, and whoever has the id is
denied in every one.

    heads = SHA-256("dp-turnstile heads 1" | of each old partition its number, the offset after the
            record that closes the dataset, and the head of the chain up to there)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streams.ledger.arrivals import digest_of_none, digest_with
from streams.ledger.budgets import Ids
from streams.ledger.columns import Numbers
from streams.ledger.forgotten import ErasureKeys
from streams.ledger.ledger import Ledger
from streams.ledger.limits import id_bytes
from streams.ledger.tracked import Address
from streams.offline.receipts import Head
from streams.schemas import (
    VERSION,
    Balances,
    ErasureKey,
    Origin,
    Policy,
    ReceiveDataset,
    User,
    encode,
)
from streams.wire.packing import pack_users, select_users
from streams.wire.partitioner import partitions_of

_PURPOSE = b"dp-turnstile heads 1"
_PART_BYTES = 2 * 1024 * 1024
"""Of a record of balances, about: a worker writes a few times as much for it."""
_PART_USERS = 2**16
_NO_TOKEN = "-"


class Unmovable(ValueError):
    """A dataset that cannot move, or not there; nothing was changed by saying so."""


class NothingToMove(Unmovable):
    """The dataset was withdrawn while it was closed: nobody has used it, and nobody will."""


@dataclass(frozen=True)
class Rows:
    """Users of one dataset in one old partition, with all their numbers, by column."""

    partition: int
    users: Ids
    numbers: dict[str, NDArray[np.integer]]
    forgotten: NDArray[np.bool_]


@dataclass(frozen=True)
class Departure:
    """A family of datasets, as it leaves a log.

    Attributes:
        origin: that log.
        policies: the outermost first, and each behind the one it is within.
        closed: those that had been closed before they moved, and stay so.
        erasure: the keys by which users have names who were forgotten.
        rows: dataset -> the users of all old partitions.
    """

    origin: Origin
    policies: list[Policy]
    closed: frozenset[str]
    erasure: list[ErasureKey]
    rows: dict[str, list[Rows]]

    @property
    def users(self) -> dict[str, int]:
        """How many users each dataset has."""
        return {name: sum(len(r.users) for r in rows) for name, rows in self.rows.items()}

    @property
    def forgotten(self) -> int:
        """How many users of the outermost dataset were forgotten."""
        outermost = self.rows[self.policies[0].dataset]
        return sum(int(np.count_nonzero(rows.forgotten)) for rows in outermost)


def departure(
    ledgers: Sequence[Ledger],
    topic: bytes,
    heads: Sequence[Head],
    dataset: str,
    erasure: Sequence[Mapping[Address, int]] | None = None,
) -> Departure:
    """What a dataset, and all that are within it, come to.

    Args:
        ledgers: of all old partitions, in their order.
        topic: the id of their norms.
        heads: of them, as they were when the dataset was closed; as they are, if it is not yet.
        dataset: the outermost one.
        erasure: the keys in use there, as they were then; as they are, if they are not given.

    Raises:
        Unmovable: it cannot move as it is.
    """
    if erasure is None:
        erasure = [dict(ledger.erasure) for ledger in ledgers]
    policies = _family(ledgers, dataset)
    rows = {
        policy.dataset: [_rows(ledger, policy.dataset) for ledger in ledgers] for policy in policies
    }
    for policy in policies:
        _check_kinds(policy, rows[policy.dataset])
    origin = Origin(topic=topic.hex(), partitions=len(ledgers), heads=digest_of(heads))
    closed = frozenset(
        policy.dataset
        for policy in policies
        for ledger in ledgers
        if _was_closed(ledger, policy.dataset, dataset)
    )
    return Departure(origin, policies, closed, _keys(erasure, topic), rows)


class Landing:
    """Where a departure comes down: the users of each new partition.

    Args:
        leaving: the family.
        partitions: P of the new log.

    Raises:
        Unmovable: somebody has the id that stands for somebody who was forgotten.
    """

    def __init__(self, leaving: Departure, partitions: int) -> None:
        self.leaving = leaving
        self.partitions = partitions
        # dataset -> of each new partition who was forgotten, then the others
        self._rows: dict[str, list[tuple[list[Rows], list[Rows]]]] = {
            name: self._laid_out(name, rows) for name, rows in leaving.rows.items()
        }

    def users(self, dataset: str) -> list[int]:
        """How many users of a dataset each new partition has; who was forgotten may be in more."""
        return [
            sum(len(rows.users) for group in groups for rows in group)
            for groups in self._rows[dataset]
        ]

    def announcement(
        self, policy: Policy, partition: int, token: str
    ) -> tuple[ReceiveDataset, list[bytes]]:
        """What creates a dataset in a new partition, and the digests after 0, 1, ... parts."""
        leaving = self.leaving
        digests = [digest_of_none(policy.dataset, partition, leaving.origin)]
        for part in self.parts(policy, partition):
            digests.append(digest_with(digests[-1], part))
        return ReceiveDataset(
            v=VERSION,
            request=token,
            policy=msgspec.structs.replace(policy, partitions=self.partitions),
            origin=leaving.origin,
            parts=len(digests) - 1,
            digest=digests[-1],
            brings=len(leaving.policies) - 1 if policy.within is UNSET else 0,
            closed=policy.dataset in leaving.closed,
            erasure=leaving.erasure,
        ), digests

    def parts(self, policy: Policy, partition: int) -> Iterator[Balances]:
        """What the users of a dataset have spent who live in a new partition; without a token."""
        number = 0
        names, others = self._rows[policy.dataset][partition]
        for group in (names, others):
            for rows in group:
                for part in _cut(rows):
                    yield _balances(part, policy.dataset, number, forgotten=group is names)
                    number += 1

    def _laid_out(self, dataset: str, rows: Sequence[Rows]) -> list[tuple[list[Rows], list[Rows]]]:
        alike = math.gcd(self.leaving.origin.partitions, self.partitions)
        groups: list[tuple[list[Rows], list[Rows]]] = [([], []) for _ in range(self.partitions)]
        for some in rows:
            names = _at(some, np.flatnonzero(some.forgotten))
            for partition in range(some.partition % alike, self.partitions, alike):
                groups[partition][0].append(names)
            known = np.flatnonzero(~some.forgotten)
            homes = partitions_of(select_users(some.users, known), self.partitions)
            ordered = known[np.argsort(homes, kind="stable")]
            ends = np.cumsum(np.bincount(homes, minlength=self.partitions))
            for (_, others), places in zip(groups, np.split(ordered, ends[:-1]), strict=True):
                others.append(_at(some, places))
        return [
            (self._names(dataset, partition, names, others), others)
            for partition, (names, others) in enumerate(groups)
        ]

    def _names(
        self, dataset: str, partition: int, names: Sequence[Rows], others: Sequence[Rows]
    ) -> list[Rows]:
        """Names, each of them once: two people of different partitions may have the same one."""
        once, seen = [], set[User]()
        for rows in names:
            new = [place for place, user in enumerate(rows.users) if _plain(user) not in seen]
            seen.update(_plain(user) for user in rows.users)
            once.append(_at(rows, np.array(new, dtype=np.int64)))
        if seen and any(_plain(user) in seen for rows in others for user in rows.users):
            raise Unmovable(
                f"dataset {dataset!r}: somebody's id is the name of somebody who was forgotten and "
                f"may live in partition {partition} of {self.partitions}: move to another number "
                "of partitions"
            )
        return once


def digest_of(heads: Sequence[Head]) -> bytes:
    """By what an origin names the heads of its chains."""
    said = [(head.partition, head.next, bytes.fromhex(head.head)) for head in heads]
    return hashlib.sha256(_PURPOSE + encode(said)).digest()


def _family(ledgers: Sequence[Ledger], dataset: str) -> list[Policy]:
    """The policies of a dataset and of all within it, which all partitions hold alike.

    One that is half-made when the family is closed to move, and was never charged, stays behind.
    """
    held = [dict(ledger.policies.items()) for ledger in ledgers]
    if not any((dataset,) in policies for policies in held):
        raise Unmovable(f"there is no dataset {dataset!r} in this log")
    families = [
        {name: policies[name,] for name in ledger.policies.within(dataset)}
        for ledger, policies in zip(ledgers, held, strict=True)
    ]
    if any((dataset,) in ledger.moved for ledger in ledgers):
        # Where it is closed it is neither created nor withdrawn; when it is closed everywhere, what
        # all partitions hold is final.
        for name in set().union(*families):
            is_unused = not any(len(ledger.datasets.get(name, ())) for ledger in ledgers)
            if is_unused and not all(name in family for family in families):
                for family in families:
                    family.pop(name, None)
        if not any(dataset in family for family in families):
            raise NothingToMove(
                f"dataset {dataset!r} was withdrawn while it was closed, before anybody had used "
                "it: there is nothing to move. Create it in the new log"
            )
    for partition, family in enumerate(families):
        if family != families[0]:
            names = sorted(
                name
                for name in family.keys() | families[0].keys()
                if family.get(name) != families[0].get(name)
            )
            raise Unmovable(
                f"partitions 0 and {partition} do not hold {', '.join(names)} alike: create the "
                "dataset again with the same policy, which completes it, or withdraw it"
            )
    first = families[0][dataset]
    if first.within is not UNSET:
        raise Unmovable(
            f"dataset {dataset!r} is within {first.within!r}, whose budget it is charged to: move "
            "the outermost dataset, with all that are within it"
        )
    budgets = ledgers[0].policies.budgets
    return sorted(families[0].values(), key=lambda p: (len(budgets(p.dataset).names), p.dataset))


def _was_closed(ledger: Ledger, name: str, outermost: str) -> bool:
    """Whether a dataset was closed for good, and not only by the record that let it move.

    Of a move that an earlier release kept it is known only of one that was closed before all of its
    family was.
    """
    closed = ledger.closed.get((name,))
    if closed is None or (name,) not in ledger.moved:
        return closed is not None
    return closed < ledger.departed.get((name,), ledger.closed[outermost,])


def _keys(erasure: Sequence[Mapping[Address, int]], topic: bytes) -> list[ErasureKey]:
    """The keys in use, with the highest number of a name in any partition."""
    highest: dict[tuple[str, ...], int] = {}
    public = ErasureKeys("", topic).first
    for in_use in erasure:
        for (fingerprint, *of), number in in_use.items():
            if fingerprint == public:
                of = [topic.hex()]
            key = (fingerprint, *of)
            highest[key] = max(number, highest.get(key, 0))
    return [
        ErasureKey(fingerprint=key[0], highest=number, topic=key[1] if key[1:] else UNSET)
        for key, number in sorted(highest.items())
    ]


def _rows(ledger: Ledger, dataset: str) -> Rows:
    ledger.wake()
    budgets = ledger.policies.budgets(dataset)
    everybody = slice(0, len(budgets.own))
    users = budgets.own.users_at(np.arange(len(budgets.own)))
    numbers = {name: column.copy() for name, column in budgets.own.numbers(everybody).items()}
    forgotten = budgets.outermost.forgotten.among(users)
    return Rows(ledger.partition, users, numbers, forgotten)


def _check_kinds(policy: Policy, rows: Sequence[Rows]) -> None:
    """In new partitions users meet who lived apart: one person must not have two budgets."""
    kinds = {isinstance(user, str) for part in rows for user in part.users[:1]}
    if policy.user_ids == "one-kind" and len(kinds) > 1:
        raise Unmovable(
            f"dataset {policy.dataset!r} has integer ids in some partitions and strings in others, "
            "and its user_ids are one-kind: they cannot be put together"
        )


def _at(rows: Rows, places: Numbers) -> Rows:
    return Rows(
        rows.partition,
        select_users(rows.users, places),
        {name: column[places] for name, column in rows.numbers.items()},
        rows.forgotten[places],
    )


def _cut(rows: Rows) -> Iterator[Rows]:
    """Parts that fit into a record each; none of nobody."""
    users = len(rows.users)
    if not users:
        return
    ids = rows.users if isinstance(rows.users, list) else []
    longest = 8 + max((id_bytes([user]) for user in ids), default=0)
    each = longest + sum(column.nbytes for column in rows.numbers.values()) // users
    step = max(1, min(_PART_USERS, _PART_BYTES // each))
    for start in range(0, users, step):
        yield _at(rows, np.arange(start, min(start + step, users)))


def _balances(rows: Rows, dataset: str, number: int, *, forgotten: bool) -> Balances:
    packed = {
        name: column.astype("u1" if name in ("order", "bound") else "<i8").tobytes()
        for name, column in rows.numbers.items()
    }
    return Balances(
        v=VERSION,
        dataset=dataset,
        request=_NO_TOKEN,
        part=number,
        users=pack_users(rows.users),
        forgotten=forgotten,
        **packed,
    )


def _plain(user: User | np.int64) -> User:
    return user if isinstance(user, str) else int(user)
