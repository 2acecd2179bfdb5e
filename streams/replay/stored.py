"""The stored state of a partition, compared with the replayed log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.accounts import Accounts
from streams.ledger.columns import PAGE_ROWS
from streams.ledger.ledger import Ledger, Output, PartitionError, UnknownState, ledger_of
from streams.ledger.rosters import Members
from streams.replay.archive import Archive, HeadSource, StoredHead
from streams.replay.findings import Check, Findings
from streams.replay.replay import NAMES
from streams.store.layout import Damaged
from streams.store.misfit import Suspensions
from streams.store.stored_state import StoredState
from streams.worker.outbox import Packed

Numbers = Mapping[str, NDArray[np.integer]]

_UNUSABLE = (PartitionError, UnknownState, ValueError, LookupError, msgspec.DecodeError)
"""The errors of a stored state that cannot be loaded."""
_ENTRIES = (
    *("layout", "policies", "runs", "rosters", "separations", "participants"),
    *("holds", "closed", "erasure", "erased", "access", "retired", "origin"),
)
"""The parts of a state that are mappings."""
_COMPARED_OF_MEMBERS = ("slot", "level", "granted", "flags")
"""Without the step since which charges accrue: accounts are compared with accrued charges."""


class StoredPartition:
    """The stored state of one partition at one moment.

    Attributes:
        stored: the state; None if there is none to compare, or after the comparison.
        next: the offset at which it continues.
        outbox: the outputs in it that are not published yet.
        lacking: why there is no state.
        at: the offset at which it was compared; None if it was not.
    """

    def __init__(
        self, holder: HeadSource, load: Callable[[], StoredState | None], findings: Findings
    ) -> None:
        """Load the state.

        Args:
            holder: where it is stored.
            load: returns the state; raises ``Damaged`` if it is incomplete or was changed.
            findings: of the partition.
        """
        self.stored: StoredState | None = None
        self.outbox: list[Output] = []
        self.lacking: str | None = None
        self.next: int | None = None
        self.at: int | None = None
        check = Check.SNAPSHOT if holder is HeadSource.SNAPSHOT else Check.STATE
        self._check, self._holder, self._name = check, holder, NAMES[holder]
        self._findings = findings
        try:
            self.stored = load()
        except Damaged as damaged:
            findings.add(check, f"the state in {self._name} is damaged: {damaged}")
            self.lacking = f"the state in {self._name}: it is damaged"
            return
        if self.stored is None:
            self.lacking = f"the state in {self._name}: there is none of this partition"
            return
        self.next = self.stored.next
        try:
            self.outbox = [
                output
                for _, packed in self.stored.outbox
                for output in msgspec.msgpack.decode(packed, type=Packed).outputs
            ]
        except msgspec.DecodeError as error:
            findings.add(check, f"the outbox cannot be read: {error}")

    @property
    def head(self) -> StoredHead:
        """Return the head of the stored hash chain."""
        if self.stored is None:
            return StoredHead(self._holder, lacking=self.lacking or "")
        return StoredHead(self._holder, self.stored.next, self.stored.meta.chain.head)

    def compare_at(self, ledger: Ledger, offset: int) -> None:
        """Compare the state once, when the replay has reached the offset at which it continues."""
        if self.stored is not None and self.stored.next <= offset:
            self.at = self.stored.next
            self._compare(ledger, self.stored)
            self.stored = None  # it takes as much memory as the ledger

    def has_applied(self, offset: int) -> bool:
        """Return whether the state includes the record at an offset."""
        return self.next is not None and offset < self.next

    def discard(self) -> None:
        """Compare nothing with this state."""
        self.stored, self.next, self.outbox = None, None, []

    def check_position(self, archive: Archive, extent: Extent) -> None:
        """Check that the log continues the state, if the log cannot be replayed up to it."""
        if self.stored is None:
            return
        at, chain = self.stored.next, self.stored.meta.chain
        if not extent.start <= at <= extent.end:
            expected = {"from": extent.start, "to": extent.end}
            problem = f"{self._name} continues at an offset outside of the log"
            self._findings.add(self._check, problem, offset=at, expected=expected, found=at)
        if chain.last >= extent.start:
            one = Extent(chain.last, chain.last + 1)
            records = list(archive.read(NORMS, self._findings.partition, one))
            if not records or not chain.ends_with(records[0].value):
                problem = "the log has another record where the last applied record was"
                self._findings.add(self._check, problem, offset=chain.last)

    def _compare(self, ledger: Ledger, stored: StoredState) -> None:
        meta, ours = stored.meta, ledger.state
        add = partial(self._findings.add, self._check, offset=stored.next)
        log = Suspensions("", ours.partition, ours.topic, ours.partitions, 0, 0, self._name)
        if misfit := log.misfit(meta.identity):
            add(misfit.problem, expected=log.identity, found=meta.identity)
        if tuple(ledger.chain) != tuple(meta.chain):
            heads = [[chain.before.hex(), chain.last] for chain in (ledger.chain, meta.chain)]
            add("another last record of the hash chain", expected=heads[0], found=heads[1])
        if meta.since > meta.next or meta.version < (self._check is Check.STATE):
            problem = "meta is inconsistent: deltas end before they begin, or nothing was written"
            add(problem, found={"since": meta.since, "version": meta.version})
        keys = ledger.erasure_keys
        try:
            loaded = ledger_of(
                stored, ours.partition, ours.partitions, ours.topic, meta.chain, keys
            )
        except _UNUSABLE as error:
            add(f"the state cannot be loaded: {error!r}")
            return
        for difference in differences(ledger, loaded):
            add(**difference._asdict())
            if self._findings.is_full(self._check):
                return


class Difference(NamedTuple):
    """A difference between two states."""

    problem: str
    about: dict[str, Any]
    expected: Any
    found: Any


def differences(expected: Ledger, found: Ledger) -> Iterator[Difference]:
    """Yield the differences between two states, after accrued charges are applied to both.

    Numbers are compared only if all entries are equal: a roster with other terms, or users under
    another policy, have numbers of another meaning.
    """
    entries = [
        difference
        for what in _ENTRIES
        for difference in _entries(what, getattr(expected.state, what), getattr(found.state, what))
    ]
    yield from entries
    if entries:
        return
    expected.restore_rosters()
    try:
        found.restore_rosters()
    except (ValueError, LookupError) as error:
        yield Difference(f"rosters cannot continue from the state: {error!r}", {}, None, None)
        return
    for name, accounts in expected.state.datasets.items():
        yield from _accounts(name, accounts, found.state.datasets[name])
    for address, members in expected.state.rosters.members.items():
        yield from _members(address, members, found.state.rosters.members[address])


def _entries(
    what: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]
) -> Iterator[Difference]:
    names = ("dataset", "slot") if what == "erased" else ("dataset", "run", "place")
    for address in sorted(expected.keys() | found.keys()):
        ours, theirs = expected.get(address), found.get(address)
        if ours != theirs:
            about = dict(zip(names, address, strict=False))
            yield Difference(f"another entry of {what}", about, _plain(ours), _plain(theirs))


def _accounts(name: str, expected: Accounts, found: Accounts) -> Iterator[Difference]:
    if len(expected) != len(found):
        yield Difference("other users", {"dataset": name}, len(expected), len(found))
        return
    for slots in _blocks(len(expected)):
        users, theirs = (list(accounts.users_at(slots)) for accounts in (expected, found))
        for user, their in zip(users, theirs, strict=True):
            if user != their:
                about = {"dataset": name, "user": _plain(user)}
                yield Difference("another user in this slot", about, _plain(user), _plain(their))
                return
        for row, ours, other in _rows(expected.numbers(slots), found.numbers(slots)):
            about = {"dataset": name, "user": _plain(users[row])}
            yield Difference("other numbers of a user", about, ours, other)


def _members(address: tuple[str, ...], expected: Members, found: Members) -> Iterator[Difference]:
    about: dict[str, Any] = dict(zip(("dataset", "run"), address, strict=True))
    if len(expected) != len(found):
        yield Difference("other members of a roster", about, len(expected), len(found))
        return
    for slots in _blocks(len(expected)):
        ours, theirs = (
            {name: numbers[name] for name in _COMPARED_OF_MEMBERS if name in numbers}
            for numbers in (expected.numbers(slots), found.numbers(slots))
        )
        for row, mine, other in _rows(ours, theirs):
            at = {**about, "position": int(slots[row])}
            yield Difference("other numbers of a member", at, mine, other)


def _blocks(count: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, count, PAGE_ROWS):
        yield np.arange(start, min(start + PAGE_ROWS, count))


def _rows(
    expected: Numbers, found: Numbers
) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield the rows that differ, with the numbers that do."""
    wrong = {
        name: (numbers != found[name]).reshape(len(numbers), -1).any(axis=1)
        for name, numbers in expected.items()
    }
    for row in np.flatnonzero(np.any(list(wrong.values()), axis=0)).tolist():
        names = [name for name in expected if wrong[name][row]]
        yield (
            row,
            {name: expected[name][row].tolist() for name in names},
            {name: found[name][row].tolist() for name in names},
        )


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    return value.item() if isinstance(value, np.generic) else msgspec.to_builtins(value)
