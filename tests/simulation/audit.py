"""The independent auditor, over all that was ever written in a simulation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import msgspec

from streams.ledger.ledger import Channel, Ledger, ledger_of
from streams.records import User, tombstone_offset
from streams.worker.outbox import Packed
from tests.audit import auditor_accounts, auditor_rosters, comparison, published
from tests.audit.auditor import Auditor
from tests.audit.auditor_requests import NOT_GIVEN
from tests.audit.auditor_state import first_link, next_link
from tests.audit.comparison import compare, compare_chain
from tests.audit.published import frozen, published_answer
from tests.audit.stored import state_of
from tests.doubles.memory_broker import last_snapshot
from tests.simulation.clients import LEVELS
from tests.simulation.told import Heard, Told
from tests.simulation.world import Records, World, Wrong

AUDITORS = (auditor_accounts, auditor_rosters, comparison, published)
"""Modules that compute some things once for each record, however often it is compared."""


class Audit:
    """Of one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions = world.broker.partitions
        self.topic = world.broker.topic
        self.auditor = Auditor(self.partitions, self.topic)
        self.told_before: set[tuple[str, str, int]] = set()  # steps of those logs
        self.before: list[Auditor] = []  # of logs from which datasets came, with the erased users

    async def when_settled(self, told: Told) -> None:
        """Compare state, answers, rejects, odometer records and hash chain with the log."""
        world = self.world
        self.auditor.apply_all(world.log)
        ledgers = {}
        for partition in range(self.partitions):
            stored = await world.store.load(partition)
            if stored is None:
                raise Wrong(f"nothing is kept of partition {partition}")
            ledgers[partition] = ledger_of(
                stored, partition, self.partitions, self.topic, stored.meta.chain
            )
            compare_chain(self.auditor, partition, stored.meta.chain)
            self._compare_snapshot(partition, ledgers[partition])
        compare(self.auditor, world.log, ledgers)
        steps = {key: each for key, each in told.steps.items() if key not in self.told_before}
        self._compare_told(steps, [self.auditor])
        self._compare_compacted()
        self._check_order()
        self._compare_policies(told)

    def _compare_snapshot(self, partition: int, ledger: Ledger) -> None:
        """The last snapshot, with what the log says from there on, is the state."""
        snapshot = last_snapshot(self.world.broker, partition)
        if snapshot is None:
            return
        made = ledger_of(
            snapshot.state(), partition, self.partitions, self.topic, snapshot.manifest.chain
        )
        for p, offset, value in self.world.log.records["norms"]:
            if p == partition and offset >= snapshot.manifest.next:
                made.apply(offset, value)
        if made.chain != ledger.chain or dict(made.state.runs) != dict(ledger.state.runs):
            raise Wrong(f"the snapshot of {partition} at {snapshot.manifest.next} leads elsewhere")
        for name in ledger.state.datasets:
            if name not in made.state.datasets or state_of(made, name) != state_of(ledger, name):
                raise Wrong(
                    f"the snapshot of {partition} at {snapshot.manifest.next} differs in {name}"
                )

    def begin_catastrophe(self) -> None:
        """Remember what the log was until now."""
        self._records = len(self.world.log.records["norms"])

    def after_catastrophe(self, told: Told) -> None:
        """What was said is what comes of the records that were applied, whatever became of them.

        Where Redis went back while one log took the place of another, both were applied.
        """
        world = self.world
        histories = [self._histories(partition) for partition in range(self.partitions)]
        answers = world.log.records["halts"] + self._kept_answers()
        auditors = []
        for number in range(max(map(len, histories))):
            log = Records()
            log.records |= world.log.records
            log.records["norms"] = [
                (partition, offset, records[offset])
                for partition, each in enumerate(histories)
                for records in [each[min(number, len(each) - 1)]]
                for offset in sorted(records)
            ]
            log.records["halts"] = answers
            auditors.append(Auditor(self.partitions, self.topic))
            auditors[-1].apply_all(log)
        for partition, offset, value in answers:
            answer = frozen(published_answer(value or b""))
            if not any(answer in auditor.answers for auditor in auditors):
                raise Wrong(f"answer {offset} of partition {partition} has no cause: {value!r}")
        self._compare_told(told.steps, auditors)

    def reached(self, partition: int) -> int:
        """How far any worker has come: what was not decided cannot be told from here."""
        copies = (copy[partition] for copy in self.world.store.history if partition in copy)
        return max((int(copy.meta.get("next", "0")) for copy in copies), default=0)

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

    def _histories(self, partition: int) -> list[dict[int, bytes | None]]:
        """What was applied: of a log that became another one, its records up to a place, as they
        were fetched before, and those of the other one from there on. Every state that was ever
        kept is of one of these.

        Of a topic that is created anew the workers hear after seconds; until then they decide what
        is written there. Of a log that lost its end they hear before the first record comes.
        """
        records = self.world.log.records["norms"]
        old, new = (
            {offset: value for p, offset, value in part if p == partition}
            for part in (records[: self._records], records[self._records :])
        )
        if partition not in self.world.lost:
            candidates = [old | new]
        elif self.world.catastrophe == "lost-tail":
            candidates = [old]
        else:
            end = max(old | new, default=0) + 1
            candidates = [_spliced(old, new, cut) for cut in range(end, -1, -1)]
        heads = [self._heads(partition, candidate) for candidate in candidates]
        furthest: dict[int, int] = {}
        for reached, head in self._kept_heads(partition):
            for number, known in enumerate(heads):
                if known[bisect_left(known, reached, key=itemgetter(0)) - 1][1] == head:
                    furthest[number] = max(reached, furthest.get(number, 0))
                    break
            else:
                raise Wrong(f"a state of partition {partition} is not of the log")
        return [
            {offset: value for offset, value in candidates[number].items() if offset < reached}
            for number, reached in furthest.items()
        ] or [{}]

    def _kept_heads(self, partition: int) -> set[tuple[int, str]]:
        """How far each state that was kept had come, and the head of its chain."""
        copies = (copy[partition] for copy in self.world.store.history if partition in copy)
        metas = (copy.meta for copy in copies)
        return {(int(meta["next"]), meta["head"]) for meta in metas if "head" in meta}

    def _heads(self, partition: int, records: Mapping[int, bytes | None]) -> list[tuple[int, str]]:
        """Of the chain over these records: before the first of them, and after each."""
        link = first_link(self.topic, partition, self.partitions)
        heads = [(-1, link[0].hex())]
        for offset in sorted(records):
            link = next_link(link[0], offset, records[offset])
            heads.append((offset, link[0].hex()))
        return heads

    def _compare_told(
        self, steps: dict[tuple[str, str, int], Heard], auditors: Sequence[Auditor]
    ) -> None:
        """Every decision that a client was told is one that comes of the log, in each partition of
        one of the histories.
        """
        decided = [
            {
                (d["dataset"], d["run"], d["step"], d["partition"]): d
                for d in auditor.charged.values()
                if "run" in d  # else it is what a dataset has brought from another log
            }
            for auditor in auditors
        ]
        known = [*self.before, *auditors]
        ids = {k: v for each in known for names in each.names for k, v in names.ids.items()}
        for address, heard in steps.items():
            wrong = []
            for choice in product(range(len(auditors)), repeat=self.partitions):
                places = [(number, (*address, p)) for p, number in enumerate(choice)]
                if all(place in auditors[number].members for number, place in places):
                    granted = [
                        {ids.get(u, u): level for u, level in each.items()}
                        for number, place in places
                        for each in [auditors[number].members[place]]
                    ]
                    wrong.append(_wrong_members(heard, granted))
                elif all(place in decided[number] for number, place in places):
                    wrong.append(
                        _wrong_users(heard, [decided[n][place] for n, place in places], ids)
                    )
            if None not in wrong:
                raise Wrong(f"{address} was told {heard}: {wrong}")

    def _compare_compacted(self) -> None:
        """The odometer record that compaction keeps of a user is the newest one.

        It keeps none of those whose transactions were aborted.
        """
        kept: dict[tuple[Any, ...], int] = {}
        for partition, place, value in self.world.log.records["odometer"]:
            topic = self.world.broker.outputs(Channel.ODOMETER, partition)
            if place in topic.aborted:
                continue
            if tombstone_offset(value or b"") is not None:
                dataset, user = msgspec.json.decode(topic.records[place][0] or b"")
                kept[dataset, user, partition] = -1
                continue
            odometer = msgspec.msgpack.decode(value or b"")
            kept[odometer["dataset"], odometer["user"], partition] = odometer["offset"]
        newest: dict[tuple[Any, ...], int] = {}
        for dataset, user, partition, offset, _ in self.auditor.odometers:
            key = dataset, user, partition
            newest[key] = max(offset, newest.get(key, -1))
        for (dataset, user), (partition, _) in self.auditor.tombstones.items():
            newest[dataset, user, partition] = -1
        for key, offset in newest.items():
            if kept.get(key) != offset:
                raise Wrong(
                    f"compaction keeps the record at {kept.get(key)} of {key}, not {offset}"
                )

    def _check_order(self) -> None:
        """Check that no odometer record counts that was written after a newer one.

        So it is at any time, and a reader may stop anywhere.
        """
        due: dict[int, list[tuple[int, str, Any]]] = {p: [] for p in range(self.partitions)}
        for dataset, user, partition, offset, _ in self.auditor.odometers:
            due[partition].append((offset, dataset, user))
        for left in due.values():
            left.sort(key=itemgetter(0), reverse=True)
        there = set()
        for partition, place, value in self.world.log.records["odometer"]:
            if place in self.world.broker.outputs(Channel.ODOMETER, partition).aborted:
                continue
            left, offset = due[partition], tombstone_offset(value or b"")
            found = {} if offset is not None else msgspec.msgpack.decode(value or b"")
            offset = found.get("offset", offset)
            while left and left[-1][0] < offset:
                if (partition, *left[-1]) not in there:
                    raise Wrong(f"{offset} is on the odometer of {partition} before {left[-1]}")
                left.pop()
            if found:
                there.add((partition, offset, found["dataset"], found["user"]))

    def _compare_policies(self, told: Told) -> None:
        """A dataset that was charged has one policy everywhere, and so have its ancestors."""
        names = dict.fromkeys(key[0] for key in told.steps)
        while names:
            dataset, _ = names.popitem()
            policies = [
                datasets[dataset].policy if dataset in datasets else None
                for datasets in self.auditor.datasets
            ]
            if any(policy != policies[0] for policy in policies):
                raise Wrong(f"dataset {dataset} is charged under {policies}")
            if policies[0] is not None and (outer := policies[0]["parent"]) is not NOT_GIVEN:
                names[outer] = None


