"""What one partition holds: datasets and runs, and which of it is not stored yet.

There are two ways to the store. A ``Delta`` says what a batch of records changed, and is written
with the batch. Fields hold the state itself, one value each; from time to time those that have
changed are written, and the deltas that led to them are dropped:

    partitions          P, for which the log was written, once that is known
    policy:DATASET      a policy; withdrawn datasets have none
    page:DATASET/N      users N * 4096 to (N + 1) * 4096 of a dataset
    run:DATASET/RUN     where a run stands

State = fields, then the deltas in order. Values are absolute, so it does no harm if a field is
newer than some of the deltas.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from streams.ledger.accounts import Accounts, AccountsChanges, Page
from streams.ledger.runs import RunState
from streams.ledger.writes import ids_written
from streams.schemas import Policy, encode

_PARTITIONS = "partitions"
_RECORD_BYTES = 512  # of what surrounds the arrays in a change


class LayoutMismatch(Exception):
    """The log was written for another number of partitions: a stop, and nothing has changed.

    Attributes:
        reason: what is wrong.
        remedy: what an operator can do about it.
    """

    def __init__(self, written_for: int, partitions: int) -> None:
        self.reason = (
            f"the log was written for {written_for} partitions, but its topic has {partitions}: "
            "users would live in other partitions, and have a second budget there"
        )
        self.remedy = (
            "If partitions were added to the topic, make it anew from a copy of the log, with "
            f"{written_for} partitions. If the client that created the first dataset was wrong "
            "about their number, nothing has been charged: delete the topic and what Redis keeps "
            "of its partitions, and create the dataset again"
        )
        super().__init__(f"{self.reason}. {self.remedy}")


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What a batch of records changed: new values, in the order in which they were set."""

    policies: dict[str, Policy | None]  # None: the dataset was withdrawn
    accounts: list[AccountsChanges]
    runs: list[RunState]
    partitions: int = 0  # P, if this batch has bound it


class DatasetSummary(msgspec.Struct, frozen=True):
    """One dataset in one partition."""

    policy: Policy
    users: int
    exhausted: int  # users with nothing left


class Summary(msgspec.Struct, frozen=True):
    """What a partition holds, in numbers that are kept and not counted when they are asked for."""

    datasets: dict[str, DatasetSummary]
    open_runs: int
    closed_runs: int


class Kept(Protocol):
    """What a store keeps of a partition: pages of state, then the changes since, in order."""

    @property
    def pages(self) -> dict[str, bytes]:
        """Field -> packed state."""

    @property
    def changes(self) -> list[bytes]:
        """Packed ``Delta`` records."""


