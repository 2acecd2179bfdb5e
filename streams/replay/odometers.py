"""Compares each user's last odometer record with the replayed log.

The topic is compacted, so older odometer records of a user may be missing. If a user's last record
is older than the log's last one for this user, the odometer shows less than was spent. An erased
user may have no record: a tombstone is the last one, until compaction removes it too.

The outputs of trimmed records are unknown. But the snapshot that covers them has the bound of every
user: no earlier record may have a larger one, and the last earlier record must have the same.
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
"""The minimum number of keys that are sorted at once."""


class Newest:
    """The highest offset of each key, in 16 bytes per key, by an unpredictable digest."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._keys = np.empty(0, dtype=np.uint64)
        self._offsets = np.empty(0, dtype=np.int64)
        self._more = bytearray(), list[int]()

    def digest(self, key: bytes | None) -> bytes:
        """Return the keyed digest of a key."""
        return hashlib.blake2b(key or b"", key=self._secret, digest_size=8).digest()

    def see(self, key: bytes | None, offset: int) -> None:
        """Note that a record of this key comes from this offset of the log."""
        keys, offsets = self._more
        keys += self.digest(key)
        offsets.append(offset)
        if len(offsets) >= max(_AT_A_TIME, len(self._keys) // 2):
            self._sort_in()

    def items(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the digests, ascending, and the highest offset of each."""
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

    def expect(self, offset: int, output: Output) -> None:
        """Note an output of the log that must be in the topic or in the outbox."""
        if tombstone_offset(output.value) is not None:
            self._erased[self._given.digest(output.key)] = offset
        else:
            self._given.see(output.key, offset)

    def compare_before(self, began: int, outbox: list[Output], ledger: Ledger) -> None:
        """Compare the records from before a snapshot with the state in it.

        Args:
            began: the offset from which the log is replayed.
            outbox: the outputs that are not published yet.
            ledger: the state in the snapshot.
        """
        ledger.restore_rosters()
        waiting = {output.key for output in outbox}
        last = {name: _Last(accounts) for name, accounts in ledger.state.datasets.items()}
        decode = msgspec.msgpack.Decoder(OdometerRecord).decode
        for record in self._published.records():
            if record.value is None:
                continue
            try:
                decoded = decode(record.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # a foreign record, which `Published` reports
            slot = _slot_of(ledger, decoded)
            if slot is None:
                if decoded.offset < began and not _may_be_erased(ledger, decoded):
                    self._add_before("the snapshot has no user with this id", decoded, None)
            elif decoded.offset >= began:
                last[decoded.dataset].is_later[slot] = True
            elif not last[decoded.dataset].take(slot, decoded):
                problem = "the bound is larger than the one in the later snapshot"
                self._add_before(problem, decoded, last[decoded.dataset].bound(slot))
        for name, accounts in ledger.state.datasets.items():
            for slot in last[name].behind().tolist():
                (user,) = accounts.users_at(np.array([slot]))
                user = user if isinstance(user, str) else int(user)
                if odometer_key(name, user) not in waiting:
                    self._findings.add(
                        Check.ODOMETER,
                        "the user's last record before the snapshot lacks the snapshot's bound: it "
                        "shows less than was spent, or does not exist",
                        about={"dataset": name, "user": user},
                        expected={"bound": last[name].bound(slot)},
                        found=last[name].found(slot),
                    )

    def _add_before(
        self, problem: str, decoded: OdometerRecord, expected: list[float] | None
    ) -> None:
        self._findings.add(
            Check.ODOMETER,
            problem,
            offset=decoded.offset,
            about={"dataset": decoded.dataset, "user": decoded.user},
            expected=None if expected is None else {"bound": expected},
            found={"bound": decoded.bound},
        )

    def end(self, outbox: list[Output], ledger: Ledger) -> int:
        """Add the findings after the end of the log, and return the number of users with a record.

        Args:
            outbox: the outputs that are not published yet.
            ledger: the state at the end, for the ids of users.
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
        self._add_erased(still_there)
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
        late_keys = {
            keys[row : row + 1].tobytes(): (int(wanted[row]), int(reached[row]))
            for row in late[:KEPT_FINDINGS].tolist()
        }
        self._findings.counts[Check.ODOMETER] += len(late) - len(late_keys)
        self._add_late(late_keys, ledger)
        return len(keys)

    def _add_erased(self, still_there: set[bytes]) -> None:
        for digest in sorted(still_there, key=self._erased.__getitem__):
            self._findings.add(
                Check.ODOMETER,
                "the odometer record of an erased user still exists: no tombstone follows it",
                offset=self._erased[digest],
            )

    def _add_late(self, late: dict[bytes, tuple[int, int]], ledger: Ledger) -> None:
        if not late:
            return
        for dataset, user, bound in _bounds(ledger):
            digest = self._given.digest(odometer_key(dataset, user))
            if digest not in late:
                continue
            wanted, reached = late.pop(digest)
            problem = "the user's last odometer record is older than the last one of the log"
            if reached < 0:
                problem = "the topic lacks the odometer records of this user"
            self._findings.add(
                Check.ODOMETER,
                f"{problem}: the odometer shows less than was spent",
                offset=wanted,
                about={"dataset": dataset, "user": user},
                expected={"offset": wanted, "bound by now": bound},
                found={"offset": reached} if reached >= 0 else None,
            )


class _Last:
    """The last record before a snapshot of each user of one dataset, by slot.

    Attributes:
        is_later: whether the user has a record from after the snapshot, (n,).
    """

    def __init__(self, accounts: Accounts) -> None:
        users, width = len(accounts), accounts.rule.orders or 1
        numbers = accounts.numbers(np.arange(users))
        order = numbers.get("order")
        first = accounts.rule.bounds(
            np.ones(users, dtype=np.int64), None if order is None else order.astype(np.uint8)
        )
        self._bounds = accounts.bounds().reshape(users, width)
        self._raised = (self._bounds > first.reshape(users, width)).any(axis=1)
        ids = accounts.users_at(np.arange(users))
        if not ids.are_integers:
            self._raised &= np.array([user not in accounts.erased for user in ids], dtype=np.bool_)
        self._bound_found = np.full_like(self._bounds, np.nan)
        self._at = np.full(users, -1, dtype=np.int64)
        self.is_later = np.zeros(users, dtype=np.bool_)

    def take(self, slot: int, decoded: OdometerRecord) -> bool:
        """Note a record; return False if its bound is impossibly large."""
        bound = np.array(decoded.bound)
        if bound.shape != self._bounds[slot].shape or bool((bound > self._bounds[slot]).any()):
            return False
        if decoded.offset > self._at[slot]:
            self._at[slot], self._bound_found[slot] = decoded.offset, bound
        return True

    def behind(self) -> NDArray[np.int64]:
        """Return the slots whose last record has not the snapshot's bound.

        Slots with a later record are left out: compaction may have removed the earlier one.
        """
        same = (self._bound_found == self._bounds).all(axis=1)
        return np.flatnonzero(self._raised & ~self.is_later & ~same)

    def bound(self, slot: int) -> list[float]:
        """Return the bound in the snapshot."""
        bound: list[float] = self._bounds[slot].tolist()
        return bound

    def found(self, slot: int) -> dict[str, Any] | None:
        """Return the last record; None if there is none."""
        if self._at[slot] < 0:
            return None
        return {"offset": int(self._at[slot]), "bound": self._bound_found[slot].tolist()}


def _slot_of(ledger: Ledger, decoded: OdometerRecord) -> int | None:
    accounts = ledger.state.datasets.get(decoded.dataset)
    if accounts is None or not accounts.knows(UserIds([decoded.user]))[0]:
        return None
    (slot,) = accounts.seek(UserIds([decoded.user])).slots.tolist()
    return int(slot)


def _may_be_erased(ledger: Ledger, decoded: OdometerRecord) -> bool:
    """Return whether the user was erased since, so that a tombstone follows the record."""
    if decoded.dataset not in ledger.state.datasets:
        return False
    budgets = ledger.state.policies.budgets(decoded.dataset)
    return budgets.are_erased(budgets.known_as(UserIds([decoded.user]))) is not None


def _bounds(ledger: Ledger) -> Iterator[tuple[str, User, list[float]]]:
    """Yield the dataset, the id and the present bound of every user."""
    for name, accounts in ledger.state.datasets.items():
        bounds = accounts.bounds()
        for slot in range(len(accounts)):
            (user,) = accounts.users_at(np.array([slot]))
            yield (
                name,
                user if isinstance(user, str) else int(user),
                np.atleast_1d(bounds[slot]).tolist(),
            )
