"""Applies records to a ledger, and measures the time and memory of each."""

import gc
import random
import resource
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streams.ledger.ledger import Channel, Ledger, Output
from streams.records import MAX_REQUEST_BYTES, CollectTerms, Rejected, encode
from tests.fuzz.hostile import HOSTILE, hostile
from tests.fuzz.records import Damage, repeats_a_field
from tests.unit.ledger.ledgers import rebuilt
from tests.unit.ledger.random_logs import RandomLog
from tests.unit.ledger.signed_logs import SignedLog

LOG_RECORDS = 2_000
"""The number of records in one log, under one seed."""

MOST_SECONDS, MOST_SECONDS_PER_BYTE = 1.0, 5e-7
"""The maximum CPU time of one record: ten times that of a slow machine."""
MOST_BYTES, MOST_BYTES_PER_BYTE = 2**20, 32
"""The maximum memory of one record."""

_HOSTILE_SHARE = 0.02
_HOSTILE_SIZES = [1, 40, 400, 4_000, 40_000]
_MEASURED_SHARE = 0.02
"""The share of records whose memory is measured, which slows them down."""


def processor_seconds() -> float:
    """Return the CPU time of this thread. ``time.thread_time`` can take longer than a record."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


@dataclass
class Watch:
    """The outcomes and the cost of records."""

    records: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    judged: int = 0  # by the auditor, too
    slowest: tuple[float, int] = (0.0, 0)  # seconds of a processor, and bytes of the record
    largest: tuple[int, int] = (0, 0)  # bytes of memory, and of the record

    def apply(
        self, ledger: Ledger, offset: int, value: bytes | None, measure: bool
    ) -> list[Output]:
        """Apply a record; fail if it exceeds a limit."""
        size = len(value or b"")
        if measure:
            tracemalloc.start()
        gc.disable()  # what the auditor keeps takes longer to look through than any record
        began = processor_seconds()
        try:
            outputs = ledger.apply(offset, value)
            taken = processor_seconds() - began
            peak = tracemalloc.get_traced_memory()[1] if measure else 0
        finally:
            gc.enable()
            tracemalloc.stop()
        assert peak <= MOST_BYTES + MOST_BYTES_PER_BYTE * size, f"{peak} bytes of memory"
        assert measure or taken <= MOST_SECONDS + MOST_SECONDS_PER_BYTE * size, f"{taken} s"
        self.largest = max(self.largest, (peak, size))
        if not measure:
            self.slowest = max(self.slowest, (taken, size))
        self.records += 1
        self.outcomes[outcome_of(outputs)] += 1
        return outputs

    def report(self) -> str:
        """Return the report as text."""
        rows = [f"{count:>10}  {outcome}" for outcome, count in self.outcomes.most_common()]
        (seconds, size), (peak, of) = self.slowest, self.largest
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return "\n".join(
            [
                f"{self.records} records, {self.judged} of them judged by the auditor, too",
                *rows,
                f"slowest: {seconds * 1e3:.1f} ms of a processor, for {size} bytes",
                f"largest: {peak / 2**20:.2f} MiB of memory, for {of} bytes",
                f"the whole process: {resident} MiB",
            ]
        )


class _WatchedLog(SignedLog):
    """A log before whose records come damaged ones; a ledger that is measured, and an auditor."""

    fuzz: "Fuzz | None" = None  # until it is set up
    measured = False

    def send(self, record: Any) -> list[Output]:
        if self.fuzz is None or self.fuzz.is_at_work:
            return super().send(record)
        self.fuzz.is_at_work = True
        try:
            self.fuzz.send_damaged(encode(record) if isinstance(record, msgspec.Struct) else record)
        finally:
            self.fuzz.is_at_work = False
        return super().send(record)

    def apply(self, value: bytes | None) -> list[Output]:
        if self.fuzz is None:
            return super().apply(value)
        return self.fuzz.watch.apply(self.ledger, len(self.records), value, self.measured)


class Fuzz:
    """A random log of one seed, and a second ledger for records that the auditor cannot judge."""

    def __init__(self, seed: int, watch: Watch) -> None:
        self.seed = seed
        self.watch = watch
        self.is_at_work = False
        self._rng = random.Random(seed)
        self._damage = Damage(self._rng)
        self._random = RandomLog(seed, kind=_WatchedLog, collects=True)
        self.log = log = self._random.log
        log.create("a", user_ids="mixed")
        log.open("a")
        log.enrol([1, 2, 3], dataset="a", levels=3, clip_norm=2.0)
        log.open("a", "events", collect=CollectTerms(clip_norm=2.0))
        self._unjudged = rebuilt(log.changes)
        log.fuzz = self

    def run(self, records: int) -> None:
        """Apply so many records, and compare everything at the end."""
        self._random.grow(len(self.log.records) + records)
        self.log.audit()

    def send_damaged(self, good: bytes | None) -> None:
        """Send damaged records before a good one."""
        for number in range(self._rng.choice([1, 4, 16])):
            value = None
            try:
                if self._rng.random() < _HOSTILE_SHARE:
                    name, size = self._rng.choice(list(HOSTILE)), self._rng.choice(_HOSTILE_SIZES)
                    step = self._unjudged.state.runs["a", "r"].step + 1
                    self._apply_unjudged(value := hostile(name, size, step))
                elif repeats_a_field(value := self._damage.damaged(good or b"{}")):
                    self._apply_unjudged(value)
                else:
                    self._judge(value)
            except BaseException as error:
                error.add_note(f"seed {self.seed}, damaged {number}: {_described(value)}")
                raise

    def _judge(self, value: bytes | None) -> None:
        self.log.measured = self._rng.random() < _MEASURED_SHARE
        self.log.send(value)
        reason = outcome_of(self.log.outputs[-1])
        assert reason == (self.log.reason() or "applied")
        self.watch.judged += 1

    def _apply_unjudged(self, value: bytes | None) -> None:
        """Apply a record that the auditor cannot judge: it must be applied or rejected."""
        measured = self._rng.random() < _MEASURED_SHARE
        self.watch.apply(self._unjudged, len(self.log.records), value, measured)
        self._unjudged.state.take_delta()


def apply_largest(watch: Watch) -> None:
    """Apply every hostile record in the largest size."""
    log = Fuzz(0, Watch()).log
    for name in HOSTILE:
        value = hostile(name, MAX_REQUEST_BYTES - 2_000, step=0)
        for measured in (False, True):
            ledger = rebuilt(log.changes)
            try:
                watch.apply(ledger, 0, value, measured)
            except BaseException as error:
                error.add_note(f"{name}: {_described(value)}")
                raise


def _described(value: bytes | None) -> str:
    return "a tombstone" if value is None else f"{len(value)} bytes {value[:2000]!r}"


def outcome_of(outputs: list[Output]) -> str:
    """Return the reason of a rejection, or "applied"."""
    if not outputs or outputs[0].channel is not Channel.REJECTS:
        return "applied"
    return str(msgspec.msgpack.decode(outputs[0].value, type=Rejected).reason.value)
