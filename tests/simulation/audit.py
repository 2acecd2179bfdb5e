"""The independent auditor, over all that was ever written in a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from streams.ledger.ledger import Channel, ledger_of
from streams.worker.outbox import Packed
from tests.audit.auditor import Auditor, compare, compare_chain, published_answer
from tests.audit.auditor import _first_link as first_link
from tests.audit.auditor import _frozen as frozen
from tests.audit.auditor import _next_link as next_link
from tests.simulation.clients import LEVELS
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

    def begin_catastrophe(self) -> None:
        """Remember what the log was until now."""
        self._records = len(self.world.log.records["norms"])

    def after_catastrophe(self, told: Told) -> None:
        """What was said is what comes of the records that were applied, whatever became of them."""
        world, log = self.world, Records()
        log.records |= world.log.records
        log.records["norms"] = self._applied()
        log.records["halts"] = world.log.records["halts"] + self._kept_answers()
        self.auditor = Auditor(self.partitions, self.topic)
        self.auditor.apply_all(log)
        for partition, offset, value in log.records["halts"]:
            if frozen(published_answer(value or b"")) not in self.auditor.answers:
                raise Wrong(f"answer {offset} of partition {partition} has no cause: {value!r}")
        self._compare_told(told.steps)

    def reached(self, partition: int) -> int:
        """How far any worker has come: what was not decided cannot be told from here."""
        return int(self._furthest(partition).get("next", "0"))

    def _furthest(self, partition: int) -> Mapping[str, str]:
        metas = [copy[partition].meta for copy in self.world.store.history if partition in copy]
        return max(metas, key=lambda meta: int(meta.get("next", "0")), default={})

    def _kept_answers(self) -> list[tuple[int, int, bytes | None]]:
        """Answers that Redis has kept at any time: not all of them may have been published."""
        kept = {
            (partition, name): packed
            for copy in self.world.store.history
            for partition, contents in copy.items()
            for name, packed in contents.outbox.items()
        }
        return [
            (partition, -1, output.value)
            for (partition, _), packed in kept.items()
            for output in msgspec.msgpack.decode(packed, type=Packed).outputs
            if output.channel is Channel.HALTS
        ]

    def _applied(self) -> list[tuple[int, int, bytes | None]]:
        """What was applied: of a log that became another one, its records up to a place, as they
        were fetched before, and those of the other one from there on.

        Of a topic that is created anew the workers hear after seconds; until then they decide what
        is written there. Of a log that lost its end they hear before the first record comes.
        """
        records = self.world.log.records["norms"]
        before, after = records[: self._records], records[self._records :]
        applied: list[tuple[int, int, bytes | None]] = []
        for partition in range(self.partitions):
            meta = self._furthest(partition)
            reached = int(meta.get("next", "0"))
            old, new = (
                {offset: value for p, offset, value in part if p == partition and offset < reached}
                for part in (before, after)
            )
            if partition not in self.world.lost:
                candidates = [old | new]
            elif self.world.catastrophe == "lost-tail":
                candidates = [old]
            else:
                candidates = [_spliced(old, new, cut) for cut in range(reached, -1, -1)]
            for found in candidates:
                if not meta or self._head(partition, found) == meta["head"]:
                    applied += [(partition, offset, found[offset]) for offset in sorted(found)]
                    break
            else:
                raise Wrong(f"the state of partition {partition} is not of the log")
        return applied

    def _head(self, partition: int, records: Mapping[int, bytes | None]) -> str:
        """Of the chain over these records."""
        link = first_link(self.topic, partition, self.partitions)
        for offset in sorted(records):
            link = next_link(link[0], offset, records[offset])
        return link[0].hex()

    def _compare_members(self, address: tuple[str, str, int], heard: Heard) -> None:
        """What was told of the members of a roster is what comes of the log."""
        granted = {
            user: level
            for partition in range(self.partitions)
            for user, level in self.auditor.members[*address, partition].items()
        }
        for user, is_in, norm in zip(
            heard.content.users, heard.admitted, heard.granted, strict=True
        ):
            level = granted.pop(user)
            if is_in is (level is None) or norm != (level or 0) / LEVELS:
                raise Wrong(f"{user!r} of {address} was told {is_in}, {norm}, and not {level}")
        if granted:
            raise Wrong(f"{address} says nothing of {granted}")

    def _compare_told(self, steps: dict[tuple[str, str, int], Heard]) -> None:
        """Every decision that a client was told is one that comes of the log."""
        decided = {
            (d["dataset"], d["run"], d["step"], d["partition"]): d
            for d in self.auditor.charged.values()
        }
        for (dataset, run, step), heard in steps.items():
            if (dataset, run, step, 0) in self.auditor.members:
                self._compare_members((dataset, run, step), heard)
                continue
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

        It keeps none of those whose transactions were aborted.
        """
        kept: dict[tuple[Any, ...], int] = {}
        for partition, place, value in self.world.log.records["odometer"]:
            if place in self.world.broker.outputs(Channel.ODOMETER, partition).aborted:
                continue
            checkpoint = msgspec.msgpack.decode(value or b"")
            kept[checkpoint["dataset"], checkpoint["user"], partition] = checkpoint["offset"]
        newest: dict[tuple[Any, ...], int] = {}
        for dataset, user, partition, offset, _ in self.auditor.checkpoints:
            key = dataset, user, partition
            newest[key] = max(offset, newest.get(key, -1))
        for key, offset in newest.items():
            if kept.get(key) != offset:
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


def _spliced(
    old: Mapping[int, bytes | None], new: Mapping[int, bytes | None], cut: int
) -> dict[int, bytes | None]:
    """What somebody has applied who read one log up to a place, and another one from there on."""
    return {
        **{offset: value for offset, value in old.items() if offset < cut},
        **{offset: value for offset, value in new.items() if offset >= cut},
    }


def forget() -> None:
    """Drop what the auditor keeps between seeds."""
    published_answer.cache_clear()
