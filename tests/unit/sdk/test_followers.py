"""HALT events of charges and of rosters, each once; a decision that contradicts another ends it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from streams.ledger.outputs import Channel
from streams.ledger.parts import part_of
from streams.records import (
    Answer,
    Decision,
    Halted,
    Reason,
    Rejected,
    RosterDecision,
    decode_answer,
    encode,
)
from streams.records.users import UserIds
from streams.sdk.client import Turnstile
from streams.sdk.decisions import REMEMBERED_STEPS, Witness
from streams.sdk.errors import ConflictingDecisions
from streams.sdk.followers import Followed, Halt, Since, distinct_halts, distinct_rejects
from tests.readme import blocks_of_a_subscriber
from tests.unit.ledger.roster_logs import LEVELS, RosterLog, begun, prices

USERS = [7, "Zoë", 9, 10]


def halting_log() -> RosterLog:
    """Charged by norms and by roster; user 9 spends all there is, and then most are halted."""
    unit = 2**44 // 32  # of the highest level
    log = begun(USERS, user_ids="mixed", budget=unit * 2 / 2**44)
    log.step(0, prices())
    log.charge(1, [9], [1.0])
    log.charge(2, [9, 10], [1.0, 9.0])
    log.step(3, positions=[1], levels=[0])
    log.step(4, positions=[0, 1], levels=[LEVELS, LEVELS])
    return log


def published(log: RosterLog) -> list[Answer]:
    outputs = [output for outputs in log.outputs for output in outputs]
    return [decode_answer(out.value) for out in outputs if out.channel is Channel.HALTS]


def followed(answers: list[Answer] | list[bytes]) -> Iterator[Followed]:
    for answer in answers:
        value = answer if isinstance(answer, bytes) else encode(answer)
        yield Followed(0, value, 0.0)


def halts_in(answers: list, dataset: str | None = None, run: str | None = None) -> list[Halt]:
    return list(distinct_halts(followed(answers), dataset, run))


def seen(halts: list[Halt]) -> list[tuple]:
    return [(halt.step, halt.user, halt.exhausted) for halt in halts]


def test_rosters_have_halt_events_as_charges_have() -> None:
    halts = halts_in(published(halting_log()))
    assert seen(halts) == [
        *((2, 9, True), (2, 10, False)),
        (3, 9, True),
        *((4, 7, True), (4, 10, True)),
    ]
    last = halts[-1]
    assert (last.dataset, last.run, last.attempt, last.partition) == ("d", "r", 1, 0)
    assert last.offset == len(halting_log().records) - 1


def test_repeated_record_is_reported_once() -> None:
    answers = published(halting_log())
    assert halts_in(answers * 2) == halts_in(answers)
    assert halts_in([answer for answer in answers for _ in range(3)]) == halts_in(answers)


def test_record_repeated_after_many_others_is_reported_once() -> None:
    first = of_kind(Decision)
    many = [replace(first, step=step, offset=first.offset + step) for step in range(3, 1300)]
    halts = halts_in([first, *many])
    assert halts_in([first, *many, first, *many[:700]]) == halts


def test_older_record_between_parts_of_a_step_hides_none_of_them() -> None:
    (*_, older, whole) = (a for a in published(halting_log()) if isinstance(a, Halted))
    assert older.offset < whole.offset
    decision = of_kind(RosterDecision)
    assert decision.offset == whole.offset
    assert seen(halts_in([decision, older, whole])) == seen(halts_in([whole]))


def test_parts_of_one_step_are_distinct() -> None:
    (*_, whole) = (answer for answer in published(halting_log()) if isinstance(answer, Halted))
    parts = [
        replace(whole, part=part, parts=2, users=[user], exhausted=b"\1", reasons=b"\0")
        for part, user in enumerate(UserIds.unpack(whole.users).tolist())
    ]
    assert seen(halts_in([parts[1], parts[0], parts[1]])) == [(4, 10, True), (4, 7, True)]


def test_parts_of_one_decision_are_distinct_and_do_not_conflict() -> None:
    whole = of_kind(Decision)
    parts = [
        replace(part_of(whole, part, part + 1), part=part, parts=whole.users)
        for part in range(whole.users)
    ]
    assert seen(halts_in([*parts, *parts])) == seen(halts_in([whole]))
    for other in (whole, replace(parts[-1], parts=UNSET, part=UNSET)):
        with pytest.raises(ConflictingDecisions):
            halts_in([*parts, other])


def of_kind(kind: type) -> Answer:
    (*_, answer) = (answer for answer in published(halting_log()) if isinstance(answer, kind))
    return answer


CONTRADICTIONS = [
    ("halted", of_kind(RosterDecision), {"halted": b"\0"}),
    ("digest", of_kind(RosterDecision), {"digest": bytes(16)}),
    ("members", of_kind(RosterDecision), {"members": 5}),
    ("users", of_kind(Halted), {"users": [7, 9]}),
    ("exhausted", of_kind(Halted), {"exhausted": b"\0"}),
    ("parts", of_kind(Halted), {"parts": 2}),
    ("admitted", of_kind(Decision), {"admitted": b"\3", "halted": [], "reasons": b""}),
]


@pytest.mark.parametrize(
    ("answer", "changes"),
    [row[1:] for row in CONTRADICTIONS],
    ids=[row[0] for row in CONTRADICTIONS],
)
def test_conflicting_records_end_the_iteration(answer, changes) -> None:
    with pytest.raises(ConflictingDecisions):
        halts_in([answer, replace(answer, **changes)])
    witness = Witness("d", "r")
    assert witness.see(answer)
    assert not witness.see(answer)
    assert not witness.see(replace(answer, attempt=9))
    witness.check()
    witness.see(replace(answer, **changes))
    with pytest.raises(ConflictingDecisions):
        witness.check()


def test_a_limited_number_of_decisions_is_remembered() -> None:
    witness, decision = Witness("d", "r"), of_kind(Decision)
    for step in range(REMEMBERED_STEPS + 1):
        witness.see(replace(decision, step=step, offset=step))
    witness.see(replace(decision, step=0, digest=bytes(16)))
    witness.check()
    witness.see(replace(decision, step=REMEMBERED_STEPS, digest=bytes(16)))
    with pytest.raises(ConflictingDecisions):
        witness.check()


def test_a_step_is_not_decided_by_norms_and_by_roster() -> None:
    by_norms, by_roster = of_kind(Decision), of_kind(RosterDecision)
    with pytest.raises(ConflictingDecisions):
        halts_in([by_norms, replace(by_roster, step=by_norms.step)])


DAMAGED = [
    (Decision, {"users": 99}),
    (Decision, {"users": -1}),
    (Decision, {"users": 2**60}),
    (Decision, {"halted": b"123"}),
    (Decision, {"reasons": b""}),
    (RosterDecision, {"halted": b""}),
    (RosterDecision, {"halted": b"\2"}),
    (RosterDecision, {"exhausted": b"\0\4\0\0\0"}),
    (RosterDecision, {"readmitted": b"\1\0\0"}),
    (RosterDecision, {"regranted": b"\1\1"}),
    (RosterDecision, {"members": -1}),
    (Halted, {"users": bytes(9)}),
    (Halted, {"exhausted": b""}),
    (Halted, {"part": 1}),
    (Halted, {"part": -1}),
]


@pytest.mark.parametrize(("kind", "changes"), DAMAGED, ids=str)
def test_inconsistent_record_is_skipped(kind, changes) -> None:
    answers = published(halting_log())
    damaged = encode(replace(of_kind(kind), **changes, step=77))
    undecodable = b"", b"{", b"\xc1", msgspec.msgpack.encode({"type": "halted"})
    assert halts_in([damaged, *undecodable, *map(encode, answers)]) == halts_in(answers)


class Subscriber:
    """What the page on using the service leaves to the reader: it crashes after so many HALTs."""

    def __init__(self, turnstile: Turnstile, until: int) -> None:
        self.begin: dict[int, int] = {}
        self.handled: list[Halt] = []
        self._turnstile, self._until = turnstile, until

    def halts(self, dataset: str, since: Since) -> Iterator[Halt]:
        return self._turnstile.halts(dataset, since=since, idle_timeout=0)

    def handle(self, halt: Halt) -> None:
        self.handled.append(halt)
        if len(self.handled) == self._until:
            raise RuntimeError("the subscriber ends here")


@pytest.mark.parametrize("until", [1, 5, 6, 7, 17])
def test_a_subscriber_that_is_started_again_misses_nothing(until) -> None:
    (example,) = blocks_of_a_subscriber()
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("mnist", measure="zcdp", budget=1 / 32)
        run = turnstile.run("mnist", "night-7")
        for _ in range(4):  # all are halted from the second step on
            run.charge(range(6), [1.0] * 6, noise_stddev=4.0)
        subscriber = Subscriber(turnstile, until)
        names = {"t": subscriber, "begin": subscriber.begin, "handle": subscriber.handle}
        with pytest.raises(RuntimeError):
            exec(example, names)
        exec(example, names)
        there = list(turnstile.halts("mnist", follow=False))
    assert len(there) == 18
    assert set(subscriber.handled) == set(there)
    before, after = subscriber.handled[:until], subscriber.handled[until:]
    last = {halt.partition: halt.offset for halt in before[:-1]}
    assert all(last[halt.partition] == halt.offset for halt in before[:-1] if halt in after)


def test_a_rejection_that_is_published_again_is_yielded_once() -> None:
    """A worker that takes over publishes what the outbox has, in the order of the log."""
    places = [(0, 3), (1, 3), (0, 5), (0, 3), (0, 5), (0, 7), (1, 3)]
    published = [
        encode(Rejected(partition=p, offset=at, reason=Reason.MALFORMED, detail="", record=b""))
        for p, at in places
    ]
    found = [(each.partition, each.offset) for _, each in distinct_rejects(followed(published))]
    assert found == [(0, 3), (1, 3), (0, 5), (0, 7)]


def test_each_rejected_event_of_a_record_is_yielded_once() -> None:
    published = [
        Rejected(
            partition=0, offset=3, reason=Reason.INVALID_NORM, detail="", record=b"", user=user
        )
        for user in ("a", "b", "c")
    ]
    again = [encode(rejected) for rejected in (*published, *published)]
    found = [rejected.user for _, rejected in distinct_rejects(followed(again))]
    assert found == ["a", "b", "c"]
