"""The state of one partition, and which part of it is not stored yet.

The state is stored in two forms. A ``Delta`` has the changes of a batch of records, and is written
with the batch. Pages hold the state itself. From time to time the pages that have changed are
written, and the deltas that led to them are deleted. Pages have names:

    KIND:ADDRESS        an entry, such as a policy, a run or P; see ``tracked``
    page:DATASET/N      users N * 4096 to (N + 1) * 4096 of a dataset, and their numbers
    members:DATASET/RUN/N   members N * 4096 to (N + 1) * 4096 of a roster

State = pages, then the deltas in order. A page may be newer than some of the deltas. Most values in
deltas are absolute; steps that are stored as levels are charged exactly once (``Accounts``).

A new kind of state is one line of ``State.__init__``, ``self.things = self.keep(Tracked("thing",
Thing))``: it is then written, merged and restored like the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from streams.ledger.accounts import AccountDelta, Accounts, Page
from streams.ledger.authorization import Access, Authorization
from streams.ledger.budgets import Policies
from streams.ledger.collecting import Collected
from streams.ledger.columns import PAGE_ROWS, RowDelta
from streams.ledger.erasure import ErasedUsers, ErasureKeys, KeysInUse
from streams.ledger.partition_errors import LayoutMismatch, UnknownState
from streams.ledger.roster_members import MemberDelta, Rosters
from streams.ledger.run_states import Runs
from streams.ledger.separation import Participants
from streams.ledger.tracked import Address, Tracked
from streams.ledger.worst_case import WorstCases
from streams.records import CollectTerms, Holder, encode

AnyTracked = TypeVar("AnyTracked", bound=Tracked[Any])
_PAGE, _MEMBERS = "page:", "members:"


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """The changes of a batch of records: new values, or steps by level."""

    entries: dict[str, msgspec.Raw]  # by name; nil if deleted
    accounts: list[AccountDelta]  # in the order in which they were made
    members: list[MemberDelta] = []  # the same


class Retirement(msgspec.Struct, frozen=True, array_like=True):
    """The end of a partition of a log."""

    successor: bytes  # the id of the log that continues the state
    partitions: int  # of that log
    next: int  # the offset of the record that ended it
    head: bytes  # of the hash chain before that record


class ImportOrigin(msgspec.Struct, frozen=True, array_like=True):
    """Proof of the state that a partition of a log begins with."""

    topic: bytes  # the id of the log that it comes from
    heads: list[tuple[int, bytes]]  # of each partition of that log: where it ended, and its head
    digest: bytes  # of the imported pages


class SavedState(Protocol):
    """The stored state of a partition: pages, then the deltas since, in order."""

    @property
    def pages(self) -> dict[str, bytes]:
        """Name -> packed state."""

    @property
    def changes(self) -> list[bytes]:
        """Packed ``Delta``."""


class PartitionCount(Tracked[int]):
    """P, at the address (), from the first dataset on: the log is for P partitions."""

    def __init__(self, partitions: int) -> None:
        super().__init__("partitions", int)
        self._partitions = partitions

    def _moves(self, address: Address, before: int | None, after: int | None) -> None:
        if after is not None and after != self._partitions:
            raise LayoutMismatch(after, self._partitions)


class State:
    """The datasets and runs of one partition.

    Attributes:
        topic: the 16 bytes of the topic's id in Kafka.
        partitions: P of the topic.
        runs: (dataset, run) -> state.
        rosters: (dataset, run) -> the terms of a run's roster.
        separations: (dataset, run) -> the minimum separation of a run, if it has one.
        collecting: (dataset, run) -> the terms under which a run collects norms, if it does.
        holds: (outermost dataset,) -> the run that holds its budget, if one does.
        closed: (dataset,) -> the offset from which on it is closed, if it is.
        access: (dataset,) -> its own access list, if it has one.
        retired: () -> the end of the log, if it has ended.
        origin: () -> the log whose state this one continues, if there is one.
    """

    def __init__(
        self,
        topic: bytes,
        partition: int,
        partitions: int,
        keys: ErasureKeys,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.partitions = partitions
        self._kinds: dict[str, Tracked[Any]] = {}
        self.layout = self.keep(PartitionCount(partitions))
        self.datasets: dict[str, Accounts] = {}
        self.erasure = KeysInUse(keys)
        self.erased = ErasedUsers(self.datasets, self.erasure)
        self.policies = self.keep(Policies(partition, self.datasets, self.erased.known_as))
        self.runs = self.keep(Runs())
        self.rosters = self.keep(Rosters())
        self.separations: Tracked[int] = self.keep(Tracked("separation", int))
        self.participants = self.keep(Participants())
        self.collecting: Tracked[CollectTerms] = self.keep(Tracked("collecting", CollectTerms))
        self.collected = self.keep(Collected())
        self.holds: Tracked[Holder] = self.keep(Tracked("hold", Holder))
        self.worst_cases = self.keep(WorstCases())
        self.closed: Tracked[int] = self.keep(Tracked("closed", int))
        self.keep(self.erasure)
        self.keep(self.erased)
        self.retired: Tracked[Retirement] = self.keep(Tracked("retired", Retirement))
        self.origin: Tracked[ImportOrigin] = self.keep(Tracked("origin", ImportOrigin))
        self.access: Tracked[Access] = self.keep(Tracked("access", Access))
        self.authorization = Authorization(partition, self.access, self.policies)
        self._accounts: list[AccountDelta] = []  # since the last batch
        self._members: list[MemberDelta] = []  # the same
        self._torn: set[Address] = set()  # rosters of which pages were missing when it was loaded
        self._put_out = 0  # bytes of changes of accounts, and of what is published

    def keep(self, entries: AnyTracked) -> AnyTracked:
        """Store these entries in deltas and snapshots under their kind, and return them."""
        self._kinds[entries.kind] = entries
        return entries

    @property
    def unwritten_bytes(self) -> int:
        """The approximate size of changes and outputs since the last ``take_delta``, in bytes."""
        return self._put_out + sum(entries.changed_bytes for entries in self._kinds.values())

    @property
    def has_unmerged_erasures(self) -> bool:
        """Return whether stored deltas and pages may still have the id of an erased user."""
        return self.erased.is_unmerged or self.collected.is_unmerged

    def add_output_bytes(self, size: int) -> None:
        """Count the outputs of a record towards the size of the next write."""
        self._put_out += size

    def take_delta(self) -> Delta:
        """Return the changes since the last call."""
        entries = {
            name: msgspec.Raw(packed)
            for kind in self._kinds.values()
            if kind.changed_bytes
            for name, packed in kind.take_delta().items()
        }
        changes = Delta(entries, self._accounts, self._members)
        self._accounts, self._members, self._put_out = [], [], 0
        return changes

    def load(self, pages: Mapping[str, bytes], deltas: Iterable[bytes] = ()) -> None:
        """Restore the state from pages of ``take_page``, in any order, and the deltas since.

        Raises:
            LayoutMismatch: it is of another P.
            UnknownState: another release wrote some of it.
            ValueError: pages are missing.
        """
        self._load_pages(pages)
        for packed in deltas:
            self._apply_delta(msgspec.msgpack.decode(packed, type=Delta))
        for address in self._torn:
            if address in self.rosters:
                raise ValueError(f"pages of the members of {'/'.join(address)} are missing")
        for address in self.rosters:
            steps = self.runs[address].roster_steps
            self.rosters.start(address, self.policies.budgets(address[0]), steps)
        self.take_delta()

    def _apply_delta(self, changes: Delta) -> None:
        """Set what the changes of an earlier owner of this partition say."""
        for name, packed in changes.entries.items():
            self._kind_of(name).restore_entry(name, bytes(packed))
        for accounts in changes.accounts:
            self.datasets[accounts.dataset].apply_delta(accounts)
        self.erased.rename()
        for members in changes.members:
            # A roster that is gone at the end of a batch may have changed before.
            if members.address in self.rosters:
                self.rosters.rows[members.address].apply_members(members)

    def _load_pages(self, pages: Mapping[str, bytes]) -> None:
        accounts: dict[tuple[Address, int], bytes] = {}
        members: dict[tuple[Address, int], bytes] = {}
        for name, packed in pages.items():
            if name.startswith(_PAGE):
                accounts[_place(name)] = packed
            elif name.startswith(_MEMBERS):
                members[_place(name)] = packed
            else:
                self._kind_of(name).restore_entry(name, packed)
        for dataset, count in Counter(dataset for (dataset,), _ in accounts).items():
            self.datasets[dataset].expect(count)
        for ((dataset,), number), packed in sorted(accounts.items()):
            page = msgspec.msgpack.decode(packed, type=Page)
            self.datasets[dataset].load_page(number, page)
        self.erased.rename()
        for (address, number), packed in sorted(members.items()):
            if address in self.rosters and number * PAGE_ROWS != len(self.rosters.rows[address]):
                # The run was closed during a merge, which has deleted pages before this one. The
                # deltas delete the roster.
                self._torn.add(address)
                self.rosters.dropped.add((address, number))
            elif address in self.rosters:
                rows = msgspec.msgpack.decode(packed, type=dict[str, bytes])
                self.rosters.rows[address].load_page(number, rows)
            else:  # a merge had not deleted it yet, or deltas create the roster again
                self.rosters.dropped.add((address, number))
        for kind in self._kinds.values():
            kind.mark_all_written()

    def unmerged(self) -> list[str]:
        """Return the names of changed pages; writing them may stop after any of them."""
        entries = [name for kind in self._kinds.values() for name in kind.unmerged()]
        accounts = [
            f"{_PAGE}{dataset}/{number}"
            for dataset, accounts in self.datasets.items()
            for number in accounts.changed_pages()
        ]
        changed = {
            (address, number)
            for address, rows in self.rosters.rows.items()
            for number in rows.changed_pages()
        }
        members = [
            f"{_MEMBERS}{'/'.join(address)}/{number}"
            for address, number in sorted(changed | self.rosters.dropped)
        ]
        return entries + accounts + members

    def take_page(self, name: str) -> bytes | None:
        """Return a page, None if it is to be deleted; from here on it counts as written."""
        if name.startswith(_PAGE):
            (dataset,), number = _place(name)
            return encode(self.datasets[dataset].take_page(number))
        if name.startswith(_MEMBERS):
            address, number = _place(name)
            self.rosters.dropped.discard((address, number))
            if address not in self.rosters:
                return None
            return encode(self.rosters.rows[address].take_page(number))
        return self._kind_of(name).take_page(name)

    def note(self, accounts: AccountDelta) -> None:
        """Add changes of accounts to the next delta."""
        self._accounts.append(accounts)
        self._put_out += accounts.size

    def note_members(self, address: Address, rows: RowDelta) -> None:
        """Add changes of a roster's members to the next delta."""
        if rows.rows:
            count = len(self.rosters.rows[address])
            self._members.append(MemberDelta(address, count, rows))
            self._put_out += rows.size

    def _kind_of(self, name: str) -> Tracked[Any]:
        kind = name.partition(":")[0]
        if kind not in self._kinds:
            raise UnknownState(f"entries of the kind {kind!r}")
        return self._kinds[kind]


def _place(name: str) -> tuple[Address, int]:
    """Return the address in a page name of users or members, and the page number."""
    *address, number = name.partition(":")[2].split("/")
    return tuple(address), int(number)
