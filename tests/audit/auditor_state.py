"""What the auditor holds of each partition: datasets, runs, and what must be published by then."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

from kafka.partitioner.default import murmur2

from tests.audit.auditor_access import AccessLists
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

    def has_to_wait(self, user: User) -> bool:
        """Whether a user cannot take part in the next step."""
        if self.separation is None or user not in self.took_part:
            return False
        return self.step + 1 < self.took_part[user] + self.separation

    def end(self) -> None:
        self.closed, self.content, self.decision, self.roster = True, (), {}, None
        self.separation, self.took_part = None, {}

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

    def _chain(self, partition: int, name: str) -> list[Dataset]:
        """A dataset and its ancestors, all of whose budgets count, the nearest first."""
        chain = [self._dataset(partition, name)]
        while (outer := chain[-1].policy["parent"]) is not NOT_GIVEN:
            chain.append(self.datasets[partition][outer])
        return chain

    def _lineage(self, partition: int, name: Any) -> list[str]:
        """Return a dataset and those that it is inside of or a share of, the nearest first."""
        found = []
        while name in self.datasets[partition]:
            found.append(name)
            policy = self.datasets[partition][name].policy
            name = policy["share_of"] if policy["parent"] is NOT_GIVEN else policy["parent"]
        return found

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
        used = used or any(dataset.policy["parent"] == name for dataset in datasets.values())
        shares = [datasets[share].policy["budget"] for share in self._shares(partition, name)]
        alike = "measure", "orders", "pseudonyms", "sampling_rate", "noise_multiplier"
        is_alike = all(policy[name] == held[name] for name in alike)
        own = policy["per_user_order"] is NOT_GIVEN and held["per_user_order"] is NOT_GIVEN
        fits = is_alike and all(
            sum(units) <= budget
            for budget, *units in zip(held["budget"], policy["budget"], *shares, strict=True)
        )
        nested = held["parent"] is not NOT_GIVEN or held["share_of"] is not NOT_GIVEN
        ids = policy["user_ids"] in (NOT_GIVEN, held["user_ids"])
        if used or nested or not fits or not own or not ids:
            raise Rejection("invalid-policy")

    def _check_held(self, partition: int, chain: list[Dataset], run: tuple[str, str]) -> None:
        """Check that a run holds the budget that all runs of these datasets charge."""
        outermost = chain[-1].policy
        holder = self.holders[partition].get(outermost["dataset"])
        if outermost["assume_independent_timing"] is NOT_GIVEN and holder != run:
            raise Rejection("budget-held")

    def _holder(self, partition: int, dataset: str) -> dict[str, str] | None:
        """Return how a rejection names the run that holds a budget, if one does."""
        outermost = self._chain(partition, dataset)[-1].policy["dataset"]
        holder = self.holders[partition].get(outermost)
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
