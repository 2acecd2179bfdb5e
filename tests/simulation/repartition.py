"""A repartition under faults: the service is stopped, and its log continues in another one.

The code of ``turnstile repartition`` runs over the simulated broker. It can crash at any effect and
is then started again. Requests of clients and erasures still arrive at the old log.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from streams.kafka.results import Origin
from streams.ledger.ledger import Channel, Output
from streams.ledger.repartition import Imported
from streams.records import CloseRun, Erase, encode
from streams.replay import repartition as command
from streams.replay.archive import Archive, CannotRepartition
from tests.audit.auditor import Auditor
from tests.audit.auditor_import import continued
from tests.audit.auditor_state import home
from tests.doubles.memory_broker import Effect, MemoryClient, MemoryFencedProducer
from tests.simulation.archive import WorldArchive
from tests.simulation.clock import Fibre
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.service import Service


class Crashed(Exception):
    """Raised if the command crashes."""


class SimulatedLogs(command.Logs):
    """The old and the new log, for one execution of the command."""

    def __init__(self, old: World, new: World, fibre: Fibre, users: list[Any], rng: Random) -> None:
        self.old: Archive = WorldArchive(old)
        self._old, self._new = old, new
        self._fibre, self._users, self._rng = fibre, users, rng
        self._crash = 0.1

    def new(self) -> Archive | None:
        return WorldArchive(self._new) if self._new.is_created else None

    def create(self, partitions: int) -> Archive:
        self._pause()
        self._new.is_created = True
        return WorldArchive(self._new)

    def begin(self, partition: int, record: bytes) -> None:
        self._pause()
        self._new.append(partition, record)
        self._pause()

    def retire(self, partition: int, record: bytes) -> None:
        self._pause()
        self._old.append(partition, record)
        self._pause()

    def install(self, partition: int, state: Imported) -> None:
        client = MemoryClient(self._new.broker, self._before)
        odometer = _Producer(client, self._new, partition)
        self._fibre.wait(command.install(state, odometer, client.snapshots_of(partition)))
        self._new.check_snapshot(partition)

    async def _before(self, _: Effect) -> None:
        await asyncio.sleep(self._old.delay())
        self._may_crash()

    def _pause(self) -> None:
        """Let other tasks run; requests arrive at the old log."""
        self._fibre.wait(asyncio.sleep(self._old.delay()))
        records = self._old.log.records["norms"]
        if self._rng.random() < 0.5:
            self._old.append(*self._rng.choice(records)[::2])
        if self._rng.random() < 0.5:
            user = self._rng.choice(self._users)
            request = encode(Erase(user=user, request=self._old.token("eraser")))
            self._old.append(home(user, self._old.broker.partitions), request)
        self._may_crash()

    def _may_crash(self) -> None:
        if self._rng.random() < self._crash:
            raise Crashed


class _Producer(MemoryFencedProducer):
    """The producer of a new partition's odometer records."""

    def __init__(self, client: MemoryClient, world: World, partition: int) -> None:
        super().__init__(client, partition)
        self._world = world

    def _append(self, origin: Origin, output: Output) -> None:
        super()._append(origin, output)
        self._world.published(Channel.ODOMETER, self._partition, output.value)


async def repartitioned(service: Service, users: list[Any], seed: int) -> World | None:
    """Close all runs, and continue the log of a service in another one.

    Returns:
        The world of the new log; None if the old log cannot be continued and stays in use.
    """
    old, rng = service.world, Random(f"repartition of {seed}")
    new = World(seed, shares_with=old)
    for partition, runs in enumerate(service.audit.auditor.runs):
        for (dataset, run), state in runs.items():
            if not state.closed:
                token = old.token("operator")
                request = CloseRun(dataset=dataset, run=run, attempt=state.attempt, request=token)
                old.append(partition, encode(request))
    refused: list[CannotRepartition] = []

    def work(fibre: Fibre) -> None:
        while True:
            logs = SimulatedLogs(old, new, fibre, users, rng)
            try:
                command.repartition(logs, new.broker.partitions, tell=lambda _: None)
            except Crashed:
                old.note("operator", "starts the repartition again")
                continue
            except CannotRepartition as error:
                refused.append(error)
            return

    await old.start(Fibre(work).run())
    if refused:
        old.note("operator", f"cannot repartition: {refused[0]!r:.120}")
        return None
    old.note("operator", f"has continued the log in {new.broker.partitions} partitions")
    return new


def audited(old: Auditor, new: World) -> Auditor:
    """Return the auditor of the new log, which continues the one of the old log."""
    record = new.log.records["norms"][0][2]
    assert record is not None
    return continued(old, new.broker.topic, new.broker.partitions, record)
