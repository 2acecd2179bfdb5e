"""Requests for tests of the ledger, which needs neither Kafka nor Redis."""

from random import Random

import msgspec
import numpy as np
from msgspec import UNSET

from accounting.exact.units import UNIT_BITS
from streams.ledger.ledger import Channel, Ledger
from streams.records import (
    Charge,
    CloseRun,
    CreateDataset,
    Decision,
    OpenRun,
    Policy,
    Rejected,
    WithdrawDataset,
    decode_answer,
    encode,
)
from streams.records.digests import NO_TOPIC
from streams.records.packing import pack_norms, unpack_bits
from tests.spending import spent_units


class Log:
    """A log, applied as it grows."""

    def __init__(self, partitions: int = 1, partition: int = 0) -> None:
        self.ledger = Ledger(partition, partitions)
        self.records: list[bytes] = []
        self.outputs: list[list] = []
        self.changes: list[bytes] = []

    def send(self, record) -> list:
        value = record if isinstance(record, bytes | None) else encode(record)
        outputs = self.apply(value)
        self.records.append(value)
        self.outputs.append(outputs)
        self.changes.append(encode(self.ledger.state.take_delta()))
        return outputs

    def apply(self, value: bytes | None) -> list:
        return self.ledger.apply(len(self.records), value)

    def hand_over(self, ledger: Ledger) -> None:
        """Go on with the ledger of another owner, who knows the chain of the log."""
        ledger.chain = self.ledger.chain
        self.ledger = ledger

    def create(self, name="d", budget=1.0, request="token", log=NO_TOPIC, **policy):
        units = [int(number * 2**UNIT_BITS) for number in np.atleast_1d(budget).tolist()]
        defaults = {
            "dataset": name,
            "partitions": self.ledger.state.partitions,
            "measure": "zcdp",
            "budget": units,
            "odometer_step": [max(1, unit // 8) for unit in units],
        }
        if "parents" not in policy:
            # Most tests charge one budget by several runs; test_holds.py has one run at a time.
            defaults["assume_independent_timing"] = True
        fields = Policy(**{**defaults, **policy})
        log = UNSET if fields.allow is UNSET else log
        return answer_of(self.send(CreateDataset(request=request, policy=fields, log=log)))

    def withdraw(self, name="d", request="token"):
        record = WithdrawDataset(dataset=name, request=request)
        return answer_of(self.send(record))

    def open(self, dataset="d", run="r", attempt=1, request="token", **fields):
        about = {"dataset": dataset, "run": run, "attempt": attempt, "request": request}
        record = OpenRun(**about, **fields)
        return answer_of(self.send(record))

    def close(self, dataset="d", run="r", attempt=1, request="token"):
        record = CloseRun(dataset=dataset, run=run, attempt=attempt, request=request)
        return answer_of(self.send(record))

    def charge(self, step, users, norms, scale=4.0, **fields):
        charge = Charge(
            **{
                "dataset": "d",
                "run": "r",
                "attempt": 1,
                "step": step,
                "users": users,
                "norms": pack_norms(np.array(norms, dtype=float)),
                "scale": scale,
                **fields,
            }
        )
        return answer_of(self.send(charge))

    def spent(self, dataset="d") -> dict:
        users, units = spent_units(self.ledger.state.datasets[dataset])
        return dict(zip(users, units.tolist(), strict=True))


def answer_of(outputs: list):
    """The first output, decoded."""
    first = outputs[0]
    if first.channel is Channel.REJECTS:
        return msgspec.msgpack.decode(first.value, type=Rejected)
    return decode_answer(first.value)


def admitted(decision: Decision) -> list[bool]:
    return unpack_bits(decision.admitted, decision.users).tolist()


def rebuilt(changes: list[bytes], partitions: int = 1, partition: int = 0) -> Ledger:
    """A ledger that an owner before has left as changes."""
    ledger = Ledger(partition, partitions)
    ledger.state.load({}, changes)
    return ledger


class MergingWorker:
    """Applies a log in batches, compacts page by page, and is followed by others of its kind."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.ledger = Ledger(0, 1)
        self.pages: dict[str, bytes] = {}
        self.changes: list[bytes] = []
        self.pending: list[str] = []  # listed by the compaction at work, and not taken yet
        self._covered = 0  # changes that the compaction at work makes dispensable

    def go_on(self) -> None:
        """After a record: the batch may be over, pages may be compacted, the worker may die."""
        if self.rng.random() < 0.4:
            return
        self.changes.append(encode(self.ledger.state.take_delta()))
        for _ in range(self.rng.choice([0, 0, 1, 3, 9])):
            self.compact_a_page()
        if not self.pending and self.rng.random() < 0.5:
            self.list_pages()  # and runs may close before the first is taken
        if self.rng.random() < 0.2:
            self.die()

    def commit(self, *records: bytes) -> None:
        """Apply records in a batch."""
        for record in records:
            self.ledger.apply(self.ledger.chain.last + 1, record)
        self.changes.append(encode(self.ledger.state.take_delta()))

    def list_pages(self) -> None:
        """Begin a compaction."""
        self.pending, self._covered = self.ledger.state.unmerged(), len(self.changes)

    def compact_a_page(self) -> None:
        """The next page of a compaction; with the last one, what it covers is dropped."""
        if not self.pending:
            self.list_pages()
        if self.pending:
            name = self.pending.pop(0)
            if (page := self.ledger.state.take_page(name)) is None:
                self.pages.pop(name, None)
            else:
                self.pages[name] = page
        if not self.pending:
            del self.changes[: self._covered]

    def die(self) -> None:
        """Another one takes over what is kept."""
        self.ledger, self.pending = Ledger(0, 1), []
        self.ledger.state.load(self.pages, self.changes)

    def finish(self) -> None:
        """Commit, die, and compact all there is."""
        self.changes.append(encode(self.ledger.state.take_delta()))
        self.die()
        while self.changes or self.ledger.state.unmerged():
            self.compact_a_page()
