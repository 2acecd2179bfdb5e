"""The guarantees of the service, each taken out of the real code, to see that the simulation
misses it.

``make simulate MUTATIONS=all`` says for each which seed found it, and after how many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from streams.ledger import (
    accounts,
    apart,
    budgets,
    forgotten,
    ledger,
    moving,
    principals,
    runs,
    state,
    tracked,
)
from streams.offline import mover
from streams.schemas import RunOpened
from streams.sdk import datasets, opening, rosters, run
from streams.store import holding, image, memory_store, snapshot
from streams.store.port import Guard, Verdict
from streams.wire.chain import Chain
from streams.worker import (
    checkpoints,
    compaction,
    continuity,
    gaps,
    images,
    intake,
    memory_broker,
    outbox,
    partitions,
    processor,
)
from streams.worker.ports import Missing

Patches = Iterator[AbstractContextManager[Any]]

MUTATIONS: dict[str, Callable[[], Patches]] = {}


def mutation(work: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTATIONS[work.__name__.replace("_", "-")] = work
    return work


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code without one of its guarantees."""
    with ExitStack() as stack:
        for change in MUTATIONS[name]():
            stack.enter_context(change)
        yield


_set = patch.object


async def _yes() -> bool:
    return True


# --- the store: what guards a write, and what proves that a state is whole ----------------------


def _guarded_less(change: Callable[[Any, Guard], Guard]) -> AbstractContextManager[Any]:
    real = memory_store._refusal
    return _set(memory_store, "_refusal", lambda kept, guard: real(kept, change(kept, guard)))


def _with_version_of(kept: Any, guard: Guard) -> Guard:
    return replace(guard, version=int(kept.meta.get("version", guard.version)))


def _with_owner_of(kept: Any, guard: Guard) -> Guard:
    return replace(guard, owner=kept.meta.get("owner", guard.owner))


@mutation
def version_not_compared() -> Patches:
    """Redis that went back is written to, if owner and next offset are the same."""
    yield _guarded_less(_with_version_of)


@mutation
def owner_not_compared() -> Patches:
    """Whoever has the right version writes."""
    yield _guarded_less(_with_owner_of)


@mutation
def neither_owner_nor_version_compared() -> Patches:
    """Whoever owned a partition goes on writing."""
    yield _guarded_less(lambda kept, guard: _with_owner_of(kept, _with_version_of(kept, guard)))


@mutation
def beats_not_guarded() -> Patches:
    """Whoever shows that a partition is decided is not told that Redis is not what it was."""
    real = holding.Holding.beat

    async def beat(self: Any, pulse: bytes, summary: bytes) -> Verdict:
        await real(self, pulse, summary)
        return Verdict.OK

    yield _set(holding.Holding, "beat", beat)


@mutation
def counts_not_compared() -> Patches:
    """State of which a key is gone is taken for whole."""
    yield _set(memory_store.Contents, "is_counted", lambda _: True)
    real = snapshot.verified

    def verified(fields: Mapping[str, str], pages: Any, changes: Any, kept: Any) -> Any:
        counted = {"pages": len(pages), "changes": len(changes), "outbox": len(kept)}
        return real({**fields, **{k: str(v) for k, v in counted.items()}}, pages, changes, kept)

    yield _set(memory_store, "verified", verified)


@mutation
def digest_not_compared() -> Patches:
    """Pages that are not those that were written last are loaded."""

    class Whatever(int):
        def __eq__(self, _: object) -> bool:
            return True

        def __ne__(self, _: object) -> bool:
            return False

        __hash__ = int.__hash__

    yield _set(snapshot, "digest_of", lambda hashes: Whatever(0))


@mutation
def offset_not_compared() -> Patches:
    """A batch is written wherever the store is: neither DUPLICATE nor GAP."""
    real = memory_store.MemoryStore.commit

    async def commit(self: Any, guard: Any, batch: Any) -> Verdict:
        kept = self.contents(guard.partition)
        if memory_store._refusal(kept, guard) is None:
            kept.meta["next"] = str(batch.first)
        return await real(self, guard, batch)

    yield _guarded_less(lambda kept, guard: _with_owner_of(kept, _with_version_of(kept, guard)))
    yield _set(memory_store.MemoryStore, "commit", commit)


