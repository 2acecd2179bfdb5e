"""Audits a simulation: the independent auditor applies everything that was ever written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import msgspec

from streams.ledger.ledger import Channel, Ledger, ledger_of
from streams.records import User, tombstone_offset
from streams.records.digests import HashChain
from streams.store.layout import with_digest
from streams.store.stored_state import StoredState
from streams.worker.outbox import Packed
from tests.audit import auditor_accounts, auditor_rosters, comparison, published
from tests.audit.auditor import Auditor
from tests.audit.auditor_erasure import keyed_hash
from tests.audit.auditor_requests import NOT_GIVEN
from tests.audit.auditor_state import first_link, next_link
from tests.audit.comparison import compare, compare_chain
from tests.audit.published import answers_of, frozen
from tests.audit.stored import collected_of, state_of
from tests.doubles.memory_broker import last_snapshot
from tests.simulation.clients import LEVELS
from tests.simulation.received import ReceivedDecisions, ReceivedStep
from tests.simulation.world import Records, World, Wrong

AUDITORS = (auditor_accounts, auditor_rosters, comparison, published)
"""Modules that cache results per record."""


class Audit:
    """The audit of one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions = world.broker.partitions
        self.topic = world.broker.topic
        self.auditor = Auditor(self.partitions, self.topic)

    async def when_settled(self, received: ReceivedDecisions) -> None:
        """Compare state, answers, rejects, odometer records and hash chain with the log."""
        world = self.world
        self.auditor.apply_all(world.log)
        ledgers = {}
        for partition in range(self.partitions):
            stored = await world.store.load(partition)
            if stored is None:
                raise Wrong(f"nothing is kept of partition {partition}")
            ledgers[partition] = self._ledger_of(partition, stored, stored.meta.chain)
            compare_chain(self.auditor, partition, stored.meta.chain)
            self._compare_snapshot(partition, ledgers[partition])
        compare(self.auditor, world.log, ledgers, self._names())
        self._compare_received(received.steps, [self.auditor])
        self._compare_compacted()
        self._check_order()
        self._compare_policies(received)

    def _compare_snapshot(self, partition: int, ledger: Ledger) -> None:
        """Check that the last snapshot and the log after it give the present state."""
        snapshot = last_snapshot(self.world.broker, partition)
        if snapshot is None:
            return
        made = self._ledger_of(partition, snapshot.state(), snapshot.manifest.meta.chain)
        reached = snapshot.manifest.meta.next
        for p, offset, value in self.world.log.records["norms"]:
            if p == partition and offset >= reached:
                made.apply(offset, value)
        if made.chain != ledger.chain or dict(made.state.runs) != dict(ledger.state.runs):
            raise Wrong(f"the snapshot of {partition} at {reached} leads elsewhere")
        if collected_of(made) != collected_of(ledger):
            raise Wrong(f"the snapshot of {partition} at {reached} has collected other norms")
        for name in ledger.state.datasets:
            known = self._names()
            if name not in made.state.datasets or (
                state_of(made, name, known) != state_of(ledger, name, known)
            ):
                raise Wrong(f"the snapshot of {partition} at {reached} differs in {name}")

    def _ledger_of(self, partition: int, stored: StoredState, chain: HashChain) -> Ledger:
        place = partition, self.partitions, self.topic
        return ledger_of(stored, *place, chain, " ".join(self.world.erasure_keys))

    def _names(self) -> dict[User, User]:
        """Return the auditor's names of erased users, by the hashes that workers may have made."""
        return {
            keyed_hash(user, True, key.encode()): name
            for names in self.auditor.names
            for name, user in names.ids.items()
            for key in self.world.erasure_keys
        }

    def begin_catastrophe(self) -> None:
        """Store the length of the log before the catastrophe."""
        self._records = len(self.world.log.records["norms"])

    def after_catastrophe(self, received: ReceivedDecisions) -> None:
        """Check that all answers follow from the records that were applied.

        If Redis returned to an older state while the log was replaced, both logs were applied.
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
        for partition, answer in answers_of(answers):
            if not any(frozen(answer) in auditor.answers for auditor in auditors):
                raise Wrong(f"an answer of partition {partition} has no cause: {answer!r}")
        self._compare_received(received.steps, auditors)

    def reached(self, partition: int) -> int:
        """Return the highest offset that any worker has reached."""
        copies = (copy[partition] for copy in self.world.store.history if partition in copy)
        return max((int(copy.meta.get("next", "0")) for copy in copies), default=0)

    def _kept_answers(self) -> list[tuple[int, int, bytes | None]]:
        """Return the answers that Redis has ever held; some of them may be unpublished."""
        kept = {
            (partition, name): packed
            for copy in self.world.store.history
            for partition, contents in copy.items()
            for name, packed in contents.outbox.items()
            if packed == with_digest(packed[16:], name)  # no bit of it was flipped
        }
        return [
            (partition, -1, output.value)
            for (partition, _), packed in kept.items()
            for output in msgspec.msgpack.decode(packed[16:], type=Packed).outputs
            if output.channel is Channel.HALTS
        ]

    def _histories(self, partition: int) -> list[dict[int, bytes | None]]:
        """Return the records that were applied, one history per possible splice.

        If the log was replaced, the history has the old log's records up to an offset, as they were
        fetched before, and the new log's records after it. Every stored state must belong to one of
        the histories.

        Workers learn of a recreated topic only after seconds, and decide its records until then.
        They learn of a lost tail before the first new record arrives.
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
        """Return the offset and the chain head of each state that was stored."""
        copies = (copy[partition] for copy in self.world.store.history if partition in copy)
        metas = (copy.meta for copy in copies)
        return {(int(meta["next"]), meta["head"]) for meta in metas if "head" in meta}

    def _heads(self, partition: int, records: Mapping[int, bytes | None]) -> list[tuple[int, str]]:
        """Return the heads of the chain over these records: before the first, and after each."""
        link = first_link(self.topic, partition, self.partitions)
        heads = [(-1, link[0].hex())]
        for offset in sorted(records):
            link = next_link(link[0], offset, records[offset])
            heads.append((offset, link[0].hex()))
        return heads

    def _compare_received(
        self, steps: dict[tuple[str, str, int], ReceivedStep], auditors: Sequence[Auditor]
    ) -> None:
        """Check that every decision that a client received follows from the log, in each
        partition for one of the histories.
        """
        decided = [
            {
                (d["dataset"], d["run"], d["step"], d["partition"]): d
                for d in auditor.charged.values()
            }
            for auditor in auditors
        ]
        ids = {k: v for each in auditors for names in each.names for k, v in names.ids.items()}
        for address, received in steps.items():
            wrong = []
            for choice in product(range(len(auditors)), repeat=self.partitions):
                places = [(number, (*address, p)) for p, number in enumerate(choice)]
                if all(place in auditors[number].members for number, place in places):
                    granted = [
                        {ids.get(u, u): level for u, level in each.items()}
                        for number, place in places
                        for each in [auditors[number].members[place]]
                    ]
                    wrong.append(_wrong_members(received, granted))
                elif all(place in decided[number] for number, place in places):
                    wrong.append(
                        _wrong_users(received, [decided[n][place] for n, place in places], ids)
                    )
            if None not in wrong:
                raise Wrong(f"{address} received {received}: {wrong}")

    def _compare_compacted(self) -> None:
        """Check that compaction keeps the newest odometer record of each user.

        Compaction keeps no record of an aborted transaction.
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
        """Check that no committed odometer record was written after a newer one.

        This must hold at any time, because a reader may stop anywhere.
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

    def _compare_policies(self, received: ReceivedDecisions) -> None:
        """Check that a charged dataset and its ancestors have the same policy in all partitions."""
        names = dict.fromkeys(key[0] for key in received.steps)
        while names:
            dataset, _ = names.popitem()
            policies = [
                datasets[dataset].policy if dataset in datasets else None
                for datasets in self.auditor.datasets
            ]
            if any(policy != policies[0] for policy in policies):
                raise Wrong(f"dataset {dataset} is charged under {policies}")
            if policies[0] is not None and policies[0]["parents"] is not NOT_GIVEN:
                names |= dict.fromkeys(policies[0]["parents"])


