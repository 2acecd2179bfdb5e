"""What the auditor holds of each partition: datasets, runs, and what must be published by then."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kafka.partitioner.default import murmur2

from tests.audit.auditor_access import AccessLists, Listed
from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_erasure import Names, renamed
from tests.audit.auditor_requests import NOT_GIVEN, Rejection, User
from tests.audit.auditor_rosters import Roster

Place = tuple[int, int]
"""Partition and offset."""


def home(user: User, partitions: int) -> int:
    """The partition of a user, as the Java client's default partitioner would place its key."""
    key = user.encode() if isinstance(user, str) else user.to_bytes(8, "big", signed=True)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@dataclass
class Collection:
    """The norms that count for a step, by user, in the order of the log.

    The number of events and the octets count those of erased users, too.
    """

    norms: dict[User, float] = field(default_factory=dict)
    events: int = 0
    octets: int = 0

    def add(self, user: User, norm: float) -> None:
        self.norms[user] = norm
        self.events += 1
        self.octets += 8 + octets_of(user)

    def state(self) -> tuple[list[tuple[User, float]], int, int]:
        """Return the users and norms, and the number of events and octets."""
        return list(self.norms.items()), self.events, self.octets

    def erase(self, user: User) -> None:
        self.norms.pop(user, None)


def octets_of(user: User) -> int:
    return len(user.encode()) if isinstance(user, str) else 8


@dataclass
class RunState:
    attempt: int
    request: str
    step: int = -1
    content: tuple[Any, ...] = ()
    decision: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    roster: Roster | None = None
    separation: int | None = None  # steps from a participation of a user to the next, at least
    took_part: dict[User, int] = field(default_factory=dict)  # the last step of each
    collect: dict[str, Any] | None = None  # the terms under which it collects norm events
    collected: dict[int, Collection] = field(default_factory=dict)  # by step

    def has_to_wait(self, user: User) -> bool:
        """Whether a user cannot take part in the next step."""
        if self.separation is None or user not in self.took_part:
            return False
        return self.step + 1 < self.took_part[user] + self.separation

    def end(self) -> None:
        self.closed, self.content, self.decision, self.roster = True, (), {}, None
        self.separation, self.took_part = None, {}
        self.collect, self.collected = None, {}

    def rename(self, user: User, name: User) -> None:
        """Somebody was erased."""
        self.took_part = renamed(self.took_part, user, name)
        if self.roster is not None:
            members = self.roster.members
            self.roster.members = [name if member == user else member for member in members]