# --- the claim: whose log this is ---------------------------------------------------------------


def _identity_without(field: str) -> AbstractContextManager[Any]:
    rest = {name: verdict for name, verdict in memory_store._IDENTITY.items() if name != field}
    return _set(memory_store, "_IDENTITY", rest)


@mutation
def log_not_compared() -> Patches:
    """Neither the id of the topic nor the chain says that it is another log."""
    real = partitions._trouble
    yield _identity_without("topic")
    yield _set(partitions, "_trouble", lambda o, seen: real(o, replace(seen, topic=o.topic)))
    yield from last_record_not_compared()


@mutation
def topic_not_compared() -> Patches:
    """The id of the topic does not say that it is another log; the chain still does."""
    real = partitions._trouble
    yield _identity_without("topic")
    yield _set(partitions, "_trouble", lambda o, seen: real(o, replace(seen, topic=o.topic)))


@mutation
def last_record_not_compared() -> Patches:
    """The last record that was applied need not be the one in the log."""

    async def rewritten(*_: Any) -> None:
        return None

    for module in (partitions, processor):
        yield _set(module, "rewritten", rewritten)


@mutation
def leader_epochs_not_compared() -> Patches:
    """The same bytes at the offset that was applied last are taken for the same record."""
    real = continuity.rewritten

    async def rewritten(chain: Chain, leader_epoch: int, log: Any, stops: Any) -> Any:
        async def record(partition: int, offset: int) -> Any:
            found = await log.record(partition, offset)
            return found._replace(leader_epoch=leader_epoch)

        lenient = SimpleNamespace(record=record, extent=log.extent)
        return await real(chain, leader_epoch, lenient, stops)

    for module in (partitions, processor):
        yield _set(module, "rewritten", rewritten)


@mutation
def elections_not_noticed() -> Patches:
    """An owner goes on with records of another leader epoch, whatever became of those before."""

    async def rewritten(*_: Any) -> None:
        return None

    yield _set(processor, "rewritten", rewritten)


@mutation
def topics_not_watched() -> Patches:
    """What is found at the claim is not looked for again."""
    yield _set(partitions, "_trouble", lambda *_: None)


@mutation
def partitions_not_compared() -> Patches:
    """A worker goes on when the topic has more partitions than its state is of."""
    real = partitions._trouble

    async def bound(_: Any, seen: Any) -> int:
        return int(seen.partitions)

    yield _identity_without("partitions")
    yield _set(partitions.Partitions, "_bound_partitions", bound)
    yield _set(state.Layout, "_moves", lambda *_: None)
    yield _set(
        partitions, "_trouble", lambda o, seen: real(o, replace(seen, partitions=o.partitions))
    )


@mutation
def ends_of_the_log_not_compared() -> Patches:
    """A state beyond the end of the log, or before its beginning, is gone on from."""
    real = partitions._compare

    async def compare(meta: Any, extent: Any, log: Any, stops: Any) -> None:
        next_offset = meta.next if meta else 0
        extent = type(extent)(min(extent.start, next_offset), max(extent.end, next_offset))
        await real(meta, extent, log, stops)

    yield _set(partitions, "_compare", compare)


@mutation
def trims_taken_for_another_log() -> Patches:
    """A claim does not look again where the log begins when its last record is gone."""
    real = partitions._compare

    async def compare(meta: Any, extent: Any, log: Any, stops: Any) -> None:
        async def before(_: int) -> Any:
            return extent

        await real(meta, extent, SimpleNamespace(record=log.record, extent=before), stops)

    yield _set(partitions, "_compare", compare)


@mutation
def resumed_unseen() -> Patches:
    """After a rebalance the memory is kept, whoever has owned the partition meanwhile."""
    yield _set(partitions, "_is_unchanged", lambda held, _: held.can_resume)


# --- the worker: from the log to Redis to answers -----------------------------------------------


