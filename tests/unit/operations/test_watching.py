"""A watch counts records once, and stores no user ids."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from streams.config import Config
from streams.kafka.results import TopicsSeen
from streams.ledger.ledger import DatasetSummary, Summary
from streams.ledger.outputs import Channel
from streams.operations import status, watching
from streams.operations.activity import MOST_RUNS, PARTS, Activity, Spending
from streams.operations.endpoints import WorkerSeen, ask_workers
from streams.operations.facts import NOT_YET, STALE_AFTER, ServiceFacts, Side, alarms_of
from streams.operations.watching import Watch
from streams.records import (
    Decision,
    OdometerRecord,
    Rejected,
    RosterDecision,
    RunClosed,
    encode,
)
from streams.records.packing import pack_bits, pack_positions
from streams.sdk.followers import Followed
from streams.store.layout import LAYOUT
from streams.store.port import Glance, Inventory, Pulse, SuspensionReason
from tests.unit.web.test_owner import policy
from tests.waiting import eventually

WELL = {"partition": 0, "state": "deciding", "reason": None, "problem": None, "remedy": None}
SUSPENDED = {
    "partition": 3,
    "state": "suspended",
    "reason": "hole",
    "problem": "a hole",
    "remedy": "Restore the log",
}


def decision(step: int, admitted: list[int], partition: int = 0, run: str = "r") -> Decision:
    bits = np.array(admitted, dtype=bool)
    return Decision(
        dataset="d",
        run=run,
        attempt=1,
        step=step,
        partition=partition,
        offset=step,
        digest=b"",
        users=len(bits),
        admitted=pack_bits(bits),
        exhausted=pack_bits(~bits),
        halted=["eve"] * int((~bits).sum()),
        reasons=bytes(int((~bits).sum())),
        budgets=["d"],
    )


def roster(step: int, halted: list[int], readmitted: list[int]) -> RosterDecision:
    return RosterDecision(
        dataset="d",
        run="r",
        attempt=1,
        step=step,
        partition=0,
        offset=step,
        digest=b"",
        members=10,
        halted=pack_positions(np.array(halted, dtype=np.int64), 10),
        readmitted=pack_positions(np.array(readmitted, dtype=np.int64), 10),
    )


def test_repeated_step_counts_once() -> None:
    activity = Activity()
    for _ in range(2):
        activity.see(decision(0, [1, 1, 0]), 100.0)
        activity.see(decision(0, [1, 0], partition=1), 100.0)
        activity.see(decision(1, [1, 0, 0]), 101.0)
        activity.see(decision(1, [1, 1], partition=1), 101.5)
    (run,) = activity.runs(now=110.0)
    assert (run["step"], run["active"], run["halted"], run["exhausted"]) == (1, 3, 2, 2)
    assert run["rate"] == pytest.approx(2 / 30)
    assert activity.runs(now=131.1)[0]["rate"] == 0.0
    assert "eve" not in repr(vars(activity))


def test_roster_counts_follow_the_changes() -> None:
    activity = Activity()
    activity.see(roster(0, [1, 2, 3], []), 0.0)
    activity.see(roster(1, [4], [1, 2]), 1.0)
    (run,) = activity.runs(now=2.0)
    assert (run["active"], run["halted"], run["counted_from"]) == (8, 2, None)
    late = Activity()
    late.see(roster(5, [1], []), 0.0)
    assert late.runs(now=2.0)[0]["counted_from"] == 5


def test_number_of_kept_runs_is_bounded() -> None:
    activity = Activity()
    for number in range(MOST_RUNS + 5):
        activity.see(decision(0, [1], run=f"r{number}"), float(number))
    name = f"r{MOST_RUNS}"
    closed = RunClosed(
        dataset="d", run=name, attempt=1, request="t", partition=0, offset=9, last_step=0
    )
    activity.see(closed, 1.0)
    runs = {run["run"]: run for run in activity.runs(now=1e6)}
    assert len(runs) == MOST_RUNS
    assert "r0" not in runs
    assert runs[name]["closed"]


def odometer(user: int) -> OdometerRecord:
    return OdometerRecord(dataset="d", user=user, partition=0, offset=1, bound=[1.0])


def test_user_counts_once_at_the_highest_bound() -> None:
    spending = Spending()
    for user in range(10):
        for share in (1 / 8, 3 / 8 + 1e-9, 2 / 8):
            spending.see(odometer(user), share)
    spending.see(odometer(10), 1.0)
    (shown,) = spending.distribution({"d": 20})
    assert shown["parts"] == [9, 0, 10, 0, 0, 0, 0, 1]
    assert len(shown["parts"]) == PARTS


def test_many_users_are_sampled() -> None:
    random.seed(5)
    spending = Spending(most_users=500)
    for user in range(8_000):
        spending.see(odometer(user), 1.0 if user % 4 == 0 else 0.5)
    (shown,) = spending.distribution({"d": 8_000})
    assert shown["one_in"] in (16, 32)
    assert shown["parts"][-1] == pytest.approx(2_000, rel=0.4)


def test_worst_alarm_comes_first() -> None:
    sides = {"Kafka": Side(None, 100.0), "halts": Side("not admitted", 0.0)}
    gone = WorkerSeen("h:1", "does not answer")
    alarms = alarms_of(sides, [WELL, SUSPENDED], [gone], now=101.0)
    assert [(alarm["level"], alarm["about"]) for alarm in alarms] == [
        ("wrong", {"partition": 3, "state": "suspended", "reason": "hole"}),
        ("wrong", {"worker": "h:1"}),
        ("warning", {"side": "halts"}),
    ]
    assert alarms[0]["do"] == SUSPENDED["remedy"]
    assert all(alarm["do"] for alarm in alarms)


def test_silent_source_is_away() -> None:
    sides = {"Redis": Side(None, 100.0), "odometer": Side(NOT_YET)}
    assert alarms_of(sides, [WELL], [], now=100.0 + STALE_AFTER) == []
    (alarm,) = alarms_of(sides, [WELL], [], now=107.0)
    assert alarm["level"] == "wrong"
    assert "7 s old" in alarm["do"]
    assert "`turnstile doctor`" in alarm["do"]


@pytest.mark.parametrize(
    ("side", "setting"), [("Redis", "TURNSTILE_REDIS"), ("Kafka", "TURNSTILE_KAFKA")]
)
def test_alarm_of_a_silent_source(side: str, setting: str) -> None:
    facts = ServiceFacts(1e-5, [])
    for name, age in (("Kafka", 0.5), ("Redis", 0.5), (side, 43.0)):
        facts.sides[name] = Side(None, time.monotonic() - age)
    seen = facts.service()
    assert {name: shown["away"] for name, shown in seen["sides"].items()} == {
        name: name == side for name in ("Kafka", "Redis")
    }
    assert seen["sides"][side]["age"] == pytest.approx(43.0, abs=1.0)
    (alarm,) = seen["alarms"]
    assert f"Start {side}, or set {setting}" in alarm["do"]


def test_source_that_never_answered_has_no_age() -> None:
    shown = ServiceFacts(1e-5, []).service()["sides"]
    assert shown == {name: {"age": None, "away": True} for name in ("Kafka", "Redis")}


def test_silent_worker_has_a_problem() -> None:
    (seen,) = ask_workers(["127.0.0.1:1"])
    assert seen.problem is not None
    assert "does not answer" in seen.problem


def test_records_read_again_count_once() -> None:
    """After an outage of Kafka, a topic is read from some records back."""
    refused = Rejected(partition=0, offset=5, reason="malformed", detail="odd", record=b"x")
    facts = ServiceFacts(1e-5, ["rejects"])
    for _ in range(2):
        facts.follow_rejects(iter([Followed(0, encode(refused), 100.0)]))
    assert facts.service()["rejects"] == {"malformed": 1}
    assert len(facts.people()["refused"]) == 1


def test_log_end_is_read_after_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is decided in between would be beyond the end of the log."""
    decided = 7

    class Moving:
        def __init__(self, _: Config) -> None: ...

        def __enter__(self) -> Moving:
            return self

        def __exit__(self, *_: object) -> None: ...

        def look(self) -> TopicsSeen:
            return TopicsSeen(b"t" * 16, 1, None)

        def extents(self, _: int) -> list[tuple[int, int]]:
            nonlocal decided
            decided += 1
            return [(0, decided)]

    def glances(*_: object) -> list[Glance]:
        nonlocal decided
        decided += 1
        meta = {"next": str(decided), "owner": "me", "layout": str(LAYOUT), "partitions": "1"}
        return [Glance(0, {**meta, "topic": (b"t" * 16).hex()}, 0, b"", b"", {})]

    monkeypatch.setattr(status, "Topics", Moving)
    monkeypatch.setattr(status, "read_glances", glances)
    (partition,) = status.read_overview(Config()).partitions
    assert partition.reason is not SuspensionReason.LOG_ENDS_EARLY


