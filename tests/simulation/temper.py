"""What one seed lets happen, and how often: the sizes of the world and the rates of its faults.

Every kind of fault is left out in about half of the seeds: one that happens all the time hides
what another one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from streams.ledger import accounts, columns, rosters, state
from streams.store import snapshot
from streams.worker import merge, odometers, ownership, processor, restore, snapshots


@dataclass
class Temper:
    """Of one seed. Rates are per effect or per message, intervals are mean seconds."""

    partitions: int
    workers: int
    latency: float  # seconds, of most effects
    crash: float  # a worker dies before an effect
    pause: float  # it stands still before an effect
    pause_seconds: float
    favourite: str  # the effect before which it dies or stands still much more often
    store_fails: float  # the store's answer is lost, after the effect or instead of it
    kafka_fails: float  # Kafka does not answer a worker
    skip: float  # the stream leaves out a record
    lost: float  # a message of a client, or an answer to it
    twice: float
    late: float  # it overtakes nobody, others overtake it
    client_dies: float
    rebalance_every: float  # for no reason
    evict_every: float  # a worker that is alive leaves the group
    rewind_every: float  # Redis goes back
    race_every: float  # it goes back by one write, and its owner leaves the group
    jumps: bool  # and ahead again, to a copy of before it went back
    damage_every: float  # Redis loses a key of a partition
    marker_every: float  # a transaction ends in the log
    election_every: float  # another broker leads a partition
    garbage_every: float  # somebody writes nonsense to the log
    trim_every: float  # what is applied is deleted from the log
    trimmed_reads: float  # and so it is just before somebody reads there
    batch_records: int
    overlap_records: int
    merge_entries: int
    merge_every: float
    merge_bytes: int  # that are written at once
    page_bits: int
    fine: bool  # odometers rise with almost every charge
    snapshot_every: float  # seconds from one snapshot of a partition to the next; 0: none
    chunk_bytes: int  # of a snapshot
    flush_every: float  # Redis is emptied
    dies_with_redis: float  # an owner and what Redis has of its partition, after a snapshot
    cleaned: float  # the topic of snapshots is compacted after a record of it
    trims_covered: bool  # the log is trimmed up to the last snapshot, and no further
    overlooks: bool  # the stream leaves out what comes last
    disputes: float  # a partition is told of another policy before a dataset is made nested in one
    transaction: float  # seconds of one of odometer records, at least
    siblings: bool  # nested datasets have the same users, who are on the roster of the first

    @classmethod
    def draw(cls, rng: Random) -> Temper:
        def rate(low: float, high: float, chance: float = 0.5) -> float:
            drawn = low * (high / low) ** rng.random()
            return drawn if rng.random() < chance else 0.0

        temper = cls(
            partitions=rng.choice((1, 2, 2, 3)),
            workers=rng.choice((1, 2, 2, 3)),
            latency=rng.choice((0.0005, 0.002, 0.01, 0.05)),
            crash=rate(0.002, 0.03),
            pause=rate(0.001, 0.02),
            pause_seconds=rng.choice((1.0, 8.0, 30.0)),
            favourite=rng.choice(_EFFECTS),
            store_fails=rate(0.001, 0.01, 0.3),
            kafka_fails=rate(0.001, 0.02, 0.3),
            skip=rate(0.001, 0.02, 0.2),
            lost=rate(0.005, 0.1),
            twice=rate(0.01, 0.3),
            late=rate(0.01, 0.3),
            client_dies=rate(0.005, 0.1),
            rebalance_every=rate(2.0, 20.0, 0.3),
            evict_every=rate(2.0, 20.0, 0.3),
            rewind_every=rate(0.5, 10.0),
            race_every=rate(0.5, 5.0, 0.15),
            jumps=rng.random() < 0.5,
            damage_every=rate(2.0, 20.0, 0.2),
            marker_every=rate(0.2, 5.0, 0.3),
            election_every=rate(0.5, 10.0, 0.3),
            garbage_every=rate(0.5, 5.0, 0.3),
            trim_every=rate(2.0, 10.0, 0.2),
            trimmed_reads=rate(0.2, 1.0, 0.25),
            batch_records=rng.choice((1, 2, 4, 64)),
            overlap_records=rng.choice((1, 2, 32)),
            merge_entries=rng.choice((0, 1, 3, 8, 4096)),
            merge_every=rng.choice((0.1, 0.3, 1.0)),
            merge_bytes=rng.choice((1, 1, 200, 1024 * 1024)),
            page_bits=rng.choice((0, 1, 2, 12)),
            fine=rng.random() < 0.5,
            snapshot_every=rng.choice((0.0, 0.1, 0.5, 3.0)),
            chunk_bytes=rng.choice((16, 64, 512 * 1024)),
            flush_every=rate(1.0, 10.0, 0.3),
            dies_with_redis=rate(0.05, 0.5, 0.4),
            cleaned=rate(0.05, 1.0),
            trims_covered=rng.random() < 0.7,
            overlooks=rng.random() < 0.2,
            disputes=rate(0.5, 1.0),
            transaction=0.0,
            siblings=rng.random() < 0.15,
        )
        drawn = rng.random()
        if drawn < 0.15:
            temper._let_owners_oversleep(rng)
        elif drawn < 0.25:
            temper._let_transactions_break_off(rng)
        elif drawn < 0.32:
            temper._let_commits_last()
        if temper.siblings:
            temper.merge_entries = 4096  # changes alone have accrued charges
            temper.disputes = 0.0  # who charges within it binds the policy of the outer one
        return temper

    def _let_owners_oversleep(self, rng: Random) -> None:
        """Owners pause before they send odometer records, and their successors overtake them."""
        self.workers = max(2, self.workers)
        self.crash = 0.0
        self.pause, self.pause_seconds = 0.01, 8.0
        self.favourite = rng.choice(("send", "send", "begin", "owner"))
        self.fine = True

    def _let_transactions_break_off(self, rng: Random) -> None:
        """Owners die within a transaction of odometer records."""
        self.crash, self.favourite = 0.01, "end the transaction"
        self.transaction = rng.choice((0.5, 2.0))
        self.fine = True

    def _let_commits_last(self) -> None:
        """Owners stand still when they have committed, and somebody else answers."""
        self.crash = 0.0
        self.pause, self.pause_seconds = 0.01, 30.0
        self.favourite = "hear of the commit"

    def calm(self) -> None:
        """Let nothing happen any more."""
        for name in _RATES:
            setattr(self, name, 0.0)
        self.latency = min(self.latency, 0.002)

    @contextmanager
    def sizes(self) -> Iterator[None]:
        """What is large in production is small here, so that little data meets every limit."""
        with ExitStack() as stack:
            for module, name, value in (
                (snapshot, "CHUNK_BYTES", self.chunk_bytes),
                (snapshots, "SEND_BYTES", 4 * self.chunk_bytes),
                (snapshots, "READ_PAGES", 2),
                (snapshots, "TIME_SHARE", 1.0),
                (restore, "STAGE_BYTES", 4 * self.chunk_bytes),
                (ownership, "_SNAPSHOT_EVERY", 0.1),
                (processor, "BATCH_RECORDS", self.batch_records),
                (processor, "OVERLAP_RECORDS", self.overlap_records),
                (merge, "MERGE_ENTRIES", self.merge_entries),
                (merge, "WRITE_BYTES", self.merge_bytes),
                (ownership, "_MERGE_EVERY", self.merge_every),
                (odometers, "LINGER", self.merge_every / 10),
                (columns, "_PAGE_BITS", self.page_bits),
                (columns, "PAGE_ROWS", 1 << self.page_bits),
                (accounts, "PAGE_ROWS", 1 << self.page_bits),
                (rosters, "PAGE_ROWS", 1 << self.page_bits),
                (state, "PAGE_ROWS", 1 << self.page_bits),
            ):
                stack.enter_context(patch.object(module, name, value))
            yield


_EFFECTS = (
    "acquire",
    "load",
    "commit",
    "hear of the commit",
    "merge",
    "erase",
    "moment",
    "read_pages",
    "stage",
    "install",
    "publish",
    "begin",
    "owner",
    "send",
    "send",
    "end the transaction",
    "hear",
    "read",
    "join the group",
    "none",
)
_RATES = (
    "crash",
    "pause",
    "store_fails",
    "kafka_fails",
    "skip",
    "lost",
    "twice",
    "late",
    "client_dies",
    "rebalance_every",
    "evict_every",
    "rewind_every",
    "race_every",
    "damage_every",
    "marker_every",
    "election_every",
    "garbage_every",
    "trim_every",
    "trimmed_reads",
    "flush_every",
    "dies_with_redis",
    "cleaned",
    "disputes",
    "transaction",
)
