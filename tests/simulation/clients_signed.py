"""A manager who changes access lists, and a thief without a key that counts.

Where a simulation has them, every dataset has an access list with the keys of the trainers, who
sign their requests. The manager replaces keys now and then. The thief reads the log and writes to
it: requests that were signed for other partitions, requests without their signatures, requests
signed by keys that are on no list or were removed, and earlier changes of a list. None of it may
ever count, and the auditor, who reads the same log, knows nothing of the thief.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from streams.records import (
    Charge,
    ChargeRoster,
    CreateDataset,
    Rejection,
    Request,
    Right,
    SetAccess,
    decode_signed,
    encode,
)
from streams.records.signatures import RequestSigner
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, RequestRejected
from tests.keys import allowing, private_key, public, public_key
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection
from tests.simulation.world import World

_MANAGER, _EVE = "manager", "eve"
_ROUND = 0.5
"""Seconds after which the manager looks again for lists that have to be set."""


class Signing:
    """The keys and access lists of a simulation.

    Args:
        seed: of the simulation.
        world: of it.
        names: of the trainers.
        datasets: the names of all datasets.
    """

    def __init__(
        self, seed: int, world: World, names: Iterable[str], datasets: Iterable[str]
    ) -> None:
        self.world = world
        self.names = [*names]
        self._datasets = sorted(datasets)
        self._chance = Random(f"signatures of {seed}")
        self._keys = dict.fromkeys(self.names, 0)  # how often each was changed
        # (dataset, trainer) -> the version of its key that alone is on the list, everywhere
        self._counting: dict[tuple[str, str], int] = {}
        self._due: set[str] = set()  # datasets whose list has to be set
        self._changes = 0  # that the manager still makes

    @property
    def allow(self) -> dict[str, list[Right]]:
        """The list that every dataset begins with."""
        trainers: dict[str, list[Right]] = {
            public(f"{name}, 0"): ["charge", "manage"] for name in self.names
        }
        return {**trainers, public(_MANAGER): ["manage"]}

    def credentials(self, name: str) -> dict[str, str]:
        """The key with which a trainer signs now."""
        return {"request_key": private_key(self._key(name))}

    def signed(self, name: str, partition: int, request: Any) -> bytes:
        """Return a request as a trainer sends it past the SDK."""
        signer = RequestSigner(private_key(self._key(name)))
        return signer.sign(self.world.broker.topic, partition, encode(request))

    def refused(self) -> None:
        """Note that a trainer's key is not on a list: a dataset was created again, perhaps."""
        self._due.update(self._datasets)

    def begin(self) -> None:
        """Have the manager make some changes in what follows."""
        self._changes = self._chance.randint(0, 5)

    def manage(self, fibre: Fibre, is_over: Callable[[], bool]) -> None:
        """Replace keys now and then, and set every list that is due, until all is over."""
        lives = 0
        while not is_over():
            lives += 1
            connection = SimulatedConnection(self.world, fibre, f"manager.{lives}")
            key = private_key(_MANAGER)
            with (
                suppress(Died, DecisionTimeout),
                Turnstile(connection=connection, request_key=key) as turnstile,
            ):
                while not is_over():
                    if self._changes > 0 and self._chance.random() < 0.5:
                        self._changes -= 1
                        self._change(self._chance.choice(self.names))
                    for dataset in sorted(self._due):
                        self._set(turnstile, dataset)
                    fibre.wait(asyncio.sleep(_ROUND))
            fibre.wait(asyncio.sleep(0.1))

    def _change(self, name: str) -> None:
        self._keys[name] += 1
        self._due.update(self._datasets)
        self.world.note("manager", f"replaces a key by {self._key(name)}")

    def _set(self, turnstile: Turnstile, dataset: str) -> None:
        keys = dict(self._keys)
        for name in self.names:  # whoever reads the log may have either key while this lasts
            self._counting.pop((dataset, name), None)
        trainers: dict[str, list[Right]] = {
            public(f"{name}, {key}"): ["charge", "manage"] for name, key in keys.items()
        }
        try:
            turnstile.set_access(dataset, {**trainers, public(_MANAGER): ["manage"]})
        except RequestRejected as error:
            if error.reason not in ("unknown-dataset", "superseded"):
                raise
            self._due.discard(dataset)  # who creates it asks again
            return
        self.world.note("manager", f"has set the list of {dataset}")
        self._counting |= {(dataset, name): key for name, key in keys.items()}
        self._due.discard(dataset)
        self._due.update([dataset] if keys != self._keys else [])

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
            # New records are worth more than old ones, but for changes of a list.
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
        log = self.world.broker.topic
        elsewhere = self._chance.randrange(self.world.broker.partitions)
        later = _one_later(request)
        forged = [
            (here, RequestSigner(private_key(key)).sign(log, here, later))
            for key in ("thief", _EVE, *self._removed(request, sender.key))
        ]
        if not isinstance(request, CreateDataset):  # that needs no key where there is no dataset
            forged += [(here, encode(request)), *[(elsewhere, value)] * (elsewhere != here)]
        if isinstance(request, Charge | ChargeRoster | SetAccess):
            forged.append((here, value))  # the same again
        return self._chance.sample(forged, min(2, len(forged)))

    def _removed(self, request: Request, key: bytes) -> list[str]:
        """A key of the same trainer that the list of the dataset had and has no more.

        Not the first one: it is on the list again when the dataset is created again.
        """
        dataset = getattr(request, "dataset", None)
        for name in self.names:
            last = self._counting.get((str(dataset), name), 0)
            if last > 1 and key == public_key(f"{name}, {last}"):
                return [f"{name}, {last - 1}"]
        return []


def _one_later(request: Request) -> bytes:
    """A request as its sender may send it next."""
    if isinstance(request, Charge | ChargeRoster):
        return encode(replace(request, step=request.step + 1))
    if isinstance(request, SetAccess):
        allow = allowing(thief="charge manage")
        return encode(replace(request, number=request.number + 10**6, allow=allow))
    if isinstance(request, CreateDataset):
        inside = replace(
            request.policy,
            dataset="of-the-thief",
            parent=request.policy.dataset,
            allow=UNSET,
            share_of=UNSET,
            user_ids=UNSET,
            assume_independent_timing=UNSET,
        )
        return encode(replace(request, policy=inside, log=UNSET))
    return encode(request)