TOPICS = TopicsSeen(b"t" * 16, 1, None)


class Sources:
    """Kafka and Redis, with a log of one partition, and what a watch knows of them."""

    def __init__(self) -> None:
        self.decided, self.end = 7, 7
        self.meta = {"owner": "me", "layout": str(LAYOUT), "partitions": "1"}
        self.meta |= {"topic": TOPICS.topic.hex()}
        self.inventory = b""
        self.facts = ServiceFacts(1e-5, [])

    def ask_kafka(self) -> None:
        self.facts.see_kafka(TOPICS, [(0, self.end)], self.facts.glances)
        self.facts.sides["Kafka"] = Side(None, time.monotonic())

    def ask_redis(self) -> None:
        assert self.facts.kafka
        meta, pulse = self.meta | {"next": str(self.decided)}, Pulse(self.decided, self.end, 0.0)
        glance = Glance(0, meta, 0, encode(pulse), self.inventory, {})
        self.facts.see_redis([glance], self.facts.kafka[1])
        self.facts.sides["Redis"] = Side(None, time.monotonic())


def test_decided_records_do_not_seem_to_wait() -> None:
    sources = Sources()
    sources.ask_kafka()
    sources.ask_redis()
    for _ in range(5):  # each record is decided as it comes
        for ask in (sources.ask_kafka, sources.ask_redis):
            ask()
            assert sources.facts.service()["lag"] == 0
            sources.decided, sources.end = sources.decided + 16, sources.end + 16
    sources.end += 5
    sources.ask_kafka()
    sources.ask_redis()
    assert sources.facts.service()["lag"] == 5