class Held:
    """Results of the log; ``answers``, ``rejects`` and ``odometers`` must be published."""

    def __init__(self, partitions: int, topic: bytes = bytes(16)) -> None:
        self.partitions, self.topic = partitions, topic
        self.datasets: list[dict[str, Dataset]] = [{} for _ in range(partitions)]
        self.runs: list[dict[tuple[str, str], RunState]] = [{} for _ in range(partitions)]
        self.answers: dict[tuple[Any, ...], None] = {}
        self.rejects: dict[Place, tuple[str, bytes]] = {}
        # of records with several norm events: the reason of each, the event, and its user
        self.event_rejects: dict[Place, list[tuple[str, Any, User | None]]] = {}
        self.addresses: dict[Place, dict[str, Any]] = {}  # what a reject says of its sender
        self.odometers: set[tuple[Any, ...]] = set()
        self.bound_orders: dict[tuple[Any, ...], float] = {}  # of odometer records with an order
        self.charged: dict[Place, dict[str, Any]] = {}  # the decision that a record led to
        # (dataset, run, step, partition) -> the level that each member of a roster was granted
        self.members: dict[tuple[Any, ...], dict[User, int | None]] = {}
        self.retired: dict[int, bytes] = {}  # partition -> the log that continues it
        self.suspended: dict[int, int] = {}  # partition -> the offset that is not applied
        self.chains = [first_link(topic, p, partitions) for p in range(partitions)]
        self.names = [Names() for _ in range(partitions)]
        self.access = [AccessLists(p) for p in range(partitions)]
        self.tombstones: dict[tuple[str, User], Place] = {}  # the last of each
        # outermost dataset -> the run that may charge its budget
        self.holders: list[dict[str, tuple[str, str]]] = [{} for _ in range(partitions)]
        self._has_had_datasets = [False] * partitions
        self._applied = 0

    def skip(self, records: int) -> None:
        """Leave out the first records, which are imports: their effects are known."""
        self._applied = records
        self._has_had_datasets = [True] * self.partitions

    def _dataset(self, partition: int, name: str) -> Dataset:
        if name not in self.datasets[partition]:
            raise Rejection("unknown-dataset")
        return self.datasets[partition][name]

    def _chain(self, partition: int, *names: str) -> list[Dataset]:
        """Datasets and their ancestors, all of whose budgets count, the nearest first."""
        found = list(names)
        for name in found:  # which grows
            found += [outer for outer in self._parents(partition, name) if outer not in found]
        return [self._dataset(partition, name) for name in found]

    def _parents(self, partition: int, name: str) -> list[str]:
        parents: Any = self._dataset(partition, name).policy["parents"]
        return [] if parents is NOT_GIVEN else parents

    def _family(self, partition: int, name: str) -> list[Dataset]:
        """Return the datasets that share a budget with one, directly or through others."""
        chains = [
            {dataset.policy["dataset"] for dataset in self._chain(partition, each)}
            for each in self.datasets[partition]
        ]
        found, before = {name}, set[str]()
        while found != before:
            before = set(found)
            found = found.union(*(chain for chain in chains if chain & found))
        return [self.datasets[partition][each] for each in sorted(found)]

    def _lists(self, partition: int, name: Any) -> list[Listed]:
        """Return the access lists that are in force for a dataset."""
        if name not in self.datasets[partition]:
            return []
        own = self.access[partition].lists.get(name)
        share_of = self.datasets[partition][name].policy["share_of"]
        above = [*self._parents(partition, name), share_of]
        return [own] if own else [one for each in above for one in self._lists(partition, each)]

    def _open_chain(self, partition: int, name: str) -> list[Dataset]:
        chain = self._chain(partition, name)
        if chain[0].is_closed:
            raise Rejection("dataset-closed")
        return chain

    def _shares(self, partition: int, name: str) -> list[str]:
        """Return the datasets that have a share of the budget of this one."""
        datasets = self.datasets[partition].items()
        return [share for share, dataset in datasets if dataset.policy["share_of"] == name]

    def _check_share(self, partition: int, policy: dict[str, Any], whole: Dataset) -> None:
        """Check that a new dataset's budget is left of another one's."""
        name, held = policy["share_of"], whole.policy
        datasets = self.datasets[partition]
        used = any(dataset == name for dataset, _ in self.runs[partition])
        used = used or any(name in self._parents(partition, dataset) for dataset in datasets)
        shares = [datasets[share].policy["budget"] for share in self._shares(partition, name)]
        alike = ["measure", "orders", "pseudonyms"]
        alike += ["sampling_rate", "noise_multiplier"]
        is_alike = all(policy[name] == held[name] for name in alike)
        own = policy["per_user_order"] is NOT_GIVEN and held["per_user_order"] is NOT_GIVEN
        fits = is_alike and all(
            sum(units) <= budget
            for budget, *units in zip(held["budget"], policy["budget"], *shares, strict=True)
        )
        nested = held["parents"] is not NOT_GIVEN or held["share_of"] is not NOT_GIVEN
        ids = policy["user_ids"] in (NOT_GIVEN, held["user_ids"])
        if used or nested or not fits or not own or not ids:
            raise Rejection("invalid-policy")

    def _check_held(self, partition: int, chain: list[Dataset], run: tuple[str, str]) -> None:
        """Check that a run holds all outermost budgets that it charges."""
        if self._not_held(partition, chain, run):
            raise Rejection("budget-held")

    def _not_held(
        self, partition: int, chain: list[Dataset], run: tuple[Any, Any]
    ) -> dict[str, tuple[str, str] | None]:
        """Return the outermost datasets whose budgets a run lacks, and the runs that hold them."""
        holders = self.holders[partition]
        names = [
            dataset.policy["dataset"]
            for dataset in outermost_of(chain)
            if dataset.policy["assume_independent_timing"] is NOT_GIVEN
        ]
        return {name: holders.get(name) for name in names if holders.get(name) != run}

    def _holder(self, partition: int, address: dict[str, Any]) -> dict[str, str] | None:
        """Return how a rejection names the run that holds a budget, if one does."""
        run = address["dataset"], address["run"]
        lacking = self._not_held(partition, self._chain(partition, run[0]), run)
        holder = next(filter(None, lacking.values()), None)
        return holder and dict(zip(("dataset", "run"), holder, strict=True))

    def _release(self, partition: int, ended: list[tuple[str, str]]) -> None:
        """Free what runs hold that have ended."""
        held = self.holders[partition].items()
        self.holders[partition] = {name: run for name, run in held if run not in ended}

    def _run(self, partition: int, request: dict[str, Any]) -> RunState:
        run = self.runs[partition].get((request["dataset"], request["run"]))
        if run is None or request["attempt"] > run.attempt:
            raise Rejection("unknown-run")
        return run

    def _about_run(self, place: Place, request: dict[str, Any], run: RunState) -> dict[str, Any]:
        return {
            "v": request["v"],
            "dataset": request["dataset"],
            "run": request["run"],
            "attempt": run.attempt,
            "request": request["request"],
            "partition": place[0],
            "offset": place[1],
            "last_step": run.step,
        }


def outermost_of(datasets: Iterable[Dataset]) -> list[Dataset]:
    """Return those of these datasets that have no parent."""
    return [dataset for dataset in datasets if dataset.policy["parents"] is NOT_GIVEN]


Link = tuple[bytes, bytes, int]
"""Head of the chain over a log, the head before, and the offset of the record between them."""


def first_link(topic: bytes, partition: int, partitions: int) -> Link:
    """Of a partition of which nothing has been read."""
    numbers = struct.pack(">qq", partition, partitions)
    return hashlib.sha256(b"dp-turnstile log 1" + topic + numbers).digest(), b"", -1


def next_link(head: bytes, offset: int, value: bytes | None) -> Link:
    """After one more record."""
    content = b"\0" if value is None else b"\1" + value
    return hashlib.sha256(head + struct.pack(">q", offset) + content).digest(), head, offset
