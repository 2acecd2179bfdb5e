"""Requests for tests of the ledger, which needs neither Kafka nor Redis."""

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

    @property
    def any_ids(self) -> dict[str, str]:
        """Fields of a policy that allows integer and string ids in one dataset."""
        return {"user_ids": "mixed"}

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


def exhausted(decision: Decision) -> list[bool]:
    return unpack_bits(decision.exhausted, decision.users).tolist()


def halted_for(decision: Decision, reason: int) -> list[bool]:
    """Return which users of a charge are halted for this reason byte."""
    reasons = iter(decision.reasons)
    return [not is_in and next(reasons) == reason for is_in in admitted(decision)]


def rebuilt(changes: list[bytes], partitions: int = 1, partition: int = 0) -> Ledger:
    """A ledger that an owner before has left as changes."""
    ledger = Ledger(partition, partitions)
    ledger.state.load({}, changes)
    return ledger