def test_log_that_ends_early_is_shown() -> None:
    sources = Sources()
    sources.ask_kafka()
    sources.ask_redis()
    sources.end = 3
    sources.ask_kafka()
    (partition,) = sources.facts.service()["partitions"]
    assert partition["reason"] is SuspensionReason.LOG_ENDS_EARLY


@pytest.mark.parametrize("counts", [(5, 3), (6, 0)])
def test_service_state_contains_no_user_data(counts: tuple[int, int]) -> None:
    def facts_of(users: int, exhausted: int) -> ServiceFacts:
        sources = Sources()
        sources.meta |= {"head": f"{users}{exhausted}"}
        sources.meta |= {"changes": str(users), "outbox": str(exhausted)}
        summary = Summary({"d": DatasetSummary(policy("d"), users, exhausted)}, 0, 0)
        sources.inventory = encode(Inventory(6, summary))
        sources.ask_kafka()
        sources.ask_redis()
        return sources.facts

    def shown(facts: ServiceFacts) -> dict[str, Any]:
        service = facts.service()
        return {name: service[name] for name in service if name not in ("time", "sides", "rates")}

    usual, other = facts_of(5, 0), facts_of(*counts)
    assert shown(usual)["datasets"][0]["dataset"] == "d"
    assert shown(other) == shown(usual)
    assert usual.people()["users"] == {"partitions": {0: 5}, "datasets": {"d": 5}}
    assert other.people()["users"]["datasets"] == {"d": counts[0]}


def test_failure_log_contains_no_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Log:
        def __init__(self, _: Config) -> None: ...

        def __enter__(self) -> Log:
            return self

        def __exit__(self, *_: object) -> None: ...

    def fail(*_: object) -> None:
        raise KeyError(user)

    user = "ada-lovelace"
    monkeypatch.setattr(watching, "Topics", Log)
    monkeypatch.setattr(watching, "look_at", lambda *_: (TOPICS, [(0, 0)]))
    monkeypatch.setattr(watching, "read_glances", lambda *_: [Glance(0, {}, 0, b"", b"", {})])
    monkeypatch.setattr(watching, "tail", fail)
    with Watch(Config(), [], delta=1e-5, channels=(Channel.HALTS,)) as watch:
        eventually(watch.is_complete)
    shown = f"{watch.facts.service()['alarms']}{caplog.text}"
    assert "KeyError" in shown
    assert user not in shown
