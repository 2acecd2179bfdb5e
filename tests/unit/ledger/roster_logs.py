"""Logs for tests of rosters; the auditor looks on."""

import numpy as np
from hypothesis import strategies as st

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
        assert getattr(answer_of(outputs), "reason", None) == self.reason()
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
USERS = [0, 1, 5, "Zoë", 2**63 - 1, "5", -3, "x", 12, 13]
RUNS = st.sampled_from("rs")
LEVEL = st.integers(0, LEVELS)
OPERATIONS = st.one_of(
    st.tuples(st.just("enrol"), RUNS, st.integers(0, 10), st.integers(0, 10)),
    st.tuples(
        st.just("step"),
        RUNS,
        st.sampled_from([1.5, 3.0, 4.0, 17.5, None]),  # noise; as it was
        st.dictionaries(st.integers(0, 9), LEVEL, max_size=4),
    ),
    st.tuples(st.just("dense"), RUNS, st.lists(LEVEL, min_size=10, max_size=10)),
    # Prices that no mechanism has: levels that are free, at some orders or at all, and dear ones.
    st.tuples(st.just("priced"), RUNS, st.lists(st.integers(0, 8), min_size=3, max_size=12)),
    st.tuples(st.just("sampled"), RUNS, st.sampled_from([0.01, 0.3, 1.0])),
    st.tuples(st.just("charge"), RUNS, st.lists(st.sampled_from(USERS), unique=True), st.floats(0)),
    st.tuples(st.just("again"), st.integers(1, 5)),
    st.tuples(st.just("open"), RUNS),
    st.tuples(st.just("close"), st.sampled_from("rss")),
)


class Scenario:
    """Whatever happens to two rosters of one dataset; most of it is applied."""

    def __init__(self, policy: str) -> None:
        self.policy = POLICIES[policy]
        self.log = RosterLog()
        self.log.create(user_ids="mixed", **self.policy)
        for run in "rs":
            self.log.open(run=run)
            self.log.enrol(USERS[2:5], run=run)

    def happen(self, kind: str, *what) -> None:
        """One of ``OPERATIONS``."""
        if kind == "again":
            self.log.send(self.log.records[-min(what[0], len(self.log.records))])
            return
        run, *rest = what
        state = self.log.ledger.state.runs["d", run]
        members = len(self.log.ledger.state.rosters.members.get(("d", run), ()))
        about = {"run": run, "attempt": state.attempt}
        match kind, *rest:
            case "enrol", first, users:
                here = USERS[2:][first : first + users]
                self.log.enrol(here, min(first, members), **about)
            case "step", scale, moved:
                moved = {row: level for row, level in sorted(moved.items()) if row < members}
                about |= {"positions": list(moved), "levels": list(moved.values())}
                self._step(state.step + 1, scale, members=members, **about)
            case "dense", levels:
                self._step(state.step + 1, None, members=members, levels=levels[:members], **about)
            case "priced", parts:
                self.log.step(state.step + 1, self._prices(parts), members=members, **about)
            case "sampled", rate:
                sampled = {"mechanism": "poisson-gaussian", "sampling_rate": rate}
                self._step(state.step + 1, 4.0, rate, members=members, **sampled, **about)
            case "charge", users, norm:
                norms = [min(norm, 2.0 + position) for position, _ in enumerate(users)]
                self.log.charge(state.step + 1, users, norms, **about)
            case ("open",):
                self.log.open(run=run, attempt=0, request=f"{len(self.log.records)}")
            case ("close",):
                self.log.close(run=run, attempt=state.attempt)

    def _prices(self, parts: list[int]) -> bytes:
        """A cost table that grows from level to level by so many eighths of each budget."""
        budgets = self.log.ledger.state.datasets["d"].policy.budget
        turns = np.resize(parts, (LEVELS, len(budgets)))
        units = np.cumsum(turns // 4 * (np.array(budgets) // 8) + turns % 4, axis=0)
        return np.vstack([np.zeros_like(units[:1]), units]).astype("<i8").tobytes()

    def _step(self, step: int, scale: float | None, rate: float | None = None, **fields) -> None:
        measure, orders = self.policy["measure"], self.policy.get("orders")
        rate = rate if measure == "renyi" else None
        units = b"" if scale is None else prices(scale, measure, orders, rate)
        self.log.step(step, units, **fields)
