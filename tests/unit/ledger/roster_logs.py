"""Logs of version 3 for tests of rosters; the auditor looks on."""

import numpy as np

from accounting import Gaussian, PoissonGaussian
from accounting.measures import tariff
from streams.ledger.ledger import Channel
from streams.schemas import ChargeRoster, Enrol, Halted, RosterDecision, decode_answer
from streams.wire.packing import tariff_digest, unpack_positions
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import answer_of

CLIP, LEVELS = 1.0, 10


class RosterLog(AuditedLog):
    """A log of version 3, with a roster for run r of dataset d."""

    def __init__(self, partitions: int = 1, partition: int = 0, v: int = 3) -> None:
        super().__init__(partitions, partition, v)
        self.units: dict[str, bytes] = {}

    def send(self, record) -> list:
        outputs = super().send(record)
        assert getattr(answer_of(outputs), "reason", None) == self.reason()
        return outputs

    def enrol(self, users, first=0, **fields):
        record = Enrol(
            **{
                "v": self.v,
                "dataset": "d",
                "run": "r",
                "attempt": 1,
                "request": "enrol",
                "first": first,
                "users": users,
                "clip_norm": CLIP,
                "levels": LEVELS,
                **fields,
            }
        )
        return answer_of(self.send(record))

    def step(self, step, units=b"", members=4, positions=(), levels=(), **fields):
        """A step at these prices; without units, at those of the step before."""
        run = fields.get("run", "r")
        self.units[run] = units or self.units.get(run, b"")
        record = ChargeRoster(
            **{
                "v": self.v,
                "dataset": "d",
                "run": "r",
                "attempt": 1,
                "step": step,
                "members": members,
                "tariff": tariff_digest(self.units[run]),
                "units": units,
                "positions": packed(positions, "<u4"),
                "levels": packed(levels, "|u1"),
                **fields,
            }
        )
        return answer_of(self.send(record))

    def halts(self) -> list[Halted]:
        return [
            answer
            for outputs in self.outputs
            for output in outputs
            if output.channel is Channel.HALTS
            and isinstance(answer := decode_answer(output.value), Halted)
        ]


def prices(scale=4.0, measure="zcdp", orders=None, rate=None) -> bytes:
    mechanism = Gaussian(scale) if rate is None else PoissonGaussian(scale, rate)
    return tariff(measure, mechanism, CLIP, LEVELS, orders).astype("<i8").tobytes()


def begun(users=(7, 8, 9, 10), **policy) -> RosterLog:
    log = RosterLog()
    log.create(**policy)
    log.open()
    log.enrol(list(users))
    return log


def packed(numbers, kind: str) -> bytes:
    return numbers if isinstance(numbers, bytes) else np.array(numbers, dtype=kind).tobytes()


def told(decision: RosterDecision, field: str) -> list[int]:
    return unpack_positions(getattr(decision, field), decision.members).tolist()
