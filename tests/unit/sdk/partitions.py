"""The service without Kafka and Redis: one ledger a partition, and answers that can be lost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

import msgspec

from streams.ledger.ledger import Channel, Ledger
from streams.schemas import Answer, Decision, Policy, Reason, Rejected, Request, decode_answer
from streams.sdk.asking import Deadline
from streams.sdk.datasets import create, policy_from, withdraw
from streams.sdk.errors import RequestRejected, refusal_of
from streams.sdk.opening import close_run, open_run
from streams.sdk.replies import Waiting
from streams.sdk.run import Run
from streams.sdk.witness import Witness

NOW = Deadline.after(0.0)


class Partitions:
    """Answers requests as the workers would, at once.

    Attributes:
        logs: what was published, by partition.
        rejects: why something was refused, each time.
        deaf: partitions that nothing reaches.
        mute: partitions whose answers are lost.
        heard: what is read from `halts` while a charge waits, when a worker has decided this.
        before_result: called when requests were published and answers have not been looked at.
    """

    def __init__(self, count: int = 3) -> None:
        self.ledgers = [Ledger(partition, count) for partition in range(count)]
        self.logs: list[list[bytes]] = [[] for _ in range(count)]
        self.rejects: list[Reason] = []
        self.deaf: set[int] = set()
        self.mute: set[int] = set()
        self.heard: Callable[[Decision], list[Decision]] = lambda decision: [decision]
        self.before_result: Callable[[], object] = lambda: None
        self._witnesses: dict[tuple[str, str], Witness] = {}

    @property
    def partitions(self) -> int:
        return len(self.ledgers)

    def deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(0.0)

    def ask(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer]:
        replies = self._exchange(requests, Waiting(frozenset(requests)))
        return {p: reply for p, reply in replies.items() if not isinstance(reply, RequestRejected)}

    def survey(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        return self._exchange(requests, Waiting(frozenset(requests), to_the_end=True))

    def watch(self, dataset: str, run: str) -> Witness:
        return self._witnesses.setdefault((dataset, run), Witness(dataset, run))

    def create(self, name: str = "d", **policy: object) -> Policy:
        """As ``Turnstile.create_dataset``; a budget of 1 unless something else is said."""
        nothing = dict.fromkeys(("epsilon", "delta", "budget", "orders", "odometer_step"))
        defaults = {"measure": "zcdp", "on_exhaustion": "halt", "user_ids": None, "budget": 1.0}
        arguments = {**nothing, **defaults, **policy}
        return create(self, policy_from(name, partitions=self.partitions, **arguments), NOW)

    def withdraw(self, name: str = "d") -> None:
        """As ``Turnstile.withdraw_dataset``."""
        withdraw(self, name, NOW)

    def open(self, name: str = "r", dataset: str = "d", released: int | None = None) -> Run:
        """As ``Turnstile.run``."""
        return open_run(self, dataset, name, released=released, deadline=NOW)

    def close(self, name: str = "r", dataset: str = "d") -> bool:
        """As ``Turnstile.close_run``."""
        return close_run(self, dataset, name, NOW)

    def hear(self, decision: Decision) -> None:
        """A decision is read from `halts`, whoever wrote it, and whether anybody waits for it."""
        self.watch(decision.dataset, decision.run).see(decision)

    def publish(self, partition: int, record: bytes | Request) -> Answer | RequestRejected:
        """Have one record applied, whoever sends it."""
        value = record if isinstance(record, bytes) else msgspec.msgpack.encode(record)
        log = self.logs[partition]
        log.append(value)
        output = self.ledgers[partition].apply(len(log) - 1, value)[0]
        if output.channel is Channel.REJECTS:
            rejected = msgspec.msgpack.decode(output.value, type=Rejected)
            self.rejects.append(rejected.reason)
            return refusal_of(rejected)
        return decode_answer(output.value)

    def spent(self, dataset: str = "d") -> dict[int | str, float]:
        """What every user has spent, as a part of one unit of the measure."""
        spent: dict[int | str, float] = {}
        for ledger in self.ledgers:
            if dataset in ledger.datasets:
                users, units = ledger.datasets[dataset].spent_units()
                ids: Iterable[int | str] = users if isinstance(users, list) else users.tolist()
                spent |= dict(zip(ids, (units / 2**44).tolist(), strict=True))
        return spent

    def _exchange(
        self, requests: Mapping[int, bytes], waiting: Waiting
    ) -> dict[int, Answer | RequestRejected]:
        if not requests:
            return {}
        for partition, record in requests.items():
            if partition in self.deaf:
                continue
            reply = self.publish(partition, record)
            if partition not in self.mute:
                if isinstance(reply, Decision):
                    for decision in self.heard(reply):
                        self.hear(decision)
                        waiting.reply(partition, decision)
                else:
                    waiting.reply(partition, reply)
        self.before_result()
        return waiting.result(NOW)
