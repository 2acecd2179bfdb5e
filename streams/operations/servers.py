"""Derives findings from the facts about Kafka and Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from streams.config import Config
from streams.kafka.facts import KafkaFacts, TopicFacts
from streams.kafka.topics import (
    MIN_IN_SYNC,
    NORMS,
    SETTINGS,
    SNAPSHOTS,
    TOPICS,
    WISHES,
    suits,
)
from streams.operations.findings import Facts, Finding, Level, size_of
from streams.redis_address import is_encrypted

_LOOPBACK = ("localhost", "::1", "")


def of_kafka(facts: Facts, config: Config) -> Iterator[Finding]:
    """Yield whether Kafka answers, and whether the connection is encrypted."""
    if isinstance(facts.kafka, str):
        yield Finding(
            "Kafka",
            Level.WRONG,
            facts.kafka,
            "Nothing can be charged or decided",
            "Start the broker, or set TURNSTILE_KAFKA and the settings for its login "
            "(docs/operate/security.md)",
        )
        return
    brokers = facts.kafka.brokers
    many = f"{brokers} broker{'s' if brokers > 1 else ''}"
    text = f"{config.kafka} answers: {many} of Kafka {facts.kafka.release}"
    about = {"brokers": brokers, "release": facts.kafka.release}
    yield Finding("Kafka", Level.OK, text, about=about)
    if not config.kafka_security.endswith("SSL") and not _is_here(config.kafka):
        yield Finding(
            "Kafka",
            Level.WARNING,
            f"the connection to {config.kafka} is not encrypted",
            "An observer of the network reads norms and HALTs, and could change them",
            "Set TURNSTILE_KAFKA_SECURITY=SASL_SSL, and give each role its rights: "
            "docs/operate/security.md",
        )


def of_topics(facts: Facts, config: Config) -> Iterator[Finding]:
    """Yield whether the topics exist, and keep their records."""
    if isinstance(facts.kafka, str):
        return
    known = facts.kafka.topics
    missing = [config.topic(name) for name in TOPICS if name not in known]
    if NORMS not in known:
        yield Finding(
            "topics",
            Level.WRONG,
            f"there is no {config.topic(NORMS)}, the log of all spending",
            "Nothing can be charged. If the topic existed, it was deleted",
            "The first worker creates it, or `turnstile topics create`. If users were charged "
            "before: restore it, with its id, from a copy of Kafka's data",
        )
    elif missing:
        yield Finding(
            "topics",
            Level.WRONG,
            f"there is no {', '.join(missing)}",
            "Workers exit, because their answers could not be published",
            "Run `turnstile topics create`, and start the workers again",
        )
    counts = {name: topic.partitions for name, topic in known.items()}
    if len(set(counts.values())) > 1:
        yield Finding(
            "topics",
            Level.WRONG,
            f"their numbers of partitions differ: {counts}",
            "A user's partition is ambiguous, so nothing is decided",
            "`turnstile status` says which topics to delete and to create",
        )
    for name, topic in known.items():
        yield from _topic(name, topic, facts.kafka, config)


def _topic(name: str, topic: TopicFacts, kafka: KafkaFacts, config: Config) -> Iterator[Finding]:
    title = config.topic(name)
    found = list(copies_of(title, topic, "topics"))
    if name in (NORMS, SNAPSHOTS):
        found += _copies(name, title, topic, kafka)
    for setting, wanted in SETTINGS[name].items():
        actual = topic.settings.get(setting)
        if actual is None or suits(setting, actual, wanted):
            continue
        is_wish = (name, setting) in WISHES
        found.append(
            Finding(
                "topics",
                Level.WARNING if is_wish else Level.WRONG,
                f"{title} has {setting}={actual}, and {wanted} is "
                f"{'advised' if is_wish else 'needed'}",
                WISHES[name, setting]
                if is_wish
                else "Records could be lost unnoticed, so workers decide nothing",
                f"`python -m kafka.admin -b {config.kafka} configs alter -r topic -n {title} "
                f"-c {setting}={wanted}`",
            )
        )
    found = found or [Finding("topics", Level.OK, kept_and_copied(title, topic))]
    yield from (replace(finding, about={"topic": title}) for finding in found)


def copies_of(title: str, topic: TopicFacts, area: str) -> Iterator[Finding]:
    """Yield problems of a topic's copies, or that its settings are not visible."""
    if topic.without_leader:
        yield Finding(
            area,
            Level.WRONG,
            f"{title} has no leader of partitions {topic.without_leader}",
            "Nothing can be read or written there",
            "Start the brokers that have their copies",
        )
    if topic.in_sync < topic.replicas:
        yield Finding(
            area,
            Level.WARNING,
            f"{title}: {topic.in_sync} of {topic.replicas} copies of a partition are in sync",
            "Fewer brokers can be lost than planned",
            "Check whether a broker is down or behind",
        )
    if not topic.settings:
        yield Finding(
            area,
            Level.WARNING,
            f"this user may not see the settings of {title}",
            "They are not compared with the needs of the service",
            "Give this user DescribeConfigs on it: `turnstile acl`",
        )


