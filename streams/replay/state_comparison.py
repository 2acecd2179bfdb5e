"""The stored state of a partition, compared with the replayed log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.accounts import Accounts
from streams.ledger.columns import PAGE_ROWS
from streams.ledger.ledger import (
    Ledger,
    LostErasureKey,
    Output,
    PartitionError,
    UnknownState,
    ledger_of,
)
from streams.ledger.roster_members import Members
from streams.ledger.validation import is_keyed_hash
from streams.records import ERASED_STRING, User, encode
from streams.replay.archive import Archive, HeadSource, StoredHead, UnreadableService
from streams.replay.findings import Check, PartitionVerified
from streams.replay.log_replay import NAMES
from streams.store.layout import Damaged
from streams.store.misfit import Suspensions
from streams.store.stored_state import StoredState
from streams.worker.outbox import Packed

Table: TypeAlias = Accounts | Members
Difference: TypeAlias = tuple[str, dict[str, Any], Any, Any]
"""The problem, what it is about, and the values that are expected and found."""

_UNUSABLE = (PartitionError, UnknownState, ValueError, LookupError, msgspec.DecodeError)
"""The errors of a stored state that cannot be loaded."""
_ENTRIES = (
    *("layout", "policies", "runs", "rosters", "separations", "participants"),
    *("collecting", "collected", "holds", "closed", "erasure", "erased", "access"),
    *("retired", "origin"),
)
"""The parts of a state that are mappings."""


class StoredPartition:
    """The stored state of one partition at one moment."""

    def __init__(
        self, holder: HeadSource, load: Callable[[], StoredState | None], result: PartitionVerified
    ) -> None:
        """Load the state.

        Args:
            load: returns the state; raises ``Damaged`` if it is incomplete or was changed.
        """
        self.stored: StoredState | None = None  # until it is compared
        self.next: int | None = None  # the offset at which it continues
        self.at: int | None = None  # the offset at which it was compared
        self.outbox: list[Output] = []  # the outputs in it that are not published yet
        self.lacking: str | None = None  # why there is no state
        check = Check.SNAPSHOT if holder is HeadSource.SNAPSHOT else Check.STATE
        self._check, self._holder, self._name = check, holder, NAMES[holder]
        self._result = result
        try:
            self.stored = load()
        except Damaged as damaged:
            result.add(check, f"the state in {self._name} is damaged: {damaged}")
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
            result.add(check, f"the outbox cannot be read: {error}")

    @property
    def head(self) -> StoredHead:
        """Return the head of the stored hash chain."""
        place = self._result.partition, self._holder
        if self.stored is None:
            return StoredHead(*place, lacking=self.lacking or "it was not loaded")
        return StoredHead(*place, self.stored.next, self.stored.meta.chain.head)

    def compare_at(self, ledger: Ledger, offset: int) -> int | None:
        """Compare the state once, when the replay has reached the offset at which it continues.

        Returns:
            This offset if the state was compared now.
        """
        if self.stored is None or self.stored.next > offset:
            return None
        self.at = self.stored.next
        self._compare(ledger, self.stored)
        self.stored = None  # it takes as much memory as the ledger
        return self.at

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
        place = self._result.partition, archive.topic, archive.partitions
        if misfit := Suspensions("", *place, *extent, self._name).out_of_log(at):
            expected = {"from": extent.start, "to": extent.end}
            self._result.add(self._check, misfit.problem, offset=at, expected=expected, found=at)
        if chain.last >= extent.start:
            one = Extent(chain.last, chain.last + 1)
            records = list(archive.read(NORMS, self._result.partition, one))
            if not records or not chain.ends_with(records[0].value):
                problem = "the log has another record where the last applied record was"
                self._result.add(self._check, problem, offset=chain.last)

    def _compare(self, ledger: Ledger, stored: StoredState) -> None:
        meta, ours = stored.meta, ledger.state
        add = partial(self._result.add, self._check, offset=stored.next)
        log = Suspensions("", ours.partition, ours.topic, ours.partitions, 0, 0, self._name)
        if misfit := log.misfit(meta.identity):
            add(misfit.problem, expected=log.identity, found=meta.identity)
        if tuple(ledger.chain) != tuple(meta.chain):
            heads = [[chain.before.hex(), chain.last] for chain in (ledger.chain, meta.chain)]
            add("another last record of the hash chain", expected=heads[0], found=heads[1])
        if meta.since > meta.next or meta.version < (self._check is Check.STATE):
            problem = "meta is inconsistent: deltas end before they begin, or nothing was written"
            add(problem, found={"since": meta.since, "version": meta.version})
        place = ours.partition, ours.partitions, ours.topic
        try:
            theirs = ledger_of(stored, *place, meta.chain, ledger.erasure_keys)
        except LostErasureKey as lost:
            raise UnreadableService(f"partition {ours.partition}, {self._name}: {lost}") from lost
        except _UNUSABLE as error:
            add(f"the state cannot be loaded: {error!r}")
            return
        for problem, about, expected, found in _differences(ledger, theirs):
            add(problem, about=about, expected=expected, found=found)
            if self._result.is_full(self._check):
                return


def _differences(ours: Ledger, theirs: Ledger) -> Iterator[Difference]:
    """Yield the differences between two states, after accrued charges are applied to both.

    Numbers are compared only if all entries are equal: a roster with other terms, or users under
    another policy, have numbers of another meaning.
    """
    entries, keys = 0, [ours.state.erasure.keys(), theirs.state.erasure.keys()]
    # The replay hashes with the newest key alone, whichever key was the newest at the erasure.
    comparable = keys[0] == keys[1] and len(keys[0]) < 2
    for what in _ENTRIES:
        if what == "erasure" and not comparable:
            continue
        places = {"erased": ("dataset", "slot"), "collected": ("dataset", "run", "step", "block")}
        names = places.get(what, ("dataset", "run", "place"))
        both = getattr(ours.state, what), getattr(theirs.state, what)
        for address in sorted(both[0].keys() | both[1].keys()):
            expected, found = (each.get(address) for each in both)
            if what == "erased" and not comparable:
                expected, found = map(_unhashed, (expected, found))
            if encode(expected) != encode(found):  # NaN differs from itself
                entries += 1
                about = dict(zip(names, address, strict=False))
                yield f"another entry of {what}", about, _plain(expected), _plain(found)
    if entries:
        return
    for name, accounts in ours.state.datasets.items():
        yield from _rows({"dataset": name}, accounts, theirs.state.datasets[name])
    for (dataset, run), members in ours.state.rosters.members.items():
        about, other = {"dataset": dataset, "run": run}, theirs.state.rosters.members[dataset, run]
        yield from _rows(about, members, other)


def _rows(about: dict[str, Any], ours: Table, theirs: Table) -> Iterator[Difference]:
    """Yield the rows that differ, with the numbers that do."""
    row, name = ("member", "position") if isinstance(ours, Members) else ("user", "user")
    if len(ours) != len(theirs):
        yield f"another number of {row}s", about, len(ours), len(theirs)
        return
    for start in range(0, len(ours), PAGE_ROWS):
        slots = np.arange(start, min(start + PAGE_ROWS, len(ours)))
        expected, found = (_numbers(table, name, slots) for table in (ours, theirs))
        wrong = {
            column: (numbers != found[column]).reshape(len(slots), -1).any(axis=1)
            for column, numbers in expected.items()
        }
        for at in np.flatnonzero(np.any(list(wrong.values()), axis=0)).tolist():
            ours_here, theirs_here = (
                {column: _plain(numbers[column][at]) for column in wrong if wrong[column][at]}
                for numbers in (expected, found)
            )
            about = {**about, name: expected[name][at]}
            yield f"other numbers of a {row}", about, ours_here, theirs_here


def _numbers(table: Table, name: str, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the numbers in these rows, and the ids of the users under this name."""
    numbers: dict[str, NDArray[Any]] = {**table.numbers(slots)}
    numbers.pop("since", None)  # the step until which charges are applied: now they all are
    ids = slots if isinstance(table, Members) else map(_unhashed, table.users_at(slots))
    return numbers | {name: np.array([*ids], dtype=object)}


def _unhashed(user: User | None) -> User | None:
    """Return an id, or the prefix of the keyed hash in its place."""
    if isinstance(user, str) and is_keyed_hash(user):
        return user[: len(ERASED_STRING)]
    return user


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    is_array = isinstance(value, np.generic | np.ndarray)
    return value.tolist() if is_array else msgspec.to_builtins(value)
