"""A client's connection over a simulated network, which loses, repeats and reorders messages.

A request is in flight until its answers are awaited, as with the SDK. Records, crashes and other
clients' requests can come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streams.ledger.ledger import Channel
from streams.records import Answer
from streams.sdk.connection import Connection, Deadline, PendingRequest
from streams.sdk.errors import PartitionsDisagree, RequestRejected
from streams.sdk.followers import Followed, Reading
from tests.simulation.clock import Fibre
from tests.simulation.world import World


class Died(BaseException):
    """Raised if the client dies; no ``except Exception`` catches it."""


@dataclass(frozen=True)
class VirtualDeadline(Deadline):
    """A deadline by the loop's clock. ``left`` is called only if no more answers will arrive."""

    def left(self) -> float:
        return 0.0


class SimulatedConnection(Connection):
    """The connection of one client."""

    def __init__(self, world: World, fibre: Fibre, name: str) -> None:
        timeout = world.rng.choice((1.0, 4.0, 15.0))
        super().__init__(world.broker.partitions, timeout, world.broker.topic)
        self.world = world
        self._fibre = fibre
        self._name = name
        self._wake = asyncio.Event()
        self._listening = True
        self._positions = {
            (channel, partition): world.broker.outputs(channel, partition).end
            for channel in (Channel.HALTS, Channel.REJECTS)
            for partition in range(self.partitions)
        }
        world.listeners.append(self._published)

    def check_partitions(self) -> None:
        self.pause(0.0)
        if self.world.broker.partitions != self.partitions:
            raise PartitionsDisagree("partitions were added", None)

    def deadline(self, timeout: float | None) -> Deadline:
        seconds = super().deadline(timeout).seconds
        return VirtualDeadline(seconds, self.world.loop.time() + seconds)

    def pause(self, seconds: float) -> None:
        """Let other tasks run for a while."""
        self._fibre.wait(asyncio.sleep(self.world.delay()))

    def new_token(self) -> str:
        return self.world.token(self._name)

    def now(self) -> int:
        return int(self.new_token().rpartition("-")[2])  # later calls return higher numbers

    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        raise NotImplementedError("no client of the simulation follows topics")

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        for partition, request in requests.items():
            self.may_die()
            self._send(partition, request)

    def _flush(self, deadline: Deadline) -> None:
        """Do not wait: records may be late or lost."""

    def receive(
        self, waiting: PendingRequest, deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        if waiting.requests:
            self._fibre.wait(self._answered(waiting, deadline.at))
            self.may_die()
        return super().receive(waiting, deadline)

    async def _answered(self, waiting: PendingRequest, until: float) -> None:
        timer = self.world.loop.call_at(until, self._wake.set)
        while not waiting._done.is_set() and self.world.loop.time() < until:
            self._wake.clear()
            await self._wake.wait()
        timer.cancel()
        if delay := self.world.delay():
            await asyncio.sleep(delay)

    def may_die(self) -> None:
        if self.world.happens(self.world.settings.client_dies):
            self.world.note(self._name, "dies")
            raise Died

    def _send(self, partition: int, request: bytes) -> None:
        world, settings = self.world, self.world.settings
        if world.happens(settings.lost):
            world.note(self._name, f"what it sends to {partition} is lost")
            return
        for _ in range(2 if world.happens(settings.twice) else 1):
            late = world.rng.expovariate(0.3) if world.happens(settings.late) else 0.0
            world.after(world.delay() + late, world.append, partition, request)

    def _published(self, channel: Channel, partition: int) -> None:
        if (channel, partition) in self._positions:
            self.world.after(self.world.delay(), self._catch_up, channel, partition)

    def _catch_up(self, channel: Channel, partition: int) -> None:
        """Receive the records that were published since the last call, in order."""
        topic = self.world.broker.outputs(channel, partition)
        while self._listening and self._positions[channel, partition] < topic.end:
            record = topic.records.get(self._positions[channel, partition])
            self._positions[channel, partition] += 1
            if record is None or self.world.happens(self.world.settings.lost):
                continue
            for _ in range(2 if self.world.happens(self.world.settings.twice) else 1):
                self._deliver(channel, partition, record[1] or b"")
            self._wake.set()

    def _disconnect(self) -> None:
        self._listening = False
        self.world.listeners.remove(self._published)