class State:
    """The datasets and runs of one partition.

    Attributes:
        partition: which one.
        partitions: P of the topic.
        datasets: name -> accounts.
        runs: (dataset, run) -> state.
    """

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self.partitions = partitions
        self.datasets: dict[str, Accounts] = {}
        self.runs: dict[tuple[str, str], RunState] = {}
        self._bound = False  # a dataset was created here: the log is known to be for these P
        self._used: set[str] = set()  # datasets of which a run was opened
        self._closed_runs = 0
        # What the next delta says.
        self._policies: dict[str, Policy | None] = {}
        self._accounts: list[AccountsChanges] = []
        self._touched_runs: dict[tuple[str, str], None] = {}
        self._newly_bound = False
        self._unwritten = 0
        # Which fields are not what was folded last.
        self._unfolded_policies: set[str] = set()
        self._unfolded_runs: set[tuple[str, str]] = set()
        self._unfolded_bound = False

    @property
    def unwritten_bytes(self) -> int:
        """About how much was changed and put out since ``take_changes`` was called last."""
        decisions = sum(len(self.runs[key].decision) for key in self._touched_runs)
        return self._unwritten + decisions + _RECORD_BYTES * len(self._touched_runs)

    def summary(self) -> Summary:
        """What stands here, in a few numbers."""
        datasets = {
            name: DatasetSummary(accounts.policy, len(accounts), accounts.exhausted_users)
            for name, accounts in self.datasets.items()
        }
        return Summary(datasets, len(self.runs) - self._closed_runs, self._closed_runs)

    def take_changes(self) -> Delta:
        """What changed since the last call."""
        runs = [self.runs[key] for key in self._touched_runs]
        bound = self.partitions if self._newly_bound else 0
        delta = Delta(self._policies, self._accounts, runs, bound)
        self._policies, self._accounts, self._touched_runs = {}, [], {}
        self._newly_bound, self._unwritten = False, 0
        return delta

    def replay(self, delta: Delta) -> None:
        """Set what a delta of an earlier owner of this partition says.

        Raises:
            LayoutMismatch: it is of another P.
        """
        if delta.partitions:
            self._bind(delta.partitions)
        for name, policy in delta.policies.items():
            self._set_policy(name, policy)
        for accounts in delta.accounts:
            self.datasets[accounts.dataset].apply(accounts)
        for run in delta.runs:
            self._set_run(run)
        self.take_changes()

    def load(self, fields: dict[str, bytes]) -> None:
        """Put back what ``unfolded`` and ``fold`` wrote, in any order of the fields.

        Raises:
            LayoutMismatch: it is of another P.
        """
        pages: dict[tuple[str, int], bytes] = {}
        for name, value in fields.items():
            kind, _, rest = name.partition(":")
            if kind == _PARTITIONS:
                self._bind(msgspec.msgpack.decode(value, type=int))
            elif kind == "policy":
                self._set_policy(rest, msgspec.msgpack.decode(value, type=Policy))
            elif kind == "run":
                self._set_run(msgspec.msgpack.decode(value, type=RunState))
            else:
                dataset, _, number = rest.rpartition("/")
                pages[dataset, int(number)] = value
        for (dataset, page), value in sorted(pages.items()):
            self.datasets[dataset].load_page(page, msgspec.msgpack.decode(value, type=Page))
        self.take_changes()
        self._unfolded_policies.clear()
        self._unfolded_runs.clear()
        self._unfolded_bound = False

    def unfolded(self) -> list[str]:
        """The fields that differ from what was last folded, in an order that may stop anywhere."""
        names = [_PARTITIONS] if self._unfolded_bound else []
        names += [f"policy:{dataset}" for dataset in sorted(self._unfolded_policies)]
        names += [
            f"page:{dataset}/{number}"
            for dataset, accounts in self.datasets.items()
            for number in accounts.dirty_pages()
        ]
        return names + [f"run:{dataset}/{run}" for dataset, run in sorted(self._unfolded_runs)]

    def fold(self, name: str) -> bytes | None:
        """The value of one field as it stands now, None if there is nothing to keep.

        From here on it counts as folded.
        """
        kind, _, rest = name.partition(":")
        if kind == _PARTITIONS:
            self._unfolded_bound = False
            return encode(self.partitions)
        if kind == "policy":
            self._unfolded_policies.discard(rest)
            accounts = self.datasets.get(rest)
            return None if accounts is None else encode(accounts.policy)
        dataset, _, last = rest.rpartition("/")
        if kind == "run":
            self._unfolded_runs.discard((dataset, last))
            return encode(self.runs[dataset, last])
        return encode(self.datasets[dataset].take_page(int(last)))

    def _bind(self, partitions: int) -> None:
        if partitions != self.partitions:
            raise LayoutMismatch(partitions, self.partitions)
        if not self._bound:
            self._bound = self._newly_bound = self._unfolded_bound = True

    def _set_policy(self, name: str, policy: Policy | None) -> None:
        held = self.datasets.get(name)
        if policy is None:
            self.datasets.pop(name, None)
        elif held is None or held.policy != policy:
            # In place of another policy only when what a dataset was, before it was withdrawn
            # and created anew, is replayed: who was charged since comes back with later deltas.
            self.datasets[name] = Accounts(policy, self.partition)
        self._policies[name] = policy
        self._unfolded_policies.add(name)
        self._unwritten += _RECORD_BYTES if policy is None else len(encode(policy))

    def _set_run(self, run: RunState) -> None:
        key = run.dataset, run.run
        before = self.runs.get(key)
        self._closed_runs += run.closed - (before is not None and before.closed)
        self.runs[key] = run
        self._used.add(run.dataset)
        self._touched_runs[key] = None
        self._unfolded_runs.add(key)

    def _add_accounts(self, delta: AccountsChanges) -> None:
        self._accounts.append(delta)
        arrays = delta.slots, delta.spent, delta.raised, delta.base, delta.rungs
        self._unwritten += ids_written(delta.new_users) + sum(map(len, arrays)) + _RECORD_BYTES
