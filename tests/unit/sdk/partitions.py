"""The service in memory, with what can go wrong between it and a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from streams.ledger.ledger import Channel, Ledger, Output
from streams.records import (
    Answer,
    Charge,
    Decision,
    Enrolled,
    Policy,
    Reason,
    Rejected,
    Request,
    RosterDecision,
    decode_answer,
    decode_request,
    encode,
)
from streams.records.packing import unpack_norms
from streams.records.users import UserIds
from streams.sdk.client import Turnstile
from streams.sdk.connection import PendingRequest
from streams.sdk.decisions import DecisionArrays
from streams.sdk.errors import RequestRejected, refusal_of
from streams.sdk.memory_connection import MemoryConnection
from streams.sdk.run import Run
from tests.spending import spent_units


class Partitions(MemoryConnection):
    """What does not answer at once does not answer: nothing here waits.

    Attributes:
        turnstile: a client of it.
        logs: what was published, by partition.
        rejects: why something was refused, each time.
        deaf: partitions that nothing reaches.
        mute: partitions whose answers are lost.
        late: partitions whose answers come when somebody has published again.
        heard: what is read from `halts` when a worker has written this decision or roster.
        before_result: called when requests were published and answers have not been looked at.
    """

    def __init__(self, count: int = 3) -> None:
        super().__init__(count, timeout=0.0)
        self.turnstile = Turnstile(connection=self)
        self.logs: list[list[bytes]] = [[] for _ in range(count)]
        self.rejects: list[Reason] = []
        self.deaf: set[int] = set()
        self.mute: set[int] = set()
        self.late: set[int] = set()
        self._held: list[tuple[int, Sequence[Output]]] = []
        self.heard: Callable[[Any], list[Any]] = lambda decision: [decision]
        self.before_result: Callable[[], object] = lambda: None

    def create(self, name: str = "d", **policy: object) -> Policy:
        """A budget of 1 unless something else is said."""
        return self.turnstile.create_dataset(name, **{"measure": "zcdp", "budget": 1.0, **policy})

    def withdraw(self, name: str = "d") -> None:
        self.turnstile.withdraw_dataset(name)

    def open(self, name: str = "r", dataset: str = "d", **options: Any) -> Run:
        return self.turnstile.run(dataset, name, **options)

    def close_run(self, name: str = "r", dataset: str = "d") -> bool:
        return self.turnstile.close_run(dataset, name)

    def add_partitions(self, count: int) -> None:
        """As an operator must not."""
        first, self.partitions = self.partitions, self.partitions + count
        self.ledgers += [Ledger(p, self.partitions) for p in range(first, self.partitions)]
        self.logs += [[] for _ in range(count)]
        self._offsets += [0] * count

    def hear(self, decision: Decision | RosterDecision | Enrolled) -> None:
        """A decision is read from `halts`, whoever wrote it, and whether anybody waits for it."""
        self.hear_record(Channel.HALTS, decision.partition, encode(decision))

    def hear_record(self, channel: Channel, partition: int, record: bytes) -> None:
        """Give clients a record of `halts` or `rejects`, whoever wrote it."""
        self._deliver(channel, partition, record)

    def publish(self, partition: int, record: bytes | Request) -> Answer | RequestRejected:
        """Have one record applied, whoever sends it."""
        value = record if isinstance(record, bytes) else encode(record)
        output = self._apply(partition, value)[0]
        if output.channel is Channel.REJECTS:
            return refusal_of(msgspec.msgpack.decode(output.value, type=Rejected))
        return decode_answer(output.value)

    def spent_units(self, dataset: str = "d") -> dict[int | str, int]:
        """What every user has spent, in units, of one budget."""
        spent: dict[int | str, int] = {}
        for ledger in self.ledgers:
            if dataset in ledger.state.datasets:
                users, units = spent_units(ledger.state.datasets[dataset])
                ids: Iterable[int | str] = users.tolist()
                spent |= dict(zip(ids, units.reshape(-1).tolist(), strict=True))
        return spent

    def spent(self, dataset: str = "d") -> dict[int | str, float]:
        """What every user has spent, as a part of one unit of the measure."""
        return {user: units / 2**44 for user, units in self.spent_units(dataset).items()}

    def charged(self) -> list[dict[int | str, float]]:
        """The users of every charge that was published, of all partitions, with their norms."""
        records = [decode_request(value) for log in self.logs for value in log]
        return [
            dict(
                zip(
                    UserIds.unpack(record.users).tolist(),
                    unpack_norms(record.norms).tolist(),
                    strict=True,
                )
            )
            for record in records
            if isinstance(record, Charge)
        ]

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        held, self._held = self._held, []
        for partition, outputs in held:
            self._say(partition, outputs)
        reached = {p: sent for p, sent in requests.items() if p not in self.deaf}
        super()._publish(reached, waiting)
        self.before_result()

    def _apply(self, partition: int, request: bytes) -> Sequence[Output]:
        self.logs[partition].append(request)
        outputs = super()._apply(partition, request)
        for output in outputs:
            if output.channel is Channel.REJECTS:
                self.rejects.append(msgspec.msgpack.decode(output.value, type=Rejected).reason)
        return outputs

    def _answer(self, partition: int, outputs: Sequence[Output]) -> None:
        if partition in self.late:
            self._held.append((partition, outputs))
        elif partition not in self.mute:
            self._say(partition, outputs)

    def _say(self, partition: int, outputs: Sequence[Output]) -> None:
        for output in outputs:
            answer = decode_answer(output.value) if output.channel is Channel.HALTS else None
            if isinstance(answer, Decision | RosterDecision | Enrolled):
                for heard in self.heard(answer):
                    self.hear(heard)
            else:
                super()._answer(partition, [output])


def fits(decision: Decision) -> bool:
    """Return whether a worker can have made a decision."""
    try:
        DecisionArrays.of(decision)
    except ValueError:
        return False
    return True


def in_memory_run(budget: float, **policy: object) -> tuple[Partitions, Run]:
    """A run of a new dataset whose users may have ids of both kinds, in one partition."""
    service = Partitions(1)
    service.create(budget=budget, user_ids="mixed", **policy)
    return service, service.open()
