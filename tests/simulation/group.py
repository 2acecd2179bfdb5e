"""The consumer group, which assigns the partitions to workers.

A rebalance asks every member to revoke its partitions, waits for the members that do so, and drops
the others. A dropped member, such as a paused one, keeps its partitions until it learns of the
rebalance.
"""

from __future__ import annotations

import asyncio

from tests.simulation.process import SESSION, Process
from tests.simulation.world import World

_REJOIN_WITHIN = 4.0


class Group:
    """The coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.members: dict[Process, None] = {}
        self.generation = 0
        self._asked: dict[Process, None] = {}  # members that have not joined again
        self._change = asyncio.Event()
        self._join = asyncio.Event()

    def join(self, member: Process) -> None:
        """Add a member, or note that it has joined again in a rebalance."""
        if member in self._asked:
            del self._asked[member]
            self._join.set()
        else:
            self.members[member] = None
            self._change.set()

    def leave(self, member: Process, at_once: bool) -> None:
        """Drop a member; a dead member is dropped some time after its death."""
        if not at_once:
            self.world.after(self.world.rng.uniform(0.1, SESSION), self.leave, member, True)
        elif member in self.members:
            self.world.note("group", f"drops {member.name}")
            del self.members[member]
            self._asked.pop(member, None)
            self._join.set()
            self._change.set()

    def leave_if_paused(self, member: Process) -> None:
        if member.is_paused:
            self.evict(member)

    def evict(self, member: Process) -> None:
        """Drop a member that may be alive; it learns of it later and joins again."""
        if member in self.members:
            self.leave(member, at_once=True)
            self.world.after(self.world.rng.expovariate(0.5), member.orders.put_nowait, None)

    def rebalance(self) -> None:
        """Start a rebalance."""
        self._change.set()

    async def coordinate(self) -> None:
        """Coordinate rebalances until the simulation ends."""
        world = self.world
        while True:
            await self._change.wait()
            await asyncio.sleep(world.rng.uniform(0.0, 0.5))
            self._change.clear()
            self.generation += 1
            self._asked = dict.fromkeys(self.members)
            for member in self.members:
                member.orders.put_nowait(None)
            await self._all_joined()
            for member in list(self._asked):
                self.evict(member)
            self._assign(list(self.members))

    async def _all_joined(self) -> None:
        until = self.world.loop.time() + _REJOIN_WITHIN
        while self._asked:
            self._join.clear()
            try:
                await asyncio.wait_for(self._join.wait(), until - self.world.loop.time())
            except TimeoutError:
                return

    def _assign(self, members: list[Process]) -> None:
        if not members:
            return
        rng = self.world.rng
        shares: dict[Process, list[int]] = {member: [] for member in members}
        first = rng.randrange(len(members)) if rng.random() < 0.3 else 0
        for partition in range(self.world.broker.partitions):
            shares[members[(first + partition) % len(members)]].append(partition)
        for member, share in shares.items():
            self.world.note("group", f"generation {self.generation}: {member.name} has {share}")
            member.orders.put_nowait((self.generation, share))
