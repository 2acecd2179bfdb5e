"""The service: workers, their supervisors, and an operator who follows remedies."""

from __future__ import annotations

import asyncio
from typing import Any

from streams.store.store_port import SuspensionReason
from streams.worker.processor import ProcessorState
from tests.doubles.memory_store import Contents
from tests.simulation.audit import Audit
from tests.simulation.group import Group
from tests.simulation.process import Process
from tests.simulation.world import World, Wrong

SETTLE_WITHIN = 300.0
_BEATS_WITHIN = 5.0
_STALE_AFTER = 30.0
_REPAIRABLE = ("damaged", "log-begins-late")


class Service:
    """The service of one world.

    Args:
        world: the world with the log and Redis.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.group = Group(world)
        self.audit = Audit(world)
        self.slots: list[Process] = []
        self._started = 0
        self._background: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Start all workers."""
        self._background.append(self.world.start(self.group.coordinate()))
        for slot in range(self.world.settings.workers):
            self.slots.append(self._new_process(slot))
            self._background.append(self.world.start(self._supervise(slot)))

    async def settle(self) -> None:
        """Wait until all requests are applied and published; repair suspended partitions."""
        world = self.world
        until = world.loop.time() + SETTLE_WITHIN
        operating = world.start(self.operate())
        if world.exchanged:
            for process in self.slots:
                process.kill(
                    "the operator restarts it: an acquisition alone finds an older page or bit"
                )
        for seconds in (0.0, _BEATS_WITHIN):  # an idle worker finds a fault in its next heartbeat
            await asyncio.sleep(seconds)
            while self._is_any_paused() or not all(
                self._is_settled(p) for p in range(world.broker.partitions)
            ):
                if world.loop.time() > until:
                    raise Wrong(f"does not settle: {self.condition()}")
                await asyncio.sleep(0.5)
        stop(operating)

    def check_suspended(self) -> None:
        """Check that no worker decides requests of a log that was replaced."""
        what = self.world.catastrophe
        for process in self.slots:
            decides_nothing = (
                process.is_dead or process.is_paused
            )  # it detects the change when it continues
            owned = {} if decides_nothing else process.owned.by_partition
            for partition, one in owned.items():
                is_other = what == "other-partitions" or partition in self.world.lost
                if is_other and one.state is ProcessorState.RUNNING:
                    raise Wrong(f"{process.name} decides {partition}: {what}")

    def _is_any_paused(self) -> bool:
        return any(process.is_paused and not process.is_dead for process in self.slots)

    def _is_settled(self, partition: int) -> bool:
        kept = self.world.store.contents(partition)
        log = self.world.broker.norms(partition)
        return (
            bool(kept.meta)
            and self.world.store.next_of(partition) == log.end
            and kept.meta["outbox"] == "0"
            and not kept.suspended
            and self.processor_of(partition) is not None
        )

    def processor_of(self, partition: int) -> Any:
        """Return the processor of the owner, if it is alive and decides; None otherwise."""
        owner = self.world.store.contents(partition).meta.get("owner", "")
        for process in self.slots:
            if process.name == owner and not process.is_dead:
                owned = process.owned.by_partition.get(partition)
                if owned is not None and owned.state is ProcessorState.RUNNING:
                    return owned
        return None

    async def operate(self) -> None:
        """Repair the suspended partitions, until a catastrophe."""
        world = self.world
        since: dict[int, float] = {}
        while world.catastrophe is None:
            await asyncio.sleep(1.0)
            for partition in range(world.broker.partitions):
                if self.processor_of(partition) is not None or self._is_any_paused():
                    since.pop(partition, None)
                elif world.loop.time() - since.setdefault(partition, world.loop.time()) > (
                    _STALE_AFTER
                ):
                    self._repair(partition)
                    since.pop(partition)

    def _repair(self, partition: int) -> None:
        """Follow the remedy of a suspension; restart the workers of a partition without an
        owner.
        """
        world = self.world
        suspended = world.store.contents(partition).suspended
        lacks_key = suspended and suspended["reason"] == SuspensionReason.ERASURE_KEY
        if lacks_key and world.erasure_keys:
            world.note("operator", f"gives all erasure keys to the workers of {partition}")
        elif partition not in world.rewound:
            raise Wrong(f"partition {partition} is not decided, without a cause: {suspended}")
        elif (
            suspended and suspended["reason"] != SuspensionReason.RESTORING
        ):  # whose owner may have died
            if partition not in world.damaged or suspended["reason"] not in _REPAIRABLE:
                raise Wrong(f"partition {partition} is suspended without a cause: {suspended}")
            if world.is_covered(partition):
                world.note("operator", f"deletes what Redis has of {partition}")
                world.store.replace_contents({partition: Contents()})
            else:
                world.note("operator", f"restores {partition}")
                world.store.replace_contents({partition: world.store.newest_intact(partition)})
        for process in self.slots:
            process.kill("the operator restarts it")

    def condition(self) -> str:
        store, broker = self.world.store, self.world.broker
        return "; ".join(
            f"partition {p}: next {store.next_of(p)} of {broker.norms(p).end}, outbox "
            f"{store.contents(p).meta.get('outbox')}, owner {store.contents(p).meta.get('owner')}, "
            f"suspended {store.contents(p).suspended}"
            for p in range(broker.partitions)
        )

    def _new_process(self, slot: int) -> Process:
        self._started += 1
        process = Process(self.world, self.group, f"w{slot}.{self._started}")
        process.start()
        return process

    async def _supervise(self, slot: int) -> None:
        while True:
            await self.slots[slot].ended.wait()
            await asyncio.sleep(self.world.rng.uniform(0.2, 4.0))
            self.slots[slot] = self._new_process(slot)


def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a background task, or raise its error if it has failed."""
    if task.done() and not task.cancelled():
        task.result()
    task.cancel()
