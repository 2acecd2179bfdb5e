"""Logs for tests of rosters; the auditor looks on."""

import numpy as np

from accounting import Gaussian, PoissonGaussian
from accounting.measures import MEASURES
from streams.ledger.ledger import Channel
from streams.records import ChargeRoster, Enrol, Halted, RosterDecision, decode_answer
from streams.records.digests import cost_table_digest
from streams.records.packing import unpack_positions
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import answer_of

CLIP, LEVELS = 1.0, 10


class RosterLog(AuditedLog):
    """A log with a roster for run r of dataset d."""

    def __init__(self, partitions: int = 1, partition: int = 0) -> None:
        super().__init__(partitions, partition)
        self.units: dict[str, bytes] = {}

    def send(self, record) -> list:
        outputs = super().send(record)
        reason = getattr(answer_of(outputs), "reason", None) if outputs else None
        assert reason == self.reason()
        return outputs

    def enrol(self, users, first=0, **fields):
        record = Enrol(
            **{
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
                "dataset": "d",
                "run": "r",
                "attempt": 1,
                "step": step,
                "members": members,
                "cost_table_digest": cost_table_digest(self.units[run]),
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
    return MEASURES[measure].cost_table(mechanism, CLIP, LEVELS, orders).astype("<i8").tobytes()


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


POLICIES = {
    "zcdp": {"measure": "zcdp", "budget": 0.1},
    "gdp": {"measure": "gdp", "budget": 0.2},
    "zcdp, clipped": {"measure": "zcdp", "budget": 0.1, "on_exhaustion": "clip"},
    "renyi": {"measure": "renyi", "orders": [1.5, 8.0], "budget": [0.1, 0.5]},
    "renyi, clipped": {
        "measure": "renyi",
        "orders": [2.0, 3.0, 32.0],
        "budget": [0.1, 0.1, 3.0],
        "on_exhaustion": "clip",
    },
    "per-user order": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 32.0],
        "budget": [0.1, 0.2, 1.5],
        "per_user_order": True,
    },
    "per-user order, clipped": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 32.0],
        "budget": [0.02, 0.06, 0.4],
        "per_user_order": True,
        "on_exhaustion": "clip",
    },
}
