"""The independent auditor, over all that was ever written in a simulation."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.ledger.ledger import ledger_of
from tests.audit.auditor import Auditor, compare, compare_chain, published_answer
from tests.audit.auditor import _first_link as first_link
from tests.audit.auditor import _frozen as frozen
from tests.audit.auditor import _next_link as next_link
from tests.simulation.told import Heard, Told
from tests.simulation.world import Records, World, Wrong


class Audit:
    """Of one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions = world.broker.partitions
        self.topic = world.broker.topic
        self.auditor = Auditor(self.partitions, self.topic)

    async def when_settled(self, told: Told) -> None:
        """State, answers, rejects, checkpoints and chain are what comes of the log, all of them."""
        world = self.world
        self.auditor.apply_all(world.log)
        ledgers = {}
        for partition in range(self.partitions):
            snapshot = await world.store.load(partition)
            if snapshot is None:
                raise Wrong(f"nothing is kept of partition {partition}")
            ledgers[partition] = ledger_of(
                snapshot, partition, self.partitions, self.topic, snapshot.meta.chain
            )
            compare_chain(self.auditor, partition, snapshot.meta.chain)
        compare(self.auditor, world.log, ledgers)
        self._compare_told(told.steps)
        self._compare_compacted()
        self._compare_policies(told)

    def begin_catastrophe(self, told: Told) -> None:
        """Remember what the log was, and what had been said, until now."""
        self._records = len(self.world.log.records["norms"])
        self._steps = len(told.steps)

    def begin_silence(self) -> None:
        """From now on nothing may be decided that the catastrophe has touched."""
        self._said = len(self.world.log.records["halts"])

    def after_catastrophe(self, told: Told) -> None:
        """What was said is what the log said; nothing was made up after it was lost.

        Of a topic that is created anew the workers hear after seconds; they may have decided what
        was written there until then, within the budgets.
        """
        world, log = self.world, Records()
        log.records |= world.log.records
        fresh = log.records["norms"][self._records :]
        log.records["norms"] = [
            record
            for record in (
                *log.records["norms"][: self._records],
                *(record for record in fresh if record[0] not in world.lost),
            )
            if record[0] < self.partitions and record[1] < self.reached(record[0])
        ]
        self.auditor.apply_all(log)
        for partition, offset, value in log.records["halts"][self._said if world.lost else 0 :]:
            if frozen(published_answer(value or b"")) not in self.auditor.answers:
                raise Wrong(f"answer {offset} of partition {partition} has no cause: {value!r}")
        if world.lost:
            self._compare_told(dict(list(told.steps.items())[: self._steps]))
        else:
            self._compare_told(told.steps)
        if world.catastrophe != "other-log":
            self._compare_chains(log.records["norms"])

    def reached(self, partition: int) -> int:
        """How far any worker has come: what was not decided cannot be told from here."""
        metas = (copy[partition].meta for copy in self.world.store.history if partition in copy)
        return max((int(meta.get("next", "0")) for meta in metas), default=0)

    def _compare_chains(self, records: list[tuple[int, int, bytes | None]]) -> None:
        """What a state was applied from is the beginning of the log that there was."""
        for partition in range(self.partitions):
            meta = self.world.store.contents(partition).meta
            if not meta or meta["topic"] != self.topic.hex():
                continue
            link = first_link(self.topic, partition, self.partitions)
            for place, offset, value in records:
                if place == partition and offset <= int(meta["last"]):
                    link = next_link(link[0], offset, value)
            if link[0].hex() != meta["head"]:
                raise Wrong(f"the state of partition {partition} is not of the log")

    def _compare_told(self, steps: dict[tuple[str, str, int], Heard]) -> None:
        """Every decision that a client was told is one that comes of the log."""
        decided = {
            (d["dataset"], d["run"], d["step"], d["partition"]): d
            for d in self.auditor.charged.values()
        }
        for (dataset, run, step), heard in steps.items():
            here = [decided[dataset, run, step, p] for p in range(self.partitions)]
            halted = {user for decision in here for user in decision["halted"]}
            admitted = sum(sum(decision["admitted"]) for decision in here)
            for user, is_in in zip(heard.content.users, heard.admitted, strict=True):
                if is_in is (user in halted):
                    raise Wrong(f"{user!r} of {dataset}/{run}/{step} was told {is_in}")
            if admitted != sum(heard.admitted):
                raise Wrong(f"{admitted} are admitted to {dataset}/{run}/{step}: {heard}")

    def _compare_compacted(self) -> None:
        """The checkpoint that compaction keeps of a user is the newest one.

        Not where Redis went back and then ahead: what was published again in between is older, and
        what is newer was published before. It stays so until the odometer of the user rises.
        """
        kept: dict[tuple[Any, ...], int] = {}
        for partition, _, value in self.world.log.records["odometer"]:
            checkpoint = msgspec.msgpack.decode(value or b"")
            kept[checkpoint["dataset"], checkpoint["user"], partition] = checkpoint["offset"]
        newest: dict[tuple[Any, ...], int] = {}
        for dataset, user, partition, offset, _ in self.auditor.checkpoints:
            key = dataset, user, partition
            newest[key] = max(offset, newest.get(key, -1))
        for key, offset in newest.items():
            if kept.get(key) != offset and key[2] not in self.world.store.jumped:
                raise Wrong(
                    f"compaction keeps the checkpoint at {kept.get(key)} of {key}, not {offset}"
                )

    def _compare_policies(self, told: Told) -> None:
        """A dataset that was charged has one policy everywhere."""
        for dataset in {key[0] for key in told.steps}:
            policies = [
                datasets[dataset].policy if dataset in datasets else None
                for datasets in self.auditor.datasets
            ]
            if any(policy != policies[0] for policy in policies):
                raise Wrong(f"dataset {dataset} is charged under {policies}")


def forget() -> None:
    """Drop what the auditor keeps between seeds."""
    published_answer.cache_clear()
