"""Any sequence of verbs and accidents: Redis and plain data give the same verdicts and contents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streams.records.digests import HashChain
from streams.store.layout import Damaged, fields_of_nothing
from streams.store.redis_store import RedisStore
from streams.store.store_port import Glance, Verdict
from streams.store.stored_state import StoredState
from streams.store.writer import Backlog, PartitionWriter
from tests.conformance.store.bench import Bench, MemoryHand, RedisHand
from tests.doubles.memory_store import Contents, MemoryStore

P = 1
OWNERS = st.sampled_from(["a", "b"])
LOGS = st.sampled_from([(b"topic of 16 byte", 4)] * 8 + [(b"another 16 bytes", 4), (bytes(16), 5)])
NAMES = st.sampled_from(["partitions", "policy:d", "run:d/r", "page:d/0", "page:d/1"])
PAGES = st.dictionaries(NAMES, st.none() | st.binary(max_size=3), max_size=3)
PUBLISHED = st.lists(st.sampled_from(["0/0", "0/1", "1/0", "2/0", "3/0", "3/1"]), max_size=3)
SKEWS = st.sampled_from([0] * 6 + [-1, 1])
KEYS = st.sampled_from(["meta", "changes", "pages", "outbox", "alive", "suspended"])
FIELDS = st.sampled_from(sorted(fields_of_nothing(b"", 0, 0)))


@dataclass
class Pair:
    """Redis and memory, which hold the same."""

    benches: tuple[Bench, Bench]
    loop: asyncio.Runner

    def both(self, act):
        """What both say to the same call; it has to be the same."""
        redis_says, memory_says = (self.loop.run(answered(act(bench))) for bench in self.benches)
        assert memory_says == redis_says
        return redis_says

    def read(self) -> Contents:
        redis_has, memory_has = (timeless(bench.hand.read(P)) for bench in self.benches)
        assert memory_has == redis_has
        return redis_has

    def write(self, contents: Contents) -> None:
        for bench in self.benches:
            bench.hand.write(P, contents.copy())


async def answered(asked):
    """An answer without what differs from clock to clock."""
    try:
        answer = await asked
    except Damaged as damaged:
        return str(damaged)
    if isinstance(answer, Glance):
        suspended = {name: value for name, value in answer.suspended.items() if name != "time"}
        return answer.meta, answer.seen is None, answer.pulse, answer.summary, suspended
    return answer


def timeless(contents: Contents) -> Contents:
    if "time" in contents.alive:
        contents.alive["time"] = b"0"
    if "time" in contents.suspended:
        contents.suspended["time"] = "0"
    return contents


class SameVerdicts(RuleBasedStateMachine):
    """Owners that come and go, write in and out of turn, and a store to which things happen."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.held: dict[str, tuple[PartitionWriter, PartitionWriter]] = {}
        self.next: dict[str, int] = {}
        self.earlier: list[Contents] = []  # after writes that took place
        self.is_mended_by_a_copy(1)

    def write(self, data, act):
        """The same write of both writers of an owner, who mostly ends when it is refused."""
        owner = data.draw(st.sampled_from(sorted(self.held)))
        redis_writer, memory_writer = self.held[owner]
        found = [
            self.pair.loop.run(act(redis_writer, self.next[owner])),
            self.pair.loop.run(act(memory_writer, self.next[owner])),
        ]
        assert found[0] == found[1]
        assert redis_writer.version == memory_writer.version
        assert redis_writer.backlog == memory_writer.backlog
        if found[0] is Verdict.OK:
            self.earlier.append(self.pair.read())
        elif data.draw(st.integers(0, 3)):
            del self.held[owner]
        return found[0], owner

    @rule(owner=OWNERS, log=LOGS)
    def acquires(self, owner, log):
        acquired = self.pair.both(lambda bench: bench.store.acquire(P, owner, *log))
        if acquired.verdict is not Verdict.OK:
            return
        found = self.pair.both(lambda bench: bench.store.load(P))
        if isinstance(found, StoredState):
            # A state of its own for each: a writer keeps the hashes of its pages up to date.
            self.held[owner] = tuple(
                PartitionWriter(bench.store, P, owner, self.pair.loop.run(bench.store.load(P)))
                for bench in self.pair.benches
            )
            self.next[owner] = found.next

    @precondition(lambda self: self.held)
    @rule(data=st.data(), skew=SKEWS, changes=st.binary(max_size=4), outputs=st.integers(0, 2))
    def commits(self, data, skew, changes, outputs):
        records, published = data.draw(st.integers(1, 2)), data.draw(PUBLISHED)

        def act(writer, next_offset):
            first = max(0, next_offset + skew)
            chain = HashChain(bytes([first % 256]) * 32, b"before", first)
            outbox_entries = {f"{first}/{number}": b"o" for number in range(outputs)}
            return writer.commit(
                first, first + records, chain, records, changes, outbox_entries, published
            )

        verdict, owner = self.write(data, act)
        if verdict is Verdict.OK:
            self.next[owner] += records

    @precondition(lambda self: self.held)
    @rule(data=st.data(), pages=PAGES)
    def merges(self, data, pages):
        self.write(data, lambda writer, next_offset: writer.merge(next_offset, pages))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drops_all(self, data):
        self.write(data, lambda writer, next_offset: writer.drop(writer.backlog, next_offset))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), entries=st.integers(0, 3))
    def drops_some(self, data, entries):
        self.write(data, lambda writer, _: writer.drop(Backlog(entries, entries), entries))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), published=PUBLISHED)
    def forgets(self, data, published):
        self.write(data, lambda writer, _: writer.forget(published))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), by=st.sampled_from([-1, 1]))
    def remembers_another_version(self, data, by):
        for writer in self.held[data.draw(st.sampled_from(sorted(self.held)))]:
            writer.version += by

    @precondition(lambda self: self.held)
    @rule(data=st.data(), pulse=st.binary(max_size=2), summary=st.binary(max_size=2))
    def shows_life(self, data, pulse, summary):
        self.write(data, lambda writer, _: writer.beat(pulse, summary))

    @rule(data=st.data())
    def discards(self, data):
        heads = [copy.meta for copy in (self.pair.read(), *self.earlier[-3:])]
        meta = data.draw(st.sampled_from(heads))
        log = b"topic of 16 byte", 4
        self.pair.both(lambda bench: bench.store.acquire(P, "c", *log, meta))

    @rule(reason=st.sampled_from(["hole", "damaged"]))
    def stops(self, reason):
        self.pair.both(lambda bench: bench.store.keep_suspension(P, reason, "problem", "remedy"))

    @precondition(lambda self: self.held and self.earlier)
    @rule(data=st.data())
    def goes_back(self, data):
        self.pair.write(data.draw(st.sampled_from(self.earlier[-6:])))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from(["loses a key", "brings one back", "spoils"]))
    def meets_an_accident(self, data, kind):
        contents = self.pair.read()
        match kind:
            case "loses a key":
                getattr(contents, data.draw(KEYS)).clear()
            case "brings one back" if self.earlier:
                key = data.draw(KEYS)
                earlier = data.draw(st.sampled_from(self.earlier[-6:]))
                setattr(contents, key, getattr(earlier, key))
            case "spoils" if contents.meta:
                contents.meta[data.draw(FIELDS)] = data.draw(st.sampled_from(["", "zz", "3"]))
        self.pair.write(contents)

    @precondition(lambda self: not self.held)
    @rule(back=st.integers(1, 3))
    def is_mended_by_a_copy(self, back):
        self.pair.write(self.earlier[-back] if len(self.earlier) >= back else Contents())
        self.acquires("a", (b"topic of 16 byte", 4))

    @invariant()
    def both_hold_and_say_the_same(self):
        self.pair.read()
        self.pair.both(lambda bench: bench.store.load(P))
        self.pair.both(lambda bench: bench.store.unpaged(P))
        self.pair.both(lambda bench: bench.store.glance(P))


@contextmanager
def connected(url: str) -> Iterator[Pair]:
    prefix = f"t{uuid4().hex}."
    memory = MemoryStore(clock=lambda: 0.0)
    with asyncio.Runner() as loop, redis.Redis.from_url(url) as client:
        store = RedisStore(url, prefix)
        try:
            loop.run(store.connect())
            hands = RedisHand(client, prefix), MemoryHand(memory)
            yield Pair((Bench(store, hands[0]), Bench(memory, hands[1])), loop)
        finally:
            loop.run(store.close())


@pytest.mark.process
def test_redis_and_memory_give_the_same_verdicts(redis_url):
    some = settings(max_examples=30, stateful_step_count=50, deadline=None)
    with connected(redis_url) as pair:
        run_state_machine_as_test(lambda: SameVerdicts(pair), settings=some)
