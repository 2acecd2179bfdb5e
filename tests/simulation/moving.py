"""A second log beside the first, and operators who move a family of datasets there.

They are killed at any question that they ask, and begin again; there may be two of them. Trainers
go on charging the old log until it tells them where to go, and open their runs in the new one. What
was spent in both counts against one budget. Some have closed a dataset for good before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from streams.offline.mover import compare, move
from streams.offline.moves import NothingToMove, Unmovable
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, RequestRejected
from tests.audit.comparison import compare_moved
from tests.simulation.clients import Trainer
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection
from tests.simulation.seen import Seen
from tests.simulation.service import Service
from tests.simulation.told import Told
from tests.simulation.world import World, Wrong

_TRIES = 30
"""After so many an operator leaves a dataset where it is that nobody completes."""


class Moving:
    """Of one family of datasets.

    Args:
        seed: of the simulation.
        old: where they are.
        told: of what is charged there.
        trainers: all of them, of whom some charge the family.
    """

    def __init__(self, seed: int, old: Service, told: Told, trainers: list[Trainer]) -> None:
        self._chance = Random(f"moves of {seed}")
        self.old = old
        self.new = Service(World(seed, beside=old.world), "n")
        self.new.audit.before.append(old.audit.auditor)
        self.told = told.elsewhere()
        self.dataset = self._chance.choice(trainers).plan.chain[0].dataset
        self._family = [t for t in trainers if t.plan.chain[0].dataset == self.dataset]
        self._tries = _TRIES
        ends = Random(f"closed before they move in {seed}")
        each = sorted({plan.dataset for t in self._family for plan in t.plan.chain})
        self._closes = ends.choice([self.dataset, *each]) if ends.random() < 0.25 else None
        self.is_done = False

    def operators(self) -> Iterator[Fibre]:
        """Who move it, and let the trainers know where it goes."""
        for trainer in self._family:
            trainer.moves_to = self.new.world, self.told
        for number in range(self._chance.choice((1, 1, 2))):
            yield Fibre(lambda fibre, name=f"mover{number}": self._operate(fibre, name))

    def _operate(self, fibre: Fibre, name: str) -> None:
        fibre.wait(asyncio.sleep(self._chance.uniform(0.0, 8.0)))
        lives = 0
        while not self.is_done and self._tries > 0:
            lives += 1
            here, there = (
                SimulatedConnection(service.world, fibre, f"{name}.{lives}")
                for service in (self.old, self.new)
            )
            try:
                if self._closes is not None:
                    closed = Turnstile(connection=here).close_dataset(self._closes)
                    self.old.world.note(name, f"has closed {closed}")
                    self._closes = None
                moved = move(*self._archives(), here, there, self.dataset)
                self.old.world.note(name, f"has moved {self.dataset}: {moved.sent} records")
                self.is_done = True
            except (Died, DecisionTimeout) as error:
                self.old.world.note(name, f"begins anew after {error!r:.120}")
            except NothingToMove as error:
                self.old.world.note(name, f"{error!r:.200}")
                self._tries = 0
                for trainer in self._family:
                    trainer.creates_all = True
            except (Unmovable, RequestRejected) as error:
                self.old.world.note(name, f"{error!r:.200}")
                self._tries -= 1
            finally:
                here.close()
                there.close()
            fibre.wait(asyncio.sleep(self._chance.uniform(0.0, 2.0)))

    def check(self) -> None:
        """What is in the new log is what the old one says.

        Raises:
            Wrong: it was closed in the old log to go there, and is not there.
        """
        compare_moved(self.old.audit.auditor, self.new.audit.auditor)
        if self.is_done:
            compare(*self._archives(), self.dataset)
        elif self._family[0].creates_all:
            return  # nobody had used it
        elif any(self.dataset in moves for moves in self.old.audit.auditor.moves):
            raise Wrong(f"{self.dataset} was closed, and has not come")

    def _archives(self) -> tuple[Seen, Seen]:
        return Seen(self.old.world), Seen(self.new.world)
