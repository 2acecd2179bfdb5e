"""The doctor finds what is wrong, calls nothing wrong that is not, and always says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streams.config import Config
from streams.operations.diagnosis import diagnose
from streams.operations.endpoints import WorkerSeen
from streams.operations.findings import Facts, Finding, Level
from streams.operations.status import Overview, PartitionStatus
from streams.topics.facts import KafkaFacts, TopicFacts
from streams.topics.topics import SETTINGS, TOPICS

NOW = 1_800_000_000.0
CONFIG = Config(partitions=2)
TOPIC = TopicFacts(2, 3, 3, [], {})
HEALTHY = PartitionStatus(0, "w:1", 7, 0, 5, 0, 0, 1, "aa", 7, None)
KAFKA = KafkaFacts(
    "4.1",
    3,
    {
        name: replace(TOPIC, settings={**SETTINGS[name], "min.insync.replicas": "2"})
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
    "now": NOW + 0.2,
}
WORKER = WorkerSeen("h:1", None, "1.0", [0, 1], 5.0, {}, 0.4)
WELL = Facts(
    NOW,
    KAFKA,
    [REDIS],
    Overview([HEALTHY, replace(HEALTHY, partition=1)], {}),
    workers=[WORKER],
    disks={"/kafka": (1000, 500)},
    release="1.0",
)


def topics(name: str, **changes: object) -> Facts:
    """A Kafka in which one topic is otherwise."""
    changed = {**KAFKA.topics, name: replace(KAFKA.topics[name], **changes)}
    return replace(WELL, kafka=replace(KAFKA, topics=changed))


def settings(name: str, **changes: str) -> Facts:
    given = {key.replace("_", "."): value for key, value in changes.items()}
    return topics(name, settings={**KAFKA.topics[name].settings, **given})


def redis(**changes: object) -> Facts:
    return replace(WELL, redis=[{**REDIS, **changes}])


def partition(problem: str, remedy: str | None = None) -> Facts:
    stopped = replace(HEALTHY, problem=problem, remedy=remedy, lag=9)
    return replace(WELL, overview=Overview([stopped], {}))


def without(name: str) -> Facts:
    left = {key: topic for key, topic in KAFKA.topics.items() if key != name}
    return replace(WELL, kafka=replace(KAFKA, topics=left))


CASES = [
    ("WRONG", "Kafka", "nobody home", replace(WELL, kafka="nobody home", overview="-")),
    (
        "WRONG",
        "Redis",
        "127.0.0.1:7001: this is a replica",
        replace(WELL, redis=[REDIS, {**REDIS, "address": "127.0.0.1:7001", "role": "slave"}]),
    ),
    ("WRONG", "Redis", "nobody home", replace(WELL, redis="nobody home", overview="-")),
    ("WRONG", "topics", "no turnstile.norms", without("norms")),
    ("WRONG", "topics", "no turnstile.rejects", without("rejects")),
    ("WRONG", "topics", "retention.ms=1000", settings("norms", retention_ms="1000")),
    ("WRONG", "topics", "cleanup.policy=delete", settings("odometer", cleanup_policy="delete")),
    ("WRONG", "topics", "no leader of partitions [1]", topics("norms", without_leader=[1])),
    ("WRONG", "topics", "numbers of partitions differ", topics("halts", partitions=3)),
    ("WARNING", "topics", "retention.ms=1000", settings("halts", retention_ms="1000")),
    ("WARNING", "topics", "one copy", topics("norms", replicas=1, in_sync=1)),
    ("WARNING", "topics", "2 are in step", topics("norms", in_sync=2)),
    ("WARNING", "topics", "replicas=1", settings("norms", min_insync_replicas="1")),
    ("WARNING", "topics", "replicas=3 of 3", settings("norms", min_insync_replicas="3")),
    ("WARNING", "topics", "nobody here may see", topics("norms", settings={})),
    ("WRONG", "Redis", "allkeys-lru", redis(maxmemory_policy="allkeys-lru")),
    ("WARNING", "Redis", "allkeys-lru", redis(maxmemory_policy="allkeys-lru", maxmemory=0)),
    ("WARNING", "Redis", "little memory", redis(used_memory=900_000)),
    ("WARNING", "Redis", "append-only", redis(aof_enabled=0)),
    ("WARNING", "Redis", "copy to disk failed", redis(rdb_last_bgsave_status="err")),
    ("WRONG", "Redis", "replica", redis(role="slave")),
    ("WRONG", "partitions", "stopped: no", partition("stopped: no. Do so", "Do so")),
    ("WRONG", "partitions", "last seen", partition("its owner was last seen 11 seconds ago")),
    ("WARNING", "partitions", "half", partition("half of it is built. Wait", "Wait")),
    (
        "WARNING",
        "partitions",
        "no checkpoint",
        replace(WELL, overview=Overview([replace(HEALTHY, checkpoint=None)], {})),
    ),
    (
        "WRONG",
        "workers",
        "gone",
        replace(WELL, workers=[replace(WORKER, problem="gone")]),
    ),
    ("WARNING", "workers", "0.9", replace(WELL, workers=[replace(WORKER, release="0.9")])),
    ("WARNING", "clocks", "behind", redis(now=NOW - 60)),
    ("WARNING", "clocks", "h:1", replace(WELL, workers=[replace(WORKER, ahead=60.0)])),
    ("WARNING", "clocks", "newest", replace(WELL, kafka=replace(KAFKA, newest=NOW + 60))),
    ("WARNING", "disk", "/kafka", replace(WELL, disks={"/kafka": (1000, 50)})),
    ("WARNING", "settings", "TURNSTILE_KAFAK", replace(WELL, unknown=["TURNSTILE_KAFAK"])),
]


def bad(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level is not Level.OK]


def test_nothing_is_wrong_with_what_is_well() -> None:
    found = diagnose(WELL, CONFIG)
    assert bad(found) == []
    assert {one.area for one in found} == {
        *("Kafka", "topics", "Redis", "partitions", "workers", "clocks", "disk", "settings")
    }


@pytest.mark.parametrize(
    ("level", "area", "words", "facts"), CASES, ids=[f"{case[1]}: {case[2]}" for case in CASES]
)
def test_what_is_wrong_is_said_with_what_to_do(
    level: str, area: str, words: str, facts: Facts
) -> None:
    found = [one for one in bad(diagnose(facts, CONFIG)) if one.area == area]
    assert [one.level for one in found if words in one.what] == [Level[level]]
    assert all(one.means and one.do for one in found)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Config(kafka="kafka.example:9092"), "without encryption"),
        (Config(redis="redis://redis.example:6379/0"), "without encryption"),
        (Config(checkpoint_seconds=0), "checkpoint_seconds is 0"),
        (Config(signing_key="k"), "signing_key is set"),
    ],
)
def test_settings_that_leave_something_open_are_said(where: Config, words: str) -> None:
    assert any(words in one.what for one in bad(diagnose(WELL, where)))


def test_an_old_record_says_nothing_about_a_clock() -> None:
    old = replace(WELL, kafka=replace(KAFKA, newest=NOW - 10_000))
    assert bad(diagnose(old, CONFIG)) == []
