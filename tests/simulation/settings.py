"""The settings of one seed: the sizes of the simulated world and the rates of its faults.

About half of the seeds leave out any given kind of fault, because a frequent fault can hide the
effects of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from random import Random
from unittest.mock import patch

from streams.ledger import accounts, collecting, columns, parts, roster_members, state
from streams.store import snapshot
from streams.worker import merge, odometer_publisher, ownership, processor, snapshot_writer
from tests.audit import auditor_charges

Rate = float
"""The type of the fields that `Settings.calm` sets to 0."""


@dataclass
class Settings:
    """The settings of one seed. Rates are per effect or per message; intervals are mean seconds."""

    partitions: int
    workers: int
    latency: float  # seconds, of most effects
    crash: Rate  # a worker dies before an effect
    pause: Rate  # a worker pauses before an effect
    pause_seconds: float
    favourite: str  # the effect before which a worker dies or pauses much more often
    store_fails: Rate  # the store's answer is lost, after the effect or instead of it
    kafka_fails: Rate  # Kafka does not answer a worker
    skip: Rate  # the stream skips a record
    lost: Rate  # a message of a client, or an answer to it
    twice: Rate
    late: Rate  # a message is delayed, so that others overtake it
    client_dies: Rate
    rebalance_every: Rate  # without a change of members
    evict_every: Rate  # a worker that is alive leaves the group
    rewind_every: Rate  # Redis returns to an older state
    race_every: Rate  # Redis loses its last write, and the owner leaves the group
    jumps: bool  # Redis may also return to a newer state afterwards
    damage_every: Rate  # Redis loses a key of a partition
    marker_every: Rate  # a transaction ends in the log
    election_every: Rate  # another broker leads a partition
    garbage_every: Rate  # unreadable records are written to the log
    trim_every: Rate  # applied records are deleted from the log
    trimmed_reads: Rate  # applied records are deleted just before a worker reads
    batch_records: int
    overlap_records: int
    merge_entries: int
    merge_every: float
    merge_bytes: int  # bytes of one write
    page_bits: int
    fine: bool  # almost every charge makes an odometer record
    snapshot_every: float  # seconds between two snapshots of a partition; 0: none
    chunk_bytes: int  # of a snapshot
    flush_every: Rate  # Redis is emptied
    dies_with_redis: Rate  # the owner and its partition's Redis state are lost after a snapshot
    cleaned: Rate  # the topic snapshots is compacted after a record of a snapshot
    trims_covered: bool  # the log is trimmed only up to the last snapshot
    overlooks: bool  # the stream skips the last record
    disputes: Rate  # a partition holds the parent under another policy
    transaction: Rate  # the minimum duration of an odometer transaction, in seconds
    siblings: bool  # nested datasets have the same users, whom the first one's roster contains
    rotate_every: Rate = 0.0  # a new erasure key is put before the others
    old_keys: Rate = 0.0  # a worker starts without the newest erasure keys
    block: int = 1024  # norm events of a stored block
    most_norms: int = 2**20  # collected by a partition for a step
    part_bytes: int = 1_000_000  # of the part of an answer

    @classmethod
    def draw(cls, rng: Random) -> Settings:
        def rate(low: float, high: float, chance: float = 0.5) -> float:
            drawn = low * (high / low) ** rng.random()
            return drawn if rng.random() < chance else 0.0

        settings = cls(
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
            settings._let_owners_oversleep(rng)
        elif drawn < 0.25:
            settings._let_transactions_break_off(rng)
        elif drawn < 0.32:
            settings._let_commits_last()
        if settings.siblings:
            settings.merge_entries = 4096  # only deltas have accrued charges
            settings.disputes = 0.0  # a charge to the nested dataset fixes the parent's policy
        return settings

    def _let_owners_oversleep(self, rng: Random) -> None:
        """Let owners pause before they send odometer records, so that their successors overtake
        them.
        """
        self.workers = max(2, self.workers)
        self.crash = 0.0
        self.pause, self.pause_seconds = 0.01, 8.0
        self.favourite = rng.choice(("send", "send", "begin", "owner"))
        self.fine = True

    def _let_transactions_break_off(self, rng: Random) -> None:
        """Let owners die within a transaction of odometer records."""
        self.crash, self.favourite = 0.01, "end the transaction"
        self.transaction = rng.choice((0.5, 2.0))
        self.fine = True

    def _let_commits_last(self) -> None:
        """Let owners pause after a commit, so that the next owner publishes the answers."""
        self.crash = 0.0
        self.pause, self.pause_seconds = 0.01, 30.0
        self.favourite = "receive the answer to the commit"

    def calm(self) -> None:
        """Stop all faults."""
        for name in _RATES:
            setattr(self, name, 0.0)
        self.latency = min(self.latency, 0.002)

    @contextmanager
    def sizes(self) -> Iterator[None]:
        """Make the limits of the code small, so that little data reaches every limit."""
        with ExitStack() as stack:
            for module, name, value in (
                (collecting, "BLOCK", self.block),
                (collecting, "MAX_COLLECTED", self.most_norms),
                (auditor_charges, "_MOST_COLLECTED", self.most_norms),
                (parts, "MAX_PART_BYTES", self.part_bytes),
                (snapshot, "CHUNK_BYTES", self.chunk_bytes),
                (snapshot_writer, "SEND_BYTES", 4 * self.chunk_bytes),
                (snapshot_writer, "READ_PAGES", 2),
                (snapshot_writer, "TIME_SHARE", 1.0),
                (ownership, "_SNAPSHOT_EVERY", 0.1),
                (processor, "BATCH_RECORDS", self.batch_records),
                (processor, "OVERLAP_RECORDS", self.overlap_records),
                (merge, "MERGE_ENTRIES", self.merge_entries),
                (merge, "WRITE_BYTES", self.merge_bytes),
                (ownership, "_MERGE_EVERY", self.merge_every),
                (odometer_publisher, "LINGER", self.merge_every / 10),
                (columns, "_PAGE_BITS", self.page_bits),
                (columns, "PAGE_ROWS", 1 << self.page_bits),
                (accounts, "PAGE_ROWS", 1 << self.page_bits),
                (roster_members, "PAGE_ROWS", 1 << self.page_bits),
                (state, "PAGE_ROWS", 1 << self.page_bits),
            ):
                stack.enter_context(patch.object(module, name, value))
            yield


_EFFECTS = (
    "acquire",
    "load",
    "commit",
    "receive the answer to the commit",
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
    "acknowledge",
    "read",
    "join the group",
    "none",
)
_RATES = [field.name for field in fields(Settings) if field.type == "Rate"]
