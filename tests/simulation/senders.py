"""Senders of norm events for a run that collects them.

Some events are late, changed, of another attempt, above the clip norm or sent to a wrong partition.
The network loses, repeats and reorders them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from msgspec import UNSET, json

from streams.records import NormEvent, encode
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout
from tests.audit.auditor_state import home
from tests.simulation.clients import Trainer
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection

_RECORDS = 4
"""The number of times that a sender sends norms over one connection."""


class Sender:
    """Sends norms until its quota is used up, or the trainers of the run have finished.

    Args:
        trainers: those that charge the run.
        name: the name of the sender.
        chance: its random generator.
    """

    def __init__(self, trainers: Sequence[Trainer], name: str, chance: Random) -> None:
        self.name = name
        self.quota = 0  # of times that it still sends norms
        self._trainers, self._chance = trainers, chance
        self._world = trainers[0].world

    @property
    def is_over(self) -> bool:
        """Return whether it has sent enough, or no trainer charges another step."""
        return self.quota <= 0 or all(
            trainer.quota <= 0 or trainer.is_closed for trainer in self._trainers
        )

    def work(self, fibre: Fibre) -> None:
        """Send norms, over one connection after the other."""
        lives, first = 0, self._trainers[0]
        while not self.is_over:
            if not first.received.attempt(first.plan.dataset, first.run):
                fibre.wait(asyncio.sleep(0.2))
                continue
            lives += 1
            connection = SimulatedConnection(self._world, fibre, f"{self.name}.{lives}")
            trainer = self._chance.choice(self._trainers)
            who = trainer.signing.credentials(trainer.name) if trainer.signing else {}
            try:
                with Turnstile(connection=connection, **who) as turnstile:
                    for _ in range(_RECORDS):
                        self.quota -= 1
                        self._send(turnstile, connection, trainer)
                        fibre.wait(asyncio.sleep(self._chance.uniform(0.0, 0.6)))
            except (Died, DecisionTimeout) as error:
                self._world.note(self.name, f"begins again after {error!r:.120}")

    def _send(
        self, turnstile: Turnstile, connection: SimulatedConnection, trainer: Trainer
    ) -> None:
        chance, dataset, run = self._chance, trainer.plan.dataset, trainer.run
        newest = max(each.charges for each in self._trainers)
        step = max(0, newest + chance.choice((0, 0, 0, 0, 1, 1, 2, -1)))
        attempt = max(1, trainer.received.attempt(dataset, run) + chance.choice((0, 0, -1, 1)))
        named = attempt if chance.random() < 0.3 else None
        users = chance.sample(trainer.plan.users, chance.randint(1, len(trainer.plan.users)))
        norms = [chance.choice((0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.5)) for _ in users]
        if chance.random() < 0.5:
            turnstile.send_norms(dataset, run, step, users, norms, attempt=named)
            return
        for user, norm in zip(users, norms, strict=True):
            event = NormEvent(
                dataset=dataset,
                run=run,
                step=step,
                attempt=UNSET if named is None else named,
                user=user,
                norm=norm,
            )
            partitions = connection.partitions
            partition = home(user, partitions)
            if chance.random() < 0.05:
                partition = chance.randrange(partitions)
            value = chance.choice((encode, json.encode))(event)
            connection.post({partition: value}, connection.deadline(None))