@mutation
def lock_not_held() -> Patches:
    """Pages are written while memory is ahead of Redis."""

    @asynccontextmanager
    async def quiet(self: Any) -> AsyncIterator[bool]:
        yield self.state is processor.State.RUNNING

    yield _set(processor.Processor, "quiet", quiet)


@mutation
def changes_dropped_first() -> Patches:
    """Compaction drops changes before the pages that cover them are written."""

    async def run(self: Any, position: Callable[[], int]) -> None:
        async with self._quiet() as may_write:
            if not may_write:
                return
            covered, reached = self._holding.backlog, position()
            names = self._ledger.uncompacted()
            self._expect_ok(await self._holding.drop(covered, reached), "trim")
        for name in names:
            async with self._quiet() as may_write:
                if not may_write:
                    return
                page = {name: self._ledger.take_page(name)}
                self._expect_ok(await self._holding.compact(position(), page), "compaction")

    yield _set(compaction.Compaction, "run", run)


@mutation
def loaded_changes_not_compacted() -> Patches:
    """What a new owner has loaded as changes is dropped without being written as pages."""
    real = partitions.ledger_of

    def ledger_of(*arguments: Any) -> Any:
        made = real(*arguments)
        for each in made.datasets.values():
            each._rows._changed_pages[:] = False
        return made

    yield _set(partitions, "ledger_of", ledger_of)


@mutation
def outbox_not_republished() -> Patches:
    """What the owner before may not have published is taken for published."""

    async def republish(self: Any) -> None:
        kept, self._kept = self._kept, []
        self._published += [name for name, _ in kept]

    yield _set(outbox.Outbox, "republish", republish)


@mutation
def forgotten_before_sent() -> Patches:
    """A parcel is dropped from Redis before the broker has it."""
    real = outbox.Outbox._confirmed

    async def confirmed(self: Any, name: str, sent: Sequence[Any]) -> None:
        self._published.append(name)
        await real(self, name, sent)
        self._published = [other for other in self._published if other != name]

    yield _set(outbox.Outbox, "_confirmed", confirmed)


@mutation
def epochs_not_compared() -> Patches:
    """Checkpoints go out through a producer that nobody fences, whoever owns the partition."""

    async def begin(self: Any) -> None:
        self._begun = True
        await self._producer.start()

    yield _set(checkpoints.Checkpoints, "_begin", begin)
    yield _set(memory_broker.MemoryFencedProducer, "_check_epoch", lambda _: None)


@mutation
def ownership_not_asked() -> Patches:
    """A producer that begins late shuts out the one of the next owner, and sends."""

    async def begin(self: Any) -> None:
        self._begun = True
        await self._producer.start()

    yield _set(checkpoints.Checkpoints, "_begin", begin)


@mutation
def checkpoints_sent_again() -> Patches:
    """What the topic has by now is sent again when records are applied again."""
    yield _set(checkpoints.Waiting, "since", lambda self, _: self.outputs)


@mutation
def aborted_checkpoints_count() -> Patches:
    """What compaction takes away, as its transaction was aborted, is taken for sent."""
    real = memory_broker.MemoryFencedProducer.last

    async def last(self: Any) -> Any:
        with _set(self._topic, "aborted", set()):
            return await real(self)

    yield _set(memory_broker.MemoryFencedProducer, "last", last)


@mutation
def manifest_sent_before_its_parts() -> Patches:
    """The manifest of an image goes out while parts of it are still to be sent."""

    async def finish(self: Any, draft: Any, moment: Any, sending: Any) -> None:
        records, manifest = draft.finish(moment, self._holding.partition)
        await self._topic.send([manifest])
        await self._send(sending + records, 0)
        await self._send(draft.emptied(), 0)
        self._last, self.reached = draft.image, moment.meta.next

    yield _set(images.Imaging, "_finish", finish)


@mutation
def parts_written_over_those_of_the_last_image() -> Patches:
    """An image that is being written takes the places of the one before it."""
    yield _set(images, "Draft", lambda last: image.Draft(None))


