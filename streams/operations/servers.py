"""What follows from what Kafka and Redis say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from streams.config import Config
from streams.kafka.facts import KafkaFacts, TopicFacts
from streams.kafka.topics import NORMS, SETTINGS, SNAPSHOTS, TOPICS, WISHES, suits
from streams.operations.findings import Facts, Finding, Level, size_of
from streams.redis_address import is_encrypted

_LOOPBACK = ("localhost", "::1", "")


def of_kafka(facts: Facts, config: Config) -> Iterator[Finding]:
    """Whether it answers, and is reached safely."""
    if isinstance(facts.kafka, str):
        yield Finding(
            "Kafka",
            Level.WRONG,
            facts.kafka,
            "No charge can be sent, and none is decided",
            "Start the broker, or set TURNSTILE_KAFKA and what it needs to be let in "
            "(docs/security.md)",
        )
        return
    brokers = facts.kafka.brokers
    many = f"{brokers} broker{'s' if brokers > 1 else ''}"
    told = f"{config.kafka} answers: {many} of Kafka {facts.kafka.release}"
    yield Finding("Kafka", Level.OK, told)
    if not config.kafka_security.endswith("SSL") and not _is_here(config.kafka):
        yield Finding(
            "Kafka",
            Level.WARNING,
            f"{config.kafka} is reached without encryption",
            "Whoever is on the way reads norms and HALTs, and could change them",
            "Set TURNSTILE_KAFKA_SECURITY=SASL_SSL, and give each role its rights: "
            "docs/security.md",
        )


def of_topics(facts: Facts, config: Config) -> Iterator[Finding]:
    """Whether they are there, and keep what they have to keep."""
    if isinstance(facts.kafka, str):
        return
    known = facts.kafka.topics
    missing = [config.topic(name) for name in TOPICS if name not in known]
    if NORMS not in known:
        yield Finding(
            "topics",
            Level.WRONG,
            f"there is no {config.topic(NORMS)}, the log of all that was spent",
            "Nothing can be charged. If there was one, it was deleted",
            "The first worker creates it, or `turnstile topics create`. If users were charged "
            "before: restore it, with its id, from a copy of Kafka's data",
        )
    elif missing:
        yield Finding(
            "topics",
            Level.WRONG,
            f"there is no {', '.join(missing)}",
            "Workers stop: what they say could not be published",
            "Run `turnstile topics create`, then start the workers again",
        )
    counts = {name: topic.partitions for name, topic in known.items()}
    if len(set(counts.values())) > 1:
        yield Finding(
            "topics",
            Level.WRONG,
            f"their numbers of partitions differ: {counts}",
            "A user's partition is ambiguous, and nothing is decided",
            "See `turnstile status` for what to delete and to create",
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
                else "Records could be lost without a trace: workers decide nothing",
                f"`python -m kafka.admin -b {config.kafka} configs alter -r topic -n {title} "
                f"-c {setting}={wanted}`",
            )
        )
    yield from found or [Finding("topics", Level.OK, kept_and_copied(title, topic))]


def copies_of(title: str, topic: TopicFacts, area: str) -> Iterator[Finding]:
    """What is wrong with the copies of any topic, or that its settings cannot be seen."""
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
            f"{title}: of {topic.replicas} copies of a partition {topic.in_sync} are in step",
            "Fewer brokers may be lost than were meant to",
            "Look whether a broker is down or behind",
        )
    if not topic.settings:
        yield Finding(
            area,
            Level.WARNING,
            f"nobody here may see the settings of {title}",
            "They are not compared with what the service needs",
            "Give this user DescribeConfigs on it: `turnstile acl`",
        )


def kept_and_copied(title: str, topic: TopicFacts) -> str:
    """What there is to say of a topic with which nothing is wrong."""
    kept = topic.settings.get("retention.ms", "-1")
    for_ever = "for ever" if int(kept) < 0 else f"for {int(kept) / 86_400_000:g} days"
    if "compact" in topic.settings.get("cleanup.policy", ""):
        for_ever = "the last of each key"
    copies = "1 copy" if topic.replicas == 1 else f"{topic.replicas} copies"
    several = "1 partition" if topic.partitions == 1 else f"{topic.partitions} partitions"
    return f"{title}: {several}, {copies}, kept {for_ever}"


def _copies(name: str, title: str, topic: TopicFacts, kafka: KafkaFacts) -> list[Finding]:
    least = int(topic.settings.get("min.insync.replicas", "1"))
    if topic.replicas == 1:
        means = (
            "With the disk of one broker what was spent is lost, and cannot be computed again"
            if name == NORMS
            else "With the disk of one broker a Redis that is lost cannot be put back from it"
        )
        few = kafka.brokers < 3
        return [
            Finding(
                "topics",
                Level.WARNING,
                f"{title} has one copy of every record",
                means,
                ("Run three brokers, and have " if few else "Have ")
                + "three copies (`kafka-reassign-partitions`; TURNSTILE_REPLICATION=3 for topics "
                "that are created) and min.insync.replicas=2",
            )
        ]
    if least < 2:
        return [
            Finding(
                "topics",
                Level.WARNING,
                f"{title} has min.insync.replicas={least} with {topic.replicas} copies",
                "A charge counts as written when one broker has it, and is gone with that one",
                f"Set min.insync.replicas={topic.replicas - 1} for it",
            )
        ]
    if least >= topic.replicas:
        return [
            Finding(
                "topics",
                Level.WARNING,
                f"{title} has min.insync.replicas={least} of {topic.replicas} copies",
                "With any broker that is down nothing can be charged",
                f"Set min.insync.replicas={topic.replicas - 1} for it",
            )
        ]
    return []


def of_redis(facts: Facts, config: Config) -> Iterator[Finding]:
    """Whether it answers, and keeps what it is given."""
    if isinstance(facts.redis, str):
        yield Finding(
            "Redis",
            Level.WRONG,
            facts.redis,
            "Nothing is decided; nothing is lost, since the log has it",
            "Start Redis, or set TURNSTILE_REDIS. If it is lost: give the workers an empty one, "
            "and start them (docs/operations.md)",
        )
        return
    for server in facts.redis:
        for finding in _of_server(server):
            if len(facts.redis) > 1:
                finding = replace(finding, what=f"{server['address']}: {finding.what}")
            yield finding
    if not is_encrypted(config.redis) and not _is_here(config.redis):
        yield Finding(
            "Redis",
            Level.WARNING,
            "it is reached without encryption",
            "Whoever is on the way reads what users have spent, and could change it",
            "Use a URL that begins with rediss, and a user with the rights of its role: "
            "docs/security.md",
        )


def _of_server(redis: Mapping[str, Any]) -> Iterator[Finding]:
    used = int(redis.get("used_memory", 0))
    most = int(redis.get("maxmemory", 0)) or int(redis.get("total_system_memory", 0))
    told = f"{size_of(used)} used" + (f" of {size_of(most)}" if most else "")
    yield Finding(
        "Redis", Level.OK, f"answers: release {redis.get('redis_version', 'unknown')}, {told}"
    )
    policy = redis.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        limited = int(redis.get("maxmemory", 0)) > 0
        yield Finding(
            "Redis",
            Level.WRONG if limited else Level.WARNING,
            f"maxmemory-policy is {policy}",
            "Redis may drop what users have spent; workers refuse to start with it"
            if limited
            else "As soon as it has a maxmemory, it may drop what users have spent",
            "CONFIG SET maxmemory-policy noeviction, and the same in its file",
        )
    if most and used > 0.8 * most:
        yield Finding(
            "Redis",
            Level.WARNING,
            f"{told}: little memory is left",
            "When it is full, no write is taken, and nothing is decided",
            "Give it more, or close runs that have ended (`turnstile run close`)",
        )
    yield from _persistence(redis)
    if redis.get("role") == "slave":
        yield Finding(
            "Redis",
            Level.WRONG,
            "this is a replica, which takes no writes",
            "No worker can decide anything with it",
            "Set TURNSTILE_REDIS to the one it follows",
        )


def _persistence(redis: Mapping[str, Any]) -> Iterator[Finding]:
    by_log = int(redis.get("aof_enabled", 0))
    if not by_log:
        yield Finding(
            "Redis",
            Level.WARNING,
            "it has no append-only file",
            "Whenever it is started again, state is built again from snapshots and the log: "
            "nothing is lost, and nothing is decided meanwhile",
            "CONFIG SET appendonly yes, and the same in its file",
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
                "What is on its disk is old or not whole",
                "See its log: often the disk is full",
            )


def _is_here(addresses: str) -> bool:
    """Whether servers are on this machine."""
    if addresses.startswith("unix:"):
        return True
    urls = (one if "//" in one else f"//{one}" for one in addresses.split(","))
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return all(host in _LOOPBACK or host.startswith("127.") for host in hosts)
