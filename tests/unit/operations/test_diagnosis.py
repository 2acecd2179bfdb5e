"""The doctor finds every problem, invents none, and always has a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streams.config import Config
from streams.kafka.answer_topics import ANSWER_SETTINGS
from streams.kafka.facts import KafkaFacts, TopicFacts
from streams.kafka.topics import NEEDED, TOPICS
from streams.operations.check_tables import Facts, Finding, Level
from streams.operations.doctor import diagnose
from streams.operations.endpoints import AnswererSeen, WorkerSeen
from streams.operations.status import (
    Overview,
    PartitionState,
    PartitionStatus,
    Unavailable,
    WaitReason,
    read_glances,
    read_redis_facts,
)
from streams.store.store_port import SuspensionReason

NOW = 1_800_000_000.0
CONFIG = Config(partitions=2)
TOPIC = TopicFacts(2, 3, 3, [], {})
HEALTHY = PartitionStatus(0, PartitionState.DECIDING, "w:1", 7, 0, 5, 0, 0, 1, "aa", 7)
KAFKA = KafkaFacts(
    "4.1",
    3,
    {
        name: replace(TOPIC, settings={**NEEDED[name], "min.insync.replicas": "2"})
        for name in TOPICS
    },
)
REDIS = {
    "address": "127.0.0.1:6379",
    "redis_version": "7.2.0",
    "used_memory": 1_000,
    "maxmemory": 1_000_000,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "role": "master",
}
WORKER = WorkerSeen("h:1", None, "1.0", [0, 1], 5.0)
ANSWERS = {
    name: replace(TOPIC, partitions=1, settings=dict(settings))
    for name, settings in ANSWER_SETTINGS.items()
}
ANSWERER = AnswererSeen("a:1", None, True, 3.0, NOW + 60, "events", "arrival", 7200.0)
INPUT = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
WELL = Facts(
    KAFKA,
    [REDIS],
    Overview([HEALTHY, replace(HEALTHY, partition=1)], {}),
    workers=[WORKER],
    release="1.0",
)
ANSWERING = replace(
    WELL,
    kafka=replace(KAFKA, answers=ANSWERS),
    answerers=[ANSWERER],
    inputs={"events": INPUT},
)


def topic(name: str, **changes: object) -> Facts:
    """Return the facts with one topic that is otherwise."""
    of = "answers" if name in ANSWERS else "topics"
    facts = ANSWERING if of == "answers" else WELL
    known = getattr(facts.kafka, of)
    changed = {**known, name: replace(known[name], **changes)}
    return replace(facts, kafka=replace(facts.kafka, **{of: changed}))


def settings(name: str, **changes: str) -> Facts:
    before = (ANSWERS.get(name) or KAFKA.topics[name]).settings
    return topic(name, settings={**before, **dotted(changes)})


def dotted(changes: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in changes.items()}


def redis(**changes: object) -> Facts:
    return replace(WELL, redis=[{**REDIS, **changes}])


def partition(state: PartitionState, reason: SuspensionReason | WaitReason) -> Facts:
    found = replace(HEALTHY, state=state, reason=reason, problem="why", remedy="how", lag=9)
    return replace(WELL, overview=Overview([found], {}))


def waiting(**changes: object) -> Facts:
    """A Redis that is otherwise, and a partition whose owner is silent."""
    silent = partition(PartitionState.WAITING, WaitReason.OWNER_SILENT)
    return replace(redis(**changes), overview=silent.overview)


def without(name: str) -> Facts:
    left = {key: topic for key, topic in KAFKA.topics.items() if key != name}
    return replace(WELL, kafka=replace(KAFKA, topics=left))


def answers_there(*names: str) -> Facts:
    there = {name: ANSWERS[name] for name in names}
    return replace(ANSWERING, kafka=replace(KAFKA, answers=there))


def answerer(**changes: object) -> Facts:
    return replace(ANSWERING, answerers=[replace(ANSWERER, **changes)])


def reads(**changes: str) -> Facts:
    return replace(ANSWERING, inputs={"events": {**INPUT, **dotted(changes)}})


def workers(**changes: object) -> Facts:
    return replace(WELL, workers=[replace(WORKER, **changes)])


def first_partition(**changes: object) -> Facts:
    return replace(WELL, overview=Overview([replace(HEALTHY, **changes)], {}))


REPLICA = {**REDIS, "address": "127.0.0.1:7001", "role": "slave"}
WITHOUT_KEY = replace(WELL.overview, erased_without_key=[1])
RESTORING = partition(PartitionState.RESTORING, SuspensionReason.RESTORING)
TWO_COPIES = topic("norms", replicas=2, in_sync=2, settings={**NEEDED["norms"]})
UNSEEN_ANSWERS = replace(ANSWERING, kafka=replace(KAFKA, answers=None))
WRONG = {
    # area: what is wrong
    "Kafka: no answer": replace(WELL, kafka="no answer", overview="-"),
    "Redis: one is a replica": replace(WELL, redis=[REDIS, REPLICA]),
    "Redis: no answer": replace(WELL, redis="no answer", overview="-"),
    "Redis: allkeys-lru": redis(maxmemory_policy="allkeys-lru"),
    "Redis: copy fails and no heartbeat": waiting(rdb_last_bgsave_status="err"),
    "Redis: append fails": redis(aof_last_write_status="err"),
    "Redis: memory is full": redis(used_memory=1_000_001),
    "Redis: replica": redis(role="slave"),
    "topics: no norms": without("norms"),
    "topics: no rejects": without("rejects"),
    "topics: retention of the log": settings("norms", retention_ms="1000"),
    "topics: cleanup.policy=delete": settings("odometer", cleanup_policy="delete"),
    "topics: no leader": topic("norms", without_leader=[1]),
    "topics: numbers of partitions differ": topic("halts", partitions=3),
    "partitions: suspended": partition(PartitionState.SUSPENDED, SuspensionReason.HOLE),
    "partitions: waiting": partition(PartitionState.WAITING, WaitReason.OWNER_SILENT),
    "workers: gone": workers(problem="gone"),
    "answerers: no state": answers_there("answers"),
    "answerers: no topics": answers_there(),
    "answerers: no answers": answers_there("answers-state"),
    "answerers: 2 partitions": topic("answers-state", partitions=2),
    "answerers: no leader": topic("answers", without_leader=[0]),
    "answerers: policy=delete": settings("answers-state", cleanup_policy="delete"),
    "answerers: policy=compact": settings("answers", cleanup_policy="compact"),
    "answerers: no answer": answerer(problem="does not answer", topic=""),
    "answerers: due": answerer(problem="a window has been due for 40 s"),
    "answerers: no input": replace(ANSWERING, inputs={"events": None}),
    "answerers: compacted input": reads(cleanup_policy="compact,delete"),
    "answerers: short retention": reads(retention_ms="7199999"),
}
WARNINGS = {
    "Redis: allkeys-lru without a limit": redis(maxmemory_policy="allkeys-lru", maxmemory=0),
    "Redis: little memory": redis(used_memory=900_000),
    "Redis: append-only": redis(aof_enabled=0),
    "Redis: copy to disk failed": redis(rdb_last_bgsave_status="err"),
    "Redis: rewriting fails": redis(aof_last_bgrewrite_status="err"),
    "topics: retention of HALTs": settings("halts", retention_ms="1000"),
    "topics: compaction lag": settings("odometer", max_compaction_lag_ms=str(2**63 - 1)),
    "topics: segment.ms": settings("snapshots", segment_ms="604800000"),
    "topics: one copy": topic("norms", replicas=1, in_sync=1),
    "topics: 2 of 3 copies": topic("norms", in_sync=2),
    "topics: replicas=1": settings("norms", min_insync_replicas="1"),
    "topics: with 2 copies": TWO_COPIES,
    "topics: replicas=3 of 3": settings("norms", min_insync_replicas="3"),
    "topics: may not see": topic("norms", settings={}),
    "partitions: restoring": RESTORING,
    "partitions: no snapshot": first_partition(snapshot=None),
    "partitions: no erasure key": replace(WELL, overview=WITHOUT_KEY),
    "workers: another release": workers(release="0.9"),
    "answerers: may not see their topics": UNSEEN_ANSWERS,
    "answerers: 2 of 3 copies": topic("answers-state", in_sync=2),
    "answerers: one copy": topic("answers-state", replicas=1, in_sync=1),
    "answerers: may not see the settings": topic("answers", settings={}),
    "answerers: not taken over": answerer(problem="not taken over", ready=False),
    "answerers: retention.bytes": reads(retention_bytes="5"),
    "settings: unknown": replace(WELL, unknown=["TURNSTILE_KAFAK"]),
}
CASES = [(name, Level.WRONG, facts) for name, facts in WRONG.items()]
CASES += [(name, Level.WARNING, facts) for name, facts in WARNINGS.items()]


def bad(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level is not Level.OK]


def test_missing_redis_is_unavailable() -> None:
    nowhere = Config(redis="redis://127.0.0.1:1")
    for read in (read_redis_facts, lambda config: read_glances(config, 1)):
        with pytest.raises(Unavailable):
            read(nowhere)


def test_healthy_service_has_no_problems() -> None:
    found = diagnose(WELL, CONFIG)
    assert {"brokers": 3, "release": "4.1"} in [one.about for one in found]
    assert bad(found) == []
    assert {one.area for one in found} == {
        *("Kafka", "topics", "Redis", "partitions", "workers", "settings")
    }


def test_no_findings_about_answerers_without_any() -> None:
    assert not [one for one in diagnose(WELL, CONFIG) if one.area == "answerers"]
    unseen = replace(WELL, kafka=replace(KAFKA, answers=None))
    assert bad(diagnose(unseen, CONFIG)) == []


@pytest.mark.parametrize(
    "facts",
    [
        ANSWERING,
        settings("answers", retention_ms="86400000"),  # any retention is fine
        reads(retention_ms="7200000"),
        replace(reads(retention_ms="1"), answerers=[replace(ANSWERER, clock="events")]),
        replace(ANSWERING, inputs={}),  # it may not be seen
    ],
)
def test_healthy_answerers_have_no_problems(facts: Facts) -> None:
    found = diagnose(facts, CONFIG)
    assert bad(found) == []
    assert {"answerer": "a:1"} in [one.about for one in found]


@pytest.mark.parametrize(("name", "level", "facts"), CASES, ids=[case[0] for case in CASES])
def test_problems_are_found_with_a_remedy(name: str, level: Level, facts: Facts) -> None:
    found = [one for one in bad(diagnose(facts, CONFIG)) if one.area == name.split(":")[0]]
    assert level in [one.level for one in found]
    assert all(one.means and one.do for one in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"used_memory": 1_000_001},
        {"role": "slave"},
        {"aof_last_write_status": "err"},
        {"rdb_last_bgsave_status": "err"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_redis_that_refuses_writes_is_named_before_what_follows(changes: dict[str, Any]) -> None:
    gone = replace(WORKER, problem="gone")
    cause, *symptoms = [
        one
        for one in bad(diagnose(replace(waiting(**changes), workers=[gone]), CONFIG))
        if one.level is Level.WRONG
    ]
    assert cause.area == "Redis"
    assert [one.area for one in symptoms] == ["workers", "partitions"]
    assert all("Redis" in one.do for one in symptoms)


@pytest.mark.parametrize(
    "changes",
    [
        {"used_memory": 1_000_001, "mem_not_counted_for_evict": 1},
        {"used_memory": 2_000_000, "maxmemory": 0},
        {"aof_last_write_status": "err", "aof_enabled": 0},
    ],
)
def test_redis_that_accepts_writes_is_not_wrong(changes: dict[str, Any]) -> None:
    found = diagnose(redis(**changes), CONFIG)
    assert Level.WRONG not in [one.level for one in found]


@pytest.mark.parametrize(
    ("where", "area"),
    [
        (Config(kafka="kafka.example:9092"), "Kafka"),
        (Config(redis="redis://redis.example:6379/0"), "Redis"),
        (Config(snapshot_seconds=0), "settings"),
        (Config(signing_key="k"), "settings"),
    ],
)
def test_incomplete_settings_are_found(where: Config, area: str) -> None:
    assert {one.area for one in bad(diagnose(WELL, where))} == {area}
