"""An operator who says whose keys count, and changes its mind, and a thief without a key.

Where a simulation has them, every dataset names the trainers, who sign what they ask. The thief
reads the log and writes to it: what others said in other partitions, without its signature, in the
name of somebody else, and what the operator has said before. None of it may ever count: of all that
the auditor, who reads the same log, knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from streams.schemas import (
    BindOperator,
    Charge,
    ChargeRoster,
    CreateDataset,
    RegisterPrincipal,
    Rejection,
    Request,
    decode_signed,
    encode,
)
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout
from streams.wire.requests import RequestSigner
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, private_key, public_key
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection
from tests.simulation.world import World

_EVE = "eve"
"""She is registered and may create datasets, and no dataset names her."""


class Signing:
    """Who signs in a simulation, and by which keys.

    Args:
        seed: of the simulation.
        world: of it.
        names: of the trainers.
    """

    def __init__(self, seed: int, world: World, names: Iterable[str]) -> None:
        self.world = world
        self.names = [*names, _EVE]
        self._chance = Random(f"signatures of {seed}")
        self._keys = dict.fromkeys(self.names, 0)  # how often each was changed
        self._counting = dict.fromkeys(self.names, -1)  # the one that alone counts everywhere
        self.words = 0  # that the operator still has to say, beside what settles all
        self.is_settled = False

    @property
    def allow(self) -> dict[str, list[str]]:
        """What every dataset says."""
        trainers = self.names[:-1]
        return {"charge": trainers, "manage": trainers}

    def credentials(self, name: str) -> dict[str, str]:
        """With what a trainer signs now."""
        return {"principal": name, "request_key": private_key(self._key(name))}

    def signed(self, name: str, partition: int, request: Any) -> bytes:
        """A request as a trainer sends it past the SDK."""
        signer = RequestSigner(private_key(self._key(name)), name)
        return signer.sign(self.world.broker.topic, partition, encode(request))

    def begin(self) -> None:
        """Have the operator say something in what follows."""
        self.is_settled, self.words = False, self._chance.randint(0, 3)

    def operate(self, fibre: Fibre) -> None:
        """Register everybody, change keys now and then, and in the end have all be known."""
        lives = 0
        while not self.is_settled:
            lives += 1
            connection = SimulatedConnection(self.world, fibre, f"operator.{lives}")
            with suppress(Died, DecisionTimeout), Turnstile(connection=connection) as turnstile:
                for name in self.names:
                    self._register(turnstile, name)
                while self.words > 0:
                    fibre.wait(asyncio.sleep(self._chance.uniform(0.2, 3.0)))
                    self.words -= 1
                    self._change(turnstile, self._chance.choice(self.names))
                self.is_settled = True
            fibre.wait(asyncio.sleep(0.1))

    def _change(self, turnstile: Turnstile, name: str) -> None:
        """Take a key away, give another one, and give one that was taken away before."""
        if self._chance.random() < 0.5:
            turnstile.remove_principal(name, operator_key=private_key(OPERATOR))
            self.world.note("operator", f"knows {name} no more")
        self._keys[name] += 1
        self._register(turnstile, name)

    def _register(self, turnstile: Turnstile, name: str) -> None:
        public = public_text(public_key(self._key(name)))
        operator_key = private_key(OPERATOR)
        turnstile.add_principal(name, public, creates=name != _EVE, operator_key=operator_key)
        self._counting[name] = self._keys[name]
        self.world.note("operator", f"knows {self._key(name)}")

    def _key(self, name: str) -> str:
        return f"{name}, {self._keys[name]}"

    # --- the thief ----

    async def steal(self) -> None:
        """Write again and again what must not count, for as long as the world lasts."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1.5))
            records = self.world.log.records["norms"]
            if not records or self.world.catastrophe:
                continue
            # What is new is worth more than what is old, but for the words of the operator.
            at = self._chance.choice((-1, -1, -2, -5, self._chance.randrange(-len(records), 0)))
            here, _, value = records[max(at, -len(records))]
            for partition, forged in self._forged(here, value):
                self.world.note("thief", f"writes to {partition}")
                self.world.append(partition, forged)

    def _forged(self, here: int, value: bytes | None) -> list[tuple[int, bytes]]:
        """What a thief makes of a record, and where it is written."""
        try:
            request, sender = decode_signed(value)
        except Rejection:
            return []
        if sender is None or value is None:
            return []
        if isinstance(request, BindOperator) and max(self._counting.values()) < 0:
            return []  # where no operator is bound anybody may bind one, as the documents say
        elsewhere = self._chance.randrange(self.world.broker.partitions)
        forged = [(here, encode(request)), *[(elsewhere, value)] * (elsewhere != here)]
        by_operator = isinstance(request, BindOperator | RegisterPrincipal)
        if by_operator or isinstance(request, Charge | ChargeRoster):
            forged.append((here, value))  # what was said is said again
        later = _one_later(request)
        log = self.world.broker.topic
        signers = [(sender.principal, "thief"), (_EVE, self._key(_EVE))]
        if sender.principal is not None and self._counting.get(sender.principal, -1) > 0:
            signers.append((sender.principal, f"{sender.principal}, 0"))  # taken away by now
        for name, key in signers:
            forged.append((here, RequestSigner(private_key(key), name).sign(log, here, later)))
        return self._chance.sample(forged, min(2, len(forged)))


def _one_later(request: Request) -> bytes:
    """A request as its sender may say it next."""
    if isinstance(request, Charge | ChargeRoster):
        return encode(replace(request, step=request.step + 1))
    if isinstance(request, RegisterPrincipal):
        return encode(replace(request, number=request.number + 10**6, key=public_key("thief")))
    if isinstance(request, BindOperator):
        later = request.number + 10**6
        return encode(replace(request, number=later, operator=public_key("thief")))
    if isinstance(request, CreateDataset):
        own = replace(request.policy, dataset="of-the-thief", parent=UNSET, allow=UNSET)
        return encode(replace(request, policy=own))
    return encode(request)
