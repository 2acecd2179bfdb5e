"""A manager who changes access lists, and an attacker without a valid key.

In such a simulation every dataset has an access list with the keys of the trainers, who sign their
requests. The manager replaces keys from time to time. The attacker reads the log and writes to it:
requests signed for other partitions, requests without their signatures, requests signed by unknown
or removed keys, and earlier changes of a list. None of these may be accepted. The auditor reads the
same log and does not know which records the attacker wrote.
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
"""Seconds between two checks for lists that must be set."""


class Signing:
    """The keys and access lists of a simulation.

    Args:
        seed: the seed of the simulation.
        world: the simulated world.
        names: the names of the trainers.
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
        # (dataset, trainer) -> the version of its key that is the only one on the list, everywhere
        self._counting: dict[tuple[str, str], int] = {}
        self._due: set[str] = set()  # datasets whose list has to be set
        self._changes = 0  # changes that the manager still makes

    @property
    def allow(self) -> dict[str, list[Right]]:
        """Return the first access list of every dataset."""
        trainers: dict[str, list[Right]] = {
            public(f"{name}, 0"): ["charge", "manage"] for name in self.names
        }
        return {**trainers, public(_MANAGER): ["manage"]}

    def credentials(self, name: str) -> dict[str, str]:
        """Return the present key of a trainer."""
        return {"request_key": private_key(self._key(name))}

    def signed(self, name: str, partition: int, request: Any) -> bytes:
        """Return a signed request that bypasses the SDK."""
        signer = RequestSigner(private_key(self._key(name)))
        return signer.sign(self.world.broker.topic, partition, encode(request))

    def refused(self) -> None:
        """Set all lists again, because a trainer's key was rejected: a dataset may be new."""
        self._due.update(self._datasets)

    def begin(self) -> None:
        """Let the manager make some changes from now on."""
        self._changes = self._chance.randint(0, 5)

    def manage(self, fibre: Fibre, is_over: Callable[[], bool]) -> None:
        """Replace keys from time to time, and set every list that is due, until all is over."""
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
        for name in self.names:  # until the list is set, either key may be valid
            self._counting.pop((dataset, name), None)
        trainers: dict[str, list[Right]] = {
            public(f"{name}, {key}"): ["charge", "manage"] for name, key in keys.items()
        }
        try:
            turnstile.set_access(dataset, {**trainers, public(_MANAGER): ["manage"]})
        except RequestRejected as error:
            if error.reason not in ("unknown-dataset", "superseded"):
                raise
            self._due.discard(dataset)  # the trainer that creates it calls ``refused``
            return
        self.world.note("manager", f"has set the list of {dataset}")
        self._counting |= {(dataset, name): key for name, key in keys.items()}
        self._due.discard(dataset)
        self._due.update([dataset] if keys != self._keys else [])

    def _key(self, name: str) -> str:
        return f"{name}, {self._keys[name]}"

    # --- the attacker ---

    async def steal(self) -> None:
        """Write records that must not be accepted, until the simulation ends."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1.5))
            records = self.world.log.records["norms"]
            if not records or self.world.catastrophe:
                continue
            # New records are more useful to an attacker than old ones, except changes of a list.
            at = self._chance.choice((-1, -1, -2, -5, self._chance.randrange(-len(records), 0)))
            here, _, value = records[max(at, -len(records))]
            for partition, forged in self._forged(here, value):
                self.world.note("thief", f"writes to {partition}")
                self.world.append(partition, forged)

    def _forged(self, here: int, value: bytes | None) -> list[tuple[int, bytes]]:
        """Return forgeries made from a record, and their partitions."""
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
        if not isinstance(
            request, CreateDataset
        ):  # which needs no key where the dataset does not exist
            forged += [(here, encode(request)), *[(elsewhere, value)] * (elsewhere != here)]
        if isinstance(request, Charge | ChargeRoster | SetAccess):
            forged.append((here, value))  # a replay
        return self._chance.sample(forged, min(2, len(forged)))

    def _removed(self, request: Request, key: bytes) -> list[str]:
        """Return a key of the same trainer that was removed from the dataset's list.

        The first key does not count: it is on the list again when the dataset is created again.
        """
        dataset = getattr(request, "dataset", None)
        for name in self.names:
            last = self._counting.get((str(dataset), name), 0)
            if last > 1 and key == public_key(f"{name}, {last}"):
                return [f"{name}, {last - 1}"]
        return []


def _one_later(request: Request) -> bytes:
    """Return the request that the sender might send next."""
    if isinstance(request, Charge | ChargeRoster):
        return encode(replace(request, step=request.step + 1))
    if isinstance(request, SetAccess):
        allow = allowing(thief="charge manage")
        return encode(replace(request, number=request.number + 10**6, allow=allow))
    if isinstance(request, CreateDataset):
        inside = replace(
            request.policy,
            dataset="of-the-thief",
            parents=[request.policy.dataset],
            allow=UNSET,
            share_of=UNSET,
            user_ids=UNSET,
            assume_independent_timing=UNSET,
        )
        return encode(replace(request, policy=inside, log=UNSET))
    return encode(request)
