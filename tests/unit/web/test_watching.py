"""A watch counts records once, and shows no data about people among the facts."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from streams.config import Config
from streams.kafka.results import TopicsSeen
from streams.ledger.ledger import DatasetSummary, RunSummary, Summary
from streams.operations import status
from streams.operations.endpoints import WorkerSeen, ask_workers
from streams.operations.status import PartitionState
from streams.records import Rejected, encode
from streams.sdk.followers import Followed
from streams.store.store_port import Glance, Inventory, Pulse, SuspensionReason, pack_report
from streams.web import watching
from streams.web.live_facts import REJECTS, ServiceFacts, alarms_of
from streams.web.sources import NOT_YET, Source
from streams.web.watching import Watch
from tests.doubles.memory_store import meta_of
from tests.unit.operations.test_diagnosis import HEALTHY
from tests.unit.web.test_owner import policy
from tests.waiting import eventually

WELL = HEALTHY
SUSPENDED = replace(
    HEALTHY,
    partition=3,
    state=PartitionState.SUSPENDED,
    reason=SuspensionReason.HOLE,
    problem="a hole",
    remedy="Restore the log",
)


def test_worst_alarm_comes_first() -> None:
    sources = [Source("Kafka", None, 100.0), Source("halts", "not admitted", 0.0)]
    gone = WorkerSeen("h:1", "does not answer")
    alarms = alarms_of(sources, [WELL, SUSPENDED], [gone], now=101.0)
    assert [(alarm["level"], alarm["about"]) for alarm in alarms] == [
        ("wrong", {"partition": 3, "state": "suspended", "reason": "hole"}),
        ("wrong", {"worker": "h:1"}),
        ("warning", {"side": "halts"}),
    ]
    assert alarms[0]["do"] == SUSPENDED.remedy
    assert all(alarm["do"] for alarm in alarms)


@pytest.mark.parametrize("silent", ["Redis", "Kafka"])
def test_alarm_of_a_silent_source(silent: str) -> None:
    facts = ServiceFacts(1e-5)
    facts.sources[REJECTS] = Source(REJECTS, None, time.monotonic())
    for name, age in (("Kafka", 0.5), ("Redis", 0.5), (silent, 43.0)):
        asked = time.monotonic() - age
        facts.sources[name] = Source(name, None, asked, asked=asked)
    seen = facts.service()
    assert seen["away"] == {name: name == silent for name in ("Kafka", "Redis")}
    (alarm,) = seen["alarms"]
    assert (alarm["level"], alarm["about"]) == ("wrong", {"side": silent})
    assert f"TURNSTILE_{silent.upper()}" in alarm["do"]


def test_sources_and_workers_that_never_answered_are_away() -> None:
    assert ServiceFacts(1e-5).service()["away"] == {"Kafka": True, "Redis": True}
    (seen,) = ask_workers(["127.0.0.1:1"])
    assert seen.problem


def test_records_read_again_count_once() -> None:
    """After an outage of Kafka, a topic is read from some records back."""
    refused = Rejected(partition=0, offset=5, reason="malformed", detail="odd", record=b"x")
    facts = ServiceFacts(1e-5)
    for _ in range(2):
        facts.follow_rejects(iter([Followed(0, encode(refused), 100.0)]))
    assert facts.service()["rejects"] == {"malformed": 1}
    assert len(facts.people()["refused"]) == 1


TOPICS = TopicsSeen(b"t" * 16, 1, None)


def see(facts: ServiceFacts, summary: Summary | None = None, *, step: int = 0, **meta: str) -> None:
    """Let a watch look at a log of one partition, with 7 records that are decided."""
    found = meta_of(TOPICS.topic, **{"next": "7", "last": "6", **meta})
    if summary is None:
        summary = Summary({}, 1, 0, [RunSummary("d", "r", 1, step, False, 4, 1)])
    packed = pack_report(Inventory(int(found["next"]) - 1, summary))
    facts.see(
        "t.", TOPICS, [Glance(0, found, 0, pack_report(Pulse(7, 7, 0.0)), packed, {})], [(0, 7)]
    )


def test_log_end_is_read_after_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is decided in between would be beyond the end of the log."""
    decided = count(7)

    def extents(_: int) -> list[tuple[int, int]]:
        return [(0, next(decided))]

    def glances(*_: object) -> list[Glance]:
        return [Glance(0, meta_of(TOPICS.topic, next=str(next(decided))), 0, b"", b"", {})]

    kafka = SimpleNamespace(look=lambda: TOPICS, extents=extents)
    monkeypatch.setattr(status, "Topics", lambda _: nullcontext(kafka))
    monkeypatch.setattr(status, "read_glances", glances)
    (partition,) = status.read_overview(Config()).partitions
    assert partition.reason is not SuspensionReason.LOG_ENDS_EARLY


def test_runs_have_the_rate_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("streams.web.live_facts.time.monotonic", lambda: now)
    facts = ServiceFacts(1e-5)
    see(facts, step=3)
    assert facts.people()["runs"][0]["rate"] == 0.0
    now += 4.0
    see(facts, step=5)
    (run,) = facts.people()["runs"]
    assert (run["step"], run["rate"], run["state"]) == (5, 0.5, "open")
    assert (run["users"], run["halted"]) == (4, 1)


@pytest.mark.parametrize("counts", [(5, 3), (6, 0)])
def test_service_state_contains_no_user_data(counts: tuple[int, int]) -> None:
    def facts_of(users: int, exhausted: int) -> ServiceFacts:
        facts = ServiceFacts(1e-5)
        summary = Summary({"d": DatasetSummary(policy("d"), users, exhausted)}, 0, 0)
        changes, outbox = str(users), str(exhausted)
        see(facts, summary, head=f"{users}{exhausted}", changes=changes, outbox=outbox)
        return facts

    def shown(facts: ServiceFacts) -> dict[str, Any]:
        service = facts.service()
        return {name: service[name] for name in service if name not in ("away", "rates")}

    usual, other = facts_of(5, 0), facts_of(*counts)
    assert shown(usual)["datasets"][0]["dataset"] == "d"
    assert shown(other) == shown(usual)
    users = {"partitions": {0: 5}, "datasets": {"d": 5}, "exhausted": {"d": 0}}
    assert usual.people()["users"] == users
    assert other.people()["users"]["datasets"] == {"d": counts[0]}


def test_failure_log_contains_no_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(user)

    user = "ada-lovelace"
    kafka = SimpleNamespace(extents=lambda _: [(0, 0)])
    monkeypatch.setattr(watching, "Topics", lambda _: nullcontext(kafka))
    monkeypatch.setattr(watching, "look_at", lambda *_: TOPICS)
    monkeypatch.setattr(watching, "read_glances", lambda *_: [Glance(0, {}, 0, b"", b"", {})])
    monkeypatch.setattr(watching, "read_topic", fail)
    watch = Watch(Config(), [], delta=1e-5)
    watch.start()
    with closing(watch):
        rejects = watch.facts.sources[REJECTS]
        eventually(lambda: rejects.problem not in (None, NOT_YET))
    shown = f"{watch.facts.service()['alarms']}{caplog.text}"
    assert "KeyError" in shown
    assert user not in shown
