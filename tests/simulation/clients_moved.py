"""A dataset that comes from another log, with what was spent there, while everything else fails.

Whoever brings it dies, is not answered and begins again, and charges it when all of it is there.
The auditor has to find it as it was said.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET

from streams.offline.mover import Moved, announce, send
from streams.offline.moves import Departure, Landing, Rows
from streams.schemas import Allow, Origin, Policy
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, Fenced, RequestRejected
from tests.simulation.clients import Died, SimulatedConnection
from tests.simulation.clock import Fibre
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.clients_signed import Signing

_BUDGET, _STEP = 2**44, 2**41
_REFUSED_FOR_NOW = ("not-allowed", "dataset-moving")


class Mover:
    """Who brings a dataset.

    Args:
        seed: of the simulation.
        world: of it.
        signing: who signs, if requests are signed.
        name: in which name then.
    """

    def __init__(self, seed: int, world: World, signing: Signing | None, name: str) -> None:
        self.world, self._signing, self._name = world, signing, name
        chance = Random(f"moves of {seed}")
        users = np.arange(chance.randint(0, 30))
        spent = np.array([chance.choice((0, _BUDGET // 3, _BUDGET)) for _ in users], np.int64)
        numbers = {"spent": spent, "base": spent // _STEP * _STEP, "rungs": spent // _STEP + 1}
        policy = Policy(
            dataset="moved",
            partitions=world.broker.partitions,
            measure="zcdp",
            budget=[_BUDGET],
            odometer_step=[_STEP],
            user_ids="integer",
            allow=UNSET if signing is None else Allow(**signing.allow),
        )
        origin = Origin(topic="5a" * 16, partitions=1, heads=bytes(32))
        rows = Rows(0, users, numbers, np.zeros(len(users), np.bool_))
        leaving = Departure(origin, [policy], frozenset(), [], {"moved": [rows]})
        self._landing = Landing(leaving, world.broker.partitions)
        self.is_done = False

    def work(self, fibre: Fibre) -> None:
        """Bring all of it, and have it charged."""
        lives = 0
        while not self.is_done:
            lives += 1
            connection = SimulatedConnection(self.world, fibre, f"mover.{lives}")
            signs = {} if self._signing is None else self._signing.credentials(self._name)
            client = Turnstile(connection=connection, **signs)
            try:
                with suppress(Died, DecisionTimeout, Fenced), client:
                    self._bring(connection, client)
                    self.is_done = True
                    self.world.note("mover", "has brought all of it")
            except RequestRejected as error:
                if error.reason not in _REFUSED_FOR_NOW:
                    raise
            fibre.wait(asyncio.sleep(0.5))

    def _bring(self, connection: SimulatedConnection, client: Turnstile) -> None:
        moved = Moved(self._landing, [], "")
        (policy,) = moved.leaving.policies
        for partition, received in announce(connection, moved, policy).items():
            send(connection, moved, policy, partition, received)
        client.run("moved", "r").charge(np.arange(3), np.ones(3), noise_stddev=4.0)
