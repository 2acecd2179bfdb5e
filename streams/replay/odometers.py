"""Check that the last odometer record of each user is the one that the log gives.

The topic is compacted, so older records of a user may be there or not. The record written last
stays, and of two the higher offset counts. A record that is older than the last one of the log
reports less than was spent. Of a user who was erased none may be there: a tombstone comes last,
until compaction takes it away as well.

What the records gave that were trimmed is not known. But the snapshot that covers them has the
bound of every user by then: no earlier record may say more, and the last one has to say it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.ledger.accounts import Accounts
from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Output
from streams.records import OdometerRecord, User, odometer_key, tombstone_offset
from streams.records.users import UserIds
from streams.replay.findings import KEPT_FINDINGS, Check, Findings
from streams.replay.published import Published

_AT_A_TIME = 2**16
"""Odometer records that are sorted in together, at least."""


class Newest:
    """The highest offset of each key; 16 bytes a key, by a digest that nobody can foresee."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._keys = np.empty(0, dtype=np.uint64)
        self._offsets = np.empty(0, dtype=np.int64)
        self._more = bytearray(), list[int]()

    def digest(self, key: bytes | None) -> bytes:
        """What stands for a key."""
        return hashlib.blake2b(key or b"", key=self._secret, digest_size=8).digest()

    def see(self, key: bytes | None, offset: int) -> None:
        """There is an odometer record of this key at this offset of the log."""
        keys, offsets = self._more
        keys += self.digest(key)
        offsets.append(offset)
        if len(offsets) >= max(_AT_A_TIME, len(self._keys) // 2):
            self._sort_in()

    def items(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The keys, ascending, and the highest offset of each."""
        self._sort_in()
        return self._keys, self._offsets

    def _sort_in(self) -> None:
        keys, offsets = self._more
        every = np.concatenate([self._keys, np.frombuffer(bytes(keys), dtype=np.uint64)])
        each = np.concatenate([self._offsets, np.array(offsets, dtype=np.int64)])
        order = np.lexsort((each, every))
        every, each = every[order], each[order]
        last = np.append(every[1:] != every[:-1], True)[: len(every)]
        self._keys, self._offsets = every[last], each[last]
        self._more = bytearray(), []


class Odometers:
    """The last odometer records of one partition."""

    def __init__(self, published: Published, findings: Findings) -> None:
        self._published = published
        self._findings = findings
        self._secret = secrets.token_bytes(32)
        self._given = Newest(self._secret)
        self._erased: dict[bytes, int] = {}  # by digest of the key, where in the log

    def give(self, offset: int, output: Output) -> None:
        """The log gives an odometer record that the topic, or the outbox, must have by now."""
        if tombstone_offset(output.value) is not None:
            self._erased[self._given.digest(output.key)] = offset
        else:
            self._given.see(output.key, offset)

    def compare_before(self, began: int, outbox: list[Output], ledger: Ledger) -> None:
        """Hold what is older than a snapshot of the state against it, which is the ledger's.

        Args:
            began: where the log is applied from.
            outbox: what is still to be published.
            ledger: the state at that offset.
        """
        ledger.wake()
        waiting = {output.key for output in outbox}
        last = {name: _Last(accounts) for name, accounts in ledger.state.datasets.items()}
        decode = msgspec.msgpack.Decoder(OdometerRecord).decode
        for record in self._published.records():
            if record.value is None:
                continue
            try:
                said = decode(record.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # whoever wrote it is told of elsewhere
            slot = _slot_of(ledger, said)
            if slot is None:
                if said.offset < began and not _may_be_erased(ledger, said):
                    self._say_before("the snapshot knows nobody of this id", said, None)
            elif said.offset >= began:
                last[said.dataset].is_later[slot] = True
            elif not last[said.dataset].take(slot, said):
                problem = "it says more than the snapshot does, which comes after it"
                self._say_before(problem, said, last[said.dataset].bound(slot))
        for name, accounts in ledger.state.datasets.items():
            for slot in last[name].behind().tolist():
                (user,) = accounts.users_at(np.array([slot]))
                user = user if isinstance(user, str) else int(user)
                if odometer_key(name, user) not in waiting:
                    self._findings.add(
                        Check.ODOMETER,
                        "the user's last record before the snapshot does not say what that does: "
                        "it tells less than was spent, or there is none",
                        about={"dataset": name, "user": user},
                        expected={"bound": last[name].bound(slot)},
                        found=last[name].found(slot),
                    )

    def _say_before(self, problem: str, said: OdometerRecord, expected: list[float] | None) -> None:
        self._findings.add(
            Check.ODOMETER,
            problem,
            offset=said.offset,
            about={"dataset": said.dataset, "user": said.user},
            expected=None if expected is None else {"bound": expected},
            found={"bound": said.bound},
        )

    def end(self, outbox: list[Output], ledger: Ledger) -> int:
        """The log gives nothing more: say whose last odometer record is not there.

        Args:
            outbox: what is still to be published.
            ledger: the state by now, for the names of users.

        Returns:
            How many users have an odometer record.
        """
        found = Newest(self._secret)
        decode = msgspec.msgpack.Decoder(OdometerRecord).decode
        still_there: set[bytes] = set()
        for record in self._published.genuine():
            digest = found.digest(record.key)
            if record.value is None:
                still_there.discard(digest)
                continue
            found.see(record.key, decode(record.value).offset)
            if digest in self._erased:
                still_there.add(digest)
        for output in outbox:
            if tombstone_offset(output.value) is not None:
                still_there.discard(found.digest(output.key))
            else:
                found.see(output.key, decode(output.value).offset)
        self._say_erased(still_there)
        keys, wanted = self._given.items()
        counted = ~np.isin(keys, np.frombuffer(b"".join(self._erased), dtype=np.uint64))
        keys, wanted = keys[counted], wanted[counted]
        there, offsets = found.items()
        places = np.searchsorted(there, keys)
        reached = np.full(len(keys), -1, dtype=np.int64)
        inside = np.flatnonzero(places < len(there))
        inside = inside[there[places[inside]] == keys[inside]]
        reached[inside] = offsets[places[inside]]
        late = np.flatnonzero(reached < wanted)
        told = {
            keys[row : row + 1].tobytes(): (int(wanted[row]), int(reached[row]))
            for row in late[:KEPT_FINDINGS].tolist()
        }
        self._findings.count(Check.ODOMETER, len(late) - len(told))
        self._say(told, ledger)
        return len(keys)

    def _say_erased(self, still_there: set[bytes]) -> None:
        """Say of whom odometer records are there that were to be erased."""
        for digest in sorted(still_there, key=self._erased.__getitem__):
            self._findings.add(
                Check.ODOMETER,
                "a user was erased, and an odometer record is still there: no tombstone follows it",
                offset=self._erased[digest],
            )

    def _say(self, told: dict[bytes, tuple[int, int]], ledger: Ledger) -> None:
        if not told:
            return
        for dataset, user, bound in _bounds(ledger):
            digest = self._given.digest(odometer_key(dataset, user))
            if digest not in told:
                continue
            wanted, reached = told.pop(digest)
            problem = "the user's last odometer record is older than the last one of the log"
            if reached < 0:
                problem = "the log gives odometer records of this user, and the topic has none"
            self._findings.add(
                Check.ODOMETER,
                f"{problem}: it tells less than was spent",
                offset=wanted,
                about={"dataset": dataset, "user": user},
                expected={"offset": wanted, "bound by now": bound},
                found={"offset": reached} if reached >= 0 else None,
            )


class _Last:
    """Of the users of one dataset, the last record before a snapshot, by slot.

    Attributes:
        is_later: who has a record from behind the snapshot, (n,).
    """

    def __init__(self, accounts: Accounts) -> None:
        users, width = len(accounts), accounts.rule.orders or 1
        numbers = accounts.numbers(slice(0, users))
        order = numbers.get("order")
        first = accounts.rule.bounds(
            np.ones(users, dtype=np.int64), None if order is None else order.astype(np.uint8)
        )
        self._bounds = accounts.bounds().reshape(users, width)
        self._raised = (self._bounds > first.reshape(users, width)).any(axis=1)
        ids = accounts.users_at(np.arange(users))
        if not ids.are_integers:
            self._raised &= np.array([user not in accounts.erased for user in ids], dtype=np.bool_)
        self._said = np.full_like(self._bounds, np.nan)
        self._at = np.full(users, -1, dtype=np.int64)
        self.is_later = np.zeros(users, dtype=np.bool_)

    def take(self, slot: int, said: OdometerRecord) -> bool:
        """Take a record; False if it says more than can be."""
        bound = np.array(said.bound)
        if bound.shape != self._bounds[slot].shape or bool((bound > self._bounds[slot]).any()):
            return False
        if said.offset > self._at[slot]:
            self._at[slot], self._said[slot] = said.offset, bound
        return True

    def behind(self) -> NDArray[np.int64]:
        """Whose last record is not what it has to be; those with a later one may have lost it."""
        same = (self._said == self._bounds).all(axis=1)
        return np.flatnonzero(self._raised & ~self.is_later & ~same)

    def bound(self, slot: int) -> list[float]:
        """What has to be said of a user."""
        bound: list[float] = self._bounds[slot].tolist()
        return bound

    def found(self, slot: int) -> dict[str, Any] | None:
        """What is said last."""
        if self._at[slot] < 0:
            return None
        return {"offset": int(self._at[slot]), "bound": self._said[slot].tolist()}


def _slot_of(ledger: Ledger, said: OdometerRecord) -> int | None:
    """Where the user of a record is, if there is one."""
    accounts = ledger.state.datasets.get(said.dataset)
    if accounts is None or not accounts.knows(UserIds([said.user]))[0]:
        return None
    (slot,) = accounts.seek(UserIds([said.user])).slots.tolist()
    return int(slot)


def _may_be_erased(ledger: Ledger, said: OdometerRecord) -> bool:
    """Whether the user was erased since: then a tombstone follows, which compaction awaits."""
    if said.dataset not in ledger.state.datasets:
        return False
    budgets = ledger.state.policies.budgets(said.dataset)
    return budgets.are_erased(budgets.known_as(UserIds([said.user]))) is not None


def _bounds(ledger: Ledger) -> Iterator[tuple[str, User, list[float]]]:
    """Every user of every dataset, with the bound that the odometer says by now."""
    for name, accounts in ledger.state.datasets.items():
        bounds = accounts.bounds()
        for slot in range(len(accounts)):
            (user,) = accounts.users_at(np.array([slot]))
            yield (
                name,
                user if isinstance(user, str) else int(user),
                np.atleast_1d(bounds[slot]).tolist(),
            )