def kept_and_copied(title: str, topic: TopicFacts) -> str:
    """Return the description of a topic without problems."""
    kept = topic.settings.get("retention.ms", "-1")
    for_ever = "forever" if int(kept) < 0 else f"for {int(kept) / 86_400_000:g} days"
    if "compact" in topic.settings.get("cleanup.policy", ""):
        for_ever = "the last of each key"
    copies = "1 copy" if topic.replicas == 1 else f"{topic.replicas} copies"
    several = "1 partition" if topic.partitions == 1 else f"{topic.partitions} partitions"
    return f"{title}: {several}, {copies}, kept {for_ever}"


def _copies(name: str, title: str, topic: TopicFacts, kafka: KafkaFacts) -> list[Finding]:
    least, copies = int(topic.settings.get(MIN_IN_SYNC, "1")), topic.replicas
    if copies == 1:
        what = f"{title} has one copy of every record"
        means = (
            "If one broker loses its disk, all spending is lost and cannot be computed again"
            if name == NORMS
            else "If one broker loses its disk, a lost Redis cannot be restored from it"
        )
    elif least < 2:
        what = f"{title} has {MIN_IN_SYNC}={least} with {copies} copies"
        means = "A charge counts as written once one broker has it, and is lost with that broker"
    elif least >= copies:
        what = f"{title} has {MIN_IN_SYNC}={least} of {copies} copies"
        means = "While any broker is down, nothing can be charged"
    else:
        return []
    do = f"Set {MIN_IN_SYNC}={copies - 1} for it"
    if copies < 3:  # any value loses records with one broker, or stops with one
        do = (
            ("Run three brokers, and have " if kafka.brokers < 3 else "Have ")
            + "three copies (`kafka-reassign-partitions`; TURNSTILE_REPLICATION=3 for topics "
            f"that are created) and {MIN_IN_SYNC}=2"
        )
    return [Finding("topics", Level.WARNING, what, means, do)]


def of_redis(facts: Facts, config: Config) -> Iterator[Finding]:
    """Yield whether Redis answers, and keeps its data."""
    if isinstance(facts.redis, str):
        yield Finding(
            "Redis",
            Level.WRONG,
            facts.redis,
            "Nothing is decided. Nothing is lost, because the log has all records",
            "Start Redis, or set TURNSTILE_REDIS. If its data are lost, start the workers with an "
            "empty Redis (docs/operate/redis.md)",
        )
        return
    for server in facts.redis:
        for finding in _of_server(server):
            if len(facts.redis) > 1:
                finding = replace(finding, what=f"{server['address']}: {finding.what}")
            yield replace(finding, about={"redis": server["address"]})
    if not is_encrypted(config.redis) and not _is_here(config.redis):
        yield Finding(
            "Redis",
            Level.WARNING,
            "the connection is not encrypted",
            "An observer of the network reads the users' spending, and could change it",
            "Use a URL that begins with rediss, and a user with the rights of the role: "
            "docs/operate/security.md",
        )


def _of_server(redis: Mapping[str, Any]) -> Iterator[Finding]:
    used = int(redis.get("used_memory", 0))
    most = int(redis.get("maxmemory", 0)) or int(redis.get("total_system_memory", 0))
    text = f"{size_of(used)} used" + (f" of {size_of(most)}" if most else "")
    yield Finding(
        "Redis", Level.OK, f"answers: release {redis.get('redis_version', 'unknown')}, {text}"
    )
    policy = redis.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        limited = int(redis.get("maxmemory", 0)) > 0
        yield Finding(
            "Redis",
            Level.WRONG if limited else Level.WARNING,
            f"maxmemory-policy is {policy}",
            "Redis may delete users' spending, so workers refuse to start"
            if limited
            else "Once Redis has a maxmemory, it may delete users' spending",
            "Run CONFIG SET maxmemory-policy noeviction, and set it in the configuration file",
        )
    if most and used > 0.8 * most:
        yield Finding(
            "Redis",
            Level.WARNING,
            f"{text}: little memory is left",
            "When the memory is full, Redis rejects writes, and nothing is decided",
            "Add memory, or close runs that have ended (`turnstile run close`)",
        )
    yield from _persistence(redis)
    if redis.get("role") == "slave":
        yield Finding(
            "Redis",
            Level.WRONG,
            "this is a replica, which rejects writes",
            "Workers cannot decide anything",
            "Set TURNSTILE_REDIS to its master",
        )


def _persistence(redis: Mapping[str, Any]) -> Iterator[Finding]:
    by_log = int(redis.get("aof_enabled", 0))
    if not by_log:
        yield Finding(
            "Redis",
            Level.WARNING,
            "there is no append-only file",
            "After each restart of Redis, the state is restored from snapshots and the log: "
            "nothing is lost, but nothing is decided meanwhile",
            "Run CONFIG SET appendonly yes, and set it in the configuration file",
        )
    for name, what in (
        ("aof_last_write_status", "the last write of its append-only file"),
        ("aof_last_bgrewrite_status", "the last rewriting of its append-only file"),
        ("rdb_last_bgsave_status", "its last copy to disk"),
    ):
        if redis.get(name, "ok") != "ok":
            yield Finding(
                "Redis",
                Level.WARNING,
                f"{what} failed",
                "The data on its disk are outdated or incomplete",
                "Read its log: often the disk is full",
            )


def _is_here(addresses: str) -> bool:
    """Return whether all servers are on this machine."""
    if addresses.startswith("unix:"):
        return True
    urls = (one if "//" in one else f"//{one}" for one in addresses.split(","))
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return all(host in _LOOPBACK or host.startswith("127.") for host in hosts)