def _wrong_members(heard: Heard, granted: Iterable[Mapping[User, int | None]]) -> str | None:
    """What was told of the members of a roster that was not decided, if anything."""
    levels = {user: level for each in granted for user, level in each.items()}
    for user, is_in, norm in zip(heard.content.users, heard.admitted, heard.granted, strict=True):
        level = levels.pop(user)
        if is_in is (level is None) or norm != (level or 0) / LEVELS:
            return f"{user!r} was told {is_in}, {norm}, and not {level}"
    return f"nothing is said of {levels}" if levels else None


def _wrong_users(
    heard: Heard, decisions: Sequence[Mapping[str, Any]], ids: Mapping[User, User]
) -> str | None:
    """What was told of users that was not decided, if anything; ids are those of erased users."""
    halted = {ids.get(user, user) for decision in decisions for user in decision["halted"]}
    for user, is_in in zip(heard.content.users, heard.admitted, strict=True):
        if is_in is (user in halted):
            return f"{user!r} was told {is_in}"
    admitted = sum(sum(decision["admitted"]) for decision in decisions)
    return f"{admitted} are admitted" if admitted != sum(heard.admitted) else None


def _spliced(
    old: Mapping[int, bytes | None], new: Mapping[int, bytes | None], cut: int
) -> dict[int, bytes | None]:
    """What somebody has applied who read one log up to a place, and another one from there on."""
    return {
        **{offset: value for offset, value in old.items() if offset < cut},
        **{offset: value for offset, value in new.items() if offset >= cut},
    }


def forget() -> None:
    """Drop what the auditor keeps between seeds: each has other records, and asks for no older."""
    for module in AUDITORS:
        for found in vars(module).values():
            if hasattr(found, "cache_clear"):
                found.cache_clear()