@mutation
def images_not_fenced() -> Patches:
    """Whoever was the owner writes an image, whatever the topic has by now."""
    real = images.Imaging._begin

    async def begin(self: Any) -> None:
        with _set(self._holding, "is_held", _yes):
            await real(self)

    yield _set(images.Imaging, "_begin", begin)
    yield _set(memory_broker.MemoryImageTopic, "_check_epoch", lambda _: None)
    yield _set(images, "changed_since", lambda _, next_offset, *log: next_offset > 0)


@mutation
def holes_passed_over() -> Patches:
    """Records that the log has lost are taken for control records."""
    real = gaps.Gaps.__init__

    def init(self: Any, taken: Any, proof: Any, stops: Any, end: Any) -> None:
        async def lenient(first: int, last: int) -> Missing:
            found = await proof(first, last)
            return Missing.NOTHING_TO_APPLY if found is Missing.HOLE else found

        real(self, taken, lenient, stops, end)

    yield _set(gaps.Gaps, "__init__", init)


@mutation
def overdue_records_awaited() -> Patches:
    """The last records of the log may be on their way for ever."""
    yield _set(gaps, "OVERDUE_AFTER", float("inf"))


@mutation
def gaps_not_seen() -> Patches:
    """A record is applied although those before it have not arrived."""

    def take(self: Any, leader_epoch: int) -> Any:
        if self.first is None or self.first.leader_epoch != leader_epoch:
            return None
        record = self._pop()
        self.position = record.offset + 1
        return record

    yield _set(intake.Intake, "gap", None)
    yield _set(intake.Intake, "take", take)


@mutation
def published_late() -> Patches:
    """A process that was paused between commit and publishing publishes all the same."""
    yield _set(processor, "PUBLISH_WITHIN", float("inf"))


# --- the ledger and the SDK ---------------------------------------------------------------------


@mutation
def repeated_step_charged_again() -> Patches:
    """A step that comes again is decided anew."""
    real = ledger.Ledger._charge

    def charge(self: Any, offset: int, request: Any) -> Any:
        key = request.dataset, request.run
        known = self.runs.get(key)
        if known is not None and known.step == request.step and not known.closed:
            self.runs[key] = msgspec.structs.replace(known, step=known.step - 1)
        return real(self, offset, request)

    yield _set(ledger.Ledger, "_charge", charge)


@mutation
def outer_budgets_not_asked() -> Patches:
    """A charge by norms is admitted where the budget of its own dataset is large enough."""

    def allowed(self: Any, plans: Any) -> Any:
        admits = self.own.admits(plans[0])
        return admits, np.zeros(len(admits), dtype=np.uint8)

    yield _set(budgets.Budgets, "_allowed", allowed)


@mutation
def forgotten_users_begin_anew() -> Patches:
    """Nobody asks whether an id that is new is that of somebody who was forgotten."""
    yield _set(forgotten.Forgotten, "known_as", lambda self, users, outermost: users)


@mutation
def names_not_put_back() -> Patches:
    """Who loads a state has the ids of its pages, whoever was forgotten since."""
    yield _set(forgotten.Forgotten, "_moves", lambda self, address, before, after: None)


@mutation
def closed_datasets_charged() -> Patches:
    """What is charged to a dataset does not depend on whether it was closed."""
    yield _set(ledger.Ledger, "_check_open", lambda self, dataset: None)


@mutation
def signatures_not_verified() -> Patches:
    """Who is said to have signed has signed."""
    yield _set(principals, "is_signed_by", lambda *_: True)


@mutation
def signatures_of_other_partitions_count() -> Patches:
    """What was signed for one partition can be asked of another."""
    real = principals.is_signed_by

    def is_signed_by(key: bytes, log: bytes, _: int, sender: Any) -> bool:
        return any(real(key, log, partition, sender) for partition in range(4))

    yield _set(principals, "is_signed_by", is_signed_by)


@mutation
def whoever_is_registered_may() -> Patches:
    """Nobody asks which principals a dataset names."""

    def check_right(self: Any, policies: Any, _: str, sender: Any) -> None:
        if principals.allowing(policies) is not None:
            self._known(sender, "it is charged")

    yield _set(principals.Gate, "_check_right", check_right)