def _wrong_members(
    received: ReceivedStep, granted: Iterable[Mapping[User, int | None]]
) -> str | None:
    """Return a difference between the received and the decided levels; None if there is none."""
    levels = {user: level for each in granted for user, level in each.items()}
    for user, is_in, norm in zip(
        received.content.users, received.admitted, received.granted, strict=True
    ):
        level = levels.pop(user)
        if is_in is (level is None) or norm != (level or 0) / LEVELS:
            return f"{user!r} received {is_in}, {norm}; decided is {level}"
    return f"no decision was received for {levels}" if levels else None


def _wrong_users(
    received: ReceivedStep, decisions: Sequence[Mapping[str, Any]], ids: Mapping[User, User]
) -> str | None:
    """Return a difference between the received and the decided halts; None if there is none."""
    halted = {ids.get(user, user) for decision in decisions for user in decision["halted"]}
    for user, is_in in zip(received.content.users, received.admitted, strict=True):
        if is_in is (user in halted):
            return f"{user!r} received {is_in}"
    if "collected" in decisions[0]:
        norms = {
            user: norm
            for decision in decisions
            for user, norm in zip(decision["collected"], decision["norms"], strict=True)
        }
        numbers = zip(received.content.users, received.admitted, received.granted, strict=True)
        if norms != {user: granted for user, is_in, granted in numbers if is_in}:
            return f"{norms} are admitted"
    admitted = sum(sum(decision["admitted"]) for decision in decisions)
    return f"{admitted} are admitted" if admitted != sum(received.admitted) else None


def _spliced(
    old: Mapping[int, bytes | None], new: Mapping[int, bytes | None], cut: int
) -> dict[int, bytes | None]:
    """Return the records of a worker that read the old log up to an offset and the new one after
    it.
    """
    return {
        **{offset: value for offset, value in old.items() if offset < cut},
        **{offset: value for offset, value in new.items() if offset >= cut},
    }


def forget() -> None:
    """Clear the auditor's caches, because each seed has other records."""
    for module in AUDITORS:
        for found in vars(module).values():
            if hasattr(found, "cache_clear"):
                found.cache_clear()