@mutation
def unsigned_requests_count() -> Patches:
    """A dataset takes what nobody has signed."""
    real = principals.Gate.check

    def check(self: Any, request: Any, sender: Any) -> None:
        if sender is not None:
            real(self, request, sender)

    yield _set(principals.Gate, "check", check)


@mutation
def everybody_creates() -> Patches:
    """Whoever signs, or does not, creates datasets."""
    yield _set(principals.Gate, "check_creation", lambda *_: None)


@mutation
def keys_stay_when_they_are_taken_away() -> Patches:
    """A principal that was known goes on being known by the key that it had."""
    real = principals.Gate.register

    def register(self: Any, request: Any, sender: Any) -> None:
        before = dict(self._principals)
        real(self, request, sender)
        self._principals.update(before)

    yield _set(principals.Gate, "register", register)


@mutation
def older_words_of_the_operator_count() -> Patches:
    """What an operator has said before, and others repeat, holds again."""
    real = principals.Gate._note

    def note(self: Any, operator: Any, before: Any) -> None:
        if before is not None:
            before = msgspec.structs.replace(before, number=-1)
        real(self, operator, before)

    yield _set(principals.Gate, "_note", note)


@mutation
def every_operator_is_followed() -> Patches:
    """Another operator is bound by its own signature, although there is one."""
    real = principals.Gate._is_by_operator

    def is_by_operator(self: Any, key: bytes, bound: Any, sender: Any) -> bool:
        if sender is not None and sender.principal is None:
            said = ledger.decode_signed(sender.request)[0]
            key = getattr(said, "operator", key)
        return real(self, key, bound, sender)

    yield _set(principals.Gate, "_is_by_operator", is_by_operator)


@mutation
def principals_not_compacted() -> Patches:
    """Of those who are known there are changes and no pages."""
    real = tracked.Tracked.take_page

    def take_page(self: Any, name: str) -> bytes | None:
        page = real(self, name)
        return None if self.kind == "principal" else page

    yield _set(tracked.Tracked, "take_page", take_page)


@mutation
def rest_not_spent() -> Patches:
    """A member of a roster goes on being admitted after it was forgotten."""
    yield _set(accounts.Accounts, "spend_the_rest", lambda self, slot: self.enrol([]))


@mutation
def separation_not_enforced() -> Patches:
    """Who took part in a step may take part in the next one."""

    def have_to_wait(self: Any, run: Any, slots: Any) -> Any:
        return np.zeros(len(slots), dtype=np.bool_)

    yield _set(apart.Participants, "have_to_wait", have_to_wait)


@mutation
def participations_forgotten_at_a_compaction() -> Patches:
    """Of those who took part there are changes and no pages."""

    def take_page(self: Any, name: str) -> None:
        tracked.Tracked.take_page(self, name)

    yield _set(apart.Participants, "take_page", take_page)


@mutation
def arrears_collected_elsewhere_not_kept() -> Patches:
    """What members of another dataset's roster owed is kept of the budgets charged now alone."""
    real = ledger.Ledger._note_taken

    def note_taken(self: Any, *arguments: Any, **options: Any) -> None:
        before = len(self._accounts)
        real(self, *arguments, **options)
        del self._accounts[before:]

    yield _set(ledger.Ledger, "_note_taken", note_taken)


@mutation
def outer_policies_not_compared() -> Patches:
    """A run is opened although partitions hold the dataset that it is within under two policies."""
    real = opening.check_agreement

    def agree(dataset: str, replies: Mapping[int, Any], count: int) -> None:
        alone = {
            partition: msgspec.structs.replace(reply, outer=msgspec.UNSET)
            if isinstance(reply, RunOpened)
            else reply
            for partition, reply in replies.items()
        }
        real(dataset, alone, count)

    yield _set(opening, "check_agreement", agree)


@mutation
def older_attempts_charge() -> Patches:
    """A trainer that was fenced goes on."""
    real = runs.under_current_attempt

    def under(known: Any, request: Any) -> Any:
        if known is not None and request.attempt < known.attempt:
            request = msgspec.structs.replace(request, attempt=known.attempt)
        return real(known, request)

    yield _set(ledger, "under_current_attempt", under)


@mutation
def creation_everywhere_at_once() -> Patches:
    """A dataset is created without a home that decides, and opened without a comparison."""

    def create(connection: Any, policy: Any, deadline: Any) -> Any:
        everywhere = range(connection.partitions)
        datasets._created(connection, policy, datasets.VERSION, everywhere, deadline)
        return policy

    def agree(dataset: str, replies: Mapping[int, Any], count: int) -> None:
        for reply in replies.values():
            if isinstance(reply, Exception):
                raise reply

    yield patch("streams.sdk.client.create", create)
    yield _set(opening, "check_agreement", agree)


@mutation
def other_content_after_a_timeout() -> Patches:
    """The SDK lets other users or norms be charged for a step that may be decided."""
    real = run.Run._decide

    def decide(self: Any, parts: Any, deadline: Any) -> Any:
        self._published = {}
        return real(self, parts, deadline)

    yield _set(run.Run, "_decide", decide)


@mutation
def handed_back_everywhere_at_once() -> Patches:
    """A step that was decided in some partitions is sent to all of them at once."""
    real = run.Run._decide

    def decide(self: Any, parts: Any, deadline: Any) -> Any:
        decided, self._decided = self._decided, set()
        try:
            return real(self, parts, deadline)
        finally:
            self._decided = self._decided or decided

    yield _set(run.Run, "_decide", decide)


@mutation
def older_step_handed_back() -> Patches:
    """Of two steps that did not go out the first is handed back."""
    real = opening._next_step

    def next_step(name: str, opened: Any, released: int | None, at_once: int) -> int:
        step = real(name, opened, released, at_once)
        return step if released is None else released + 1

    yield _set(opening, "_next_step", next_step)


@mutation
def levels_not_deferred() -> Patches:
    """Levels that are set while a step of a roster is under way go into its decision."""
    real = rosters.Roster.charge_ahead

    def charge_ahead(self: Any, **how: Any) -> Any:
        ahead = real(self, **how)
        self._later = None
        return ahead

    yield _set(rosters.Roster, "charge_ahead", charge_ahead)


@mutation
def steps_under_way_not_respected() -> Patches:
    """A run whose step is under way is used for something else."""
    real = run.Run._in_use

    def in_use(self: Any, *, to_close: bool = False, ahead: Any = None) -> Any:
        return real(self, to_close=to_close, ahead=self._ahead)

    yield _set(run.Run, "_in_use", in_use)


@mutation
def arrivals_not_awaited() -> Patches:
    """A dataset is charged in a new log before all is there of what was spent in the old one."""
    yield _set(ledger, "check_arrived", lambda *_: None)


@mutation
def balances_not_added() -> Patches:
    """Who comes from another log has spent nothing."""
    real = moving.numbers_of

    def numbers_of(*arguments: Any) -> dict[str, Any]:
        numbers = real(*arguments)
        return {name: np.full_like(values, name == "rungs") for name, values in numbers.items()}

    yield _set(moving, "numbers_of", numbers_of)


@mutation
def moved_datasets_charged() -> Patches:
    """The old log goes on with a dataset, and its runs, that a new one has taken."""
    real = ledger.Ledger._close_dataset

    def close_dataset(self: Any, place: Any, request: Any) -> Any:
        moves = request.moves_to is not msgspec.UNSET
        with _set(ledger.Ledger, "_end_run", lambda *_: None) if moves else ExitStack():
            return real(self, place, request)

    check = ledger.Ledger._check_open

    def check_open(self: Any, dataset: str) -> None:
        if (dataset,) not in self.moved:
            check(self, dataset)

    yield _set(ledger.Ledger, "_close_dataset", close_dataset)
    yield _set(ledger.Ledger, "_check_open", check_open)


@mutation
def keys_of_now_moved() -> Patches:
    """What moves is said with the erasure keys that are in use now, whoever was forgotten since."""
    real = mover.departure
    yield _set(mover, "departure", lambda *arguments: real(*arguments[:4]))


@mutation
def levels_charged_twice() -> Patches:
    """A step that is kept by its levels is charged again on a page that has it already."""
    yield _set(accounts.Accounts, "_behind", lambda *_: None)
