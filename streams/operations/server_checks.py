"""The checks of Kafka, its topics and Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from streams.config import Config
from streams.kafka.facts import KafkaFacts, TopicFacts
from streams.kafka.topics import MIN_IN_SYNC, NEEDED, NORMS, SNAPSHOTS, TOPICS, WISHES, suits
from streams.operations.check_tables import Facts, Level, Row, Table
from streams.operations.status import Overview, PartitionState
from streams.redis_address import is_encrypted

_LOOPBACK = ("localhost", "::1", "")


def of_kafka(facts: Facts, config: Config) -> Iterator[Table]:
    """Yield the checks of Kafka and of the topics of the service."""
    kafka = facts.kafka
    if isinstance(kafka, str):
        means = "Nothing can be charged or decided"
        do = (
            "Start the broker, or set TURNSTILE_KAFKA and the settings for its login "
            "(docs/operate/security.md)"
        )
        yield Table("Kafka", [(Level.WRONG, kafka, means, do)])
        return
    many = f"{kafka.brokers} broker{'s' if kafka.brokers > 1 else ''}"
    about = {"brokers": kafka.brokers, "release": kafka.release}
    answers = f"{config.kafka} answers: {many} of Kafka {kafka.release}"
    yield Table("Kafka", [(Level.OK, answers)], about)
    is_open = not config.kafka_security.endswith("SSL") and not _is_here(config.kafka)
    known = kafka.topics
    missing = [config.topic(name) for name in TOPICS if name not in known]
    counts = {name: topic.partitions for name, topic in known.items()}
    yield Table(
        "Kafka",
        [
            (
                is_open and Level.WARNING,
                f"the connection to {config.kafka} is not encrypted",
                "An observer of the network reads norms and HALTs, and could change them",
                "Set TURNSTILE_KAFKA_SECURITY=SASL_SSL, and give each role its rights: "
                "docs/operate/security.md",
            )
        ],
    )
    yield Table(
        "topics",
        [
            (
                NORMS not in known and Level.WRONG,
                f"there is no {config.topic(NORMS)}, the log of all spending",
                "Nothing can be charged. If the topic existed, it was deleted",
                "The first worker creates it, or `turnstile topics create`. If users were charged "
                "before: restore it, with its id, from a copy of Kafka's data",
            ),
            (
                NORMS in known and missing and Level.WRONG,
                f"there is no {', '.join(missing)}",
                "Workers exit, because their answers could not be published",
                "Run `turnstile topics create`, and start the workers again",
            ),
            (
                len(set(counts.values())) > 1 and Level.WRONG,
                f"their numbers of partitions differ: {counts}",
                "A user's partition is ambiguous, so nothing is decided",
                "`turnstile status` says which topics to delete and to create",
            ),
        ],
    )
    for name, topic in known.items():
        title = config.topic(name)
        rows = [
            *copies_of(title, topic),
            *(_copies(name, title, topic, kafka) if name in (NORMS, SNAPSHOTS) else ()),
            *(
                setting_of(
                    config,
                    title,
                    topic,
                    setting,
                    wanted,
                    WISHES.get((name, setting)),
                    "Records could be lost unnoticed, so workers decide nothing",
                )
                for setting, wanted in NEEDED[name].items()
            ),
        ]
        yield Table("topics", rows, {"topic": title})


def setting_of(
    config: Config,
    title: str,
    topic: TopicFacts,
    setting: str,
    wanted: str,
    advised: str | None,
    needed: str,
) -> Row:
    """Return the check of a topic's setting.

    Args:
        wanted: the value that suits.
        advised: what follows from another value, if the value is only advised.
        needed: what follows from another value otherwise.
    """
    actual = topic.settings.get(setting)
    differs = actual is not None and not suits(setting, actual, wanted)
    return (
        differs and (Level.WARNING if advised else Level.WRONG),
        f"{title} has {setting}={actual}, and {wanted} is {'advised' if advised else 'needed'}",
        advised or needed,
        altering(config, title, setting, wanted),
    )


def altering(config: Config, title: str, setting: str, value: str) -> str:
    """Return the command that changes a setting of a topic."""
    return (
        f"`python -m kafka.admin -b {config.kafka} configs alter -r topic -n {title} "
        f"-c {setting}={value}`"
    )


def copies_of(title: str, topic: TopicFacts) -> Iterator[Row]:
    """Yield the checks of every topic."""
    kept = int(topic.settings.get("retention.ms", "-1"))
    for_ever = "forever" if kept < 0 else f"for {kept / 86_400_000:g} days"
    if "compact" in topic.settings.get("cleanup.policy", ""):
        for_ever = "the last of each key"
    copies = "1 copy" if topic.replicas == 1 else f"{topic.replicas} copies"
    several = "1 partition" if topic.partitions == 1 else f"{topic.partitions} partitions"
    yield (
        topic.without_leader and Level.WRONG,
        f"{title} has no leader of partitions {topic.without_leader}",
        "Nothing can be read or written there",
        "Start the brokers that have their copies",
    )
    yield (
        topic.in_sync < topic.replicas and Level.WARNING,
        f"{title}: {topic.in_sync} of {topic.replicas} copies of a partition are in sync",
        "Fewer brokers can be lost than planned",
        "Check whether a broker is down or behind",
    )
    yield (
        not topic.settings and Level.WARNING,
        f"this user may not see the settings of {title}",
        "They are not compared with the needs of the service",
        "Give this user DescribeConfigs on it: `turnstile acl`",
    )
    yield Level.OK, f"{title}: {several}, {copies}, kept {for_ever}"


def _copies(name: str, title: str, topic: TopicFacts, kafka: KafkaFacts) -> Iterator[Row]:
    """Yield the checks of a topic from which a lost record cannot be computed again."""
    least, copies = int(topic.settings.get(MIN_IN_SYNC, "1")), topic.replicas
    what = f"{title} has {MIN_IN_SYNC}={least} with {copies} copies"
    do = f"Set {MIN_IN_SYNC}={copies - 1} for it"
    if copies < 3:  # any value loses records with one broker, or stops with one
        do = (
            ("Run three brokers, and have " if kafka.brokers < 3 else "Have ")
            + "three copies (`kafka-reassign-partitions`; TURNSTILE_REPLICATION=3 for topics "
            f"that are created) and {MIN_IN_SYNC}=2"
        )
    lost = "all spending is lost and cannot be computed again"
    if name != NORMS:
        lost = "a lost Redis cannot be restored from it"
    means = f"If one broker loses its disk, {lost}"
    yield copies == 1 and Level.WARNING, f"{title} has one copy of every record", means, do
    means = "A charge counts as written once one broker has it, and is lost with that broker"
    yield least < 2 <= copies and Level.WARNING, what, means, do
    means = "While any broker is down, nothing can be charged"
    yield 2 <= copies <= least and Level.WARNING, what, means, do


def of_redis(facts: Facts, config: Config) -> Iterator[Table]:
    """Yield the checks of Redis."""
    if isinstance(facts.redis, str):
        means = "Nothing is decided. Nothing is lost, because the log has all records"
        do = (
            "Start Redis, or set TURNSTILE_REDIS. If its data are lost, start the workers with an "
            "empty Redis (docs/operate/redis.md)"
        )
        yield Table("Redis", [(Level.WRONG, facts.redis, means, do)])
        return
    # The owners of these partitions have just stored a heartbeat.
    is_written = isinstance(facts.overview, Overview) and all(
        one.state is PartitionState.DECIDING for one in facts.overview.partitions
    )
    for server in facts.redis:
        name = f"{server['address']}: " if len(facts.redis) > 1 else ""
        yield from _of_server(server, name, is_written)
    is_open = not is_encrypted(config.redis) and not _is_here(config.redis)
    yield Table(
        "Redis",
        [
            (
                is_open and Level.WARNING,
                "the connection is not encrypted",
                "An observer of the network reads the users' spending, and could change it",
                "Use a URL that begins with rediss, and a user with the rights of the role: "
                "docs/operate/security.md",
            )
        ],
    )


def _of_server(redis: Mapping[str, Any], name: str, is_written: bool) -> Iterator[Table]:
    """Yield the checks of a server, from its INFO."""
    used, limit = int(redis.get("used_memory", 0)), int(redis.get("maxmemory", 0))
    most = limit or int(redis.get("total_system_memory", 0))
    is_full = 0 < limit < used - int(redis.get("mem_not_counted_for_evict", 0))
    memory = f"{_size(used)} used" + (f" of {_size(most)}" if most else "")
    policy, appends = redis.get("maxmemory_policy"), int(redis.get("aof_enabled", 0))
    refuses, exits = f"{name}Redis refuses writes", "Workers exit, and nothing is decided"
    full_disk = "Read its log: often the disk is full"
    outdated = "The data on its disk are outdated or incomplete"

    def failed(field: str) -> bool:
        return bool(redis.get(field, "ok") != "ok")

    about = {"redis": redis["address"]}
    release = redis.get("redis_version", "unknown")
    yield Table("Redis", [(Level.OK, f"{name}answers: release {release}, {memory}")], about)
    rows: list[Row] = [
        (
            redis.get("role") == "slave" and Level.WRONG,
            f"{refuses} (READONLY): this is a replica",
            exits,
            "Set TURNSTILE_REDIS to its master",
        ),
        (
            is_full and Level.WRONG,
            f"{refuses} (OOM): {memory}",
            exits,
            "Raise maxmemory, or give it more memory. Delete nothing",
        ),
        (
            appends and failed("aof_last_write_status") and Level.WRONG,
            f"{refuses} (MISCONF): the last write of its append-only file failed",
            exits,
            full_disk,
        ),
        # INFO lacks the setting stop-writes-on-bgsave-error, so heartbeats show whether it is on.
        (
            failed("rdb_last_bgsave_status") and not is_written and Level.WRONG,
            f"{refuses} (MISCONF): its last copy to disk failed",
            exits,
            f"{full_disk}. When there is room, run BGSAVE",
        ),
        (
            failed("rdb_last_bgsave_status") and is_written and Level.WARNING,
            f"{name}its last copy to disk failed",
            outdated,
            full_disk,
        ),
        (
            failed("aof_last_bgrewrite_status") and Level.WARNING,
            f"{name}the last rewriting of its append-only file failed",
            outdated,
            full_disk,
        ),
        (
            policy not in (None, "noeviction") and (Level.WRONG if limit else Level.WARNING),
            f"{name}maxmemory-policy is {policy}",
            "Redis may delete users' spending, so workers refuse to start"
            if limit
            else "Once Redis has a maxmemory, it may delete users' spending",
            "Run CONFIG SET maxmemory-policy noeviction, and set it in the configuration file",
        ),
        (
            not is_full and used > 0.8 * most > 0 and Level.WARNING,
            f"{name}{memory}: little memory is left",
            "When the memory is full, Redis rejects writes, and nothing is decided",
            "Add memory, or close runs that have ended (`turnstile run close`)",
        ),
        (
            not appends and Level.WARNING,
            f"{name}there is no append-only file",
            "After each restart of Redis, the state is restored from snapshots and the log: "
            "nothing is lost, but nothing is decided meanwhile",
            "Run CONFIG SET appendonly yes, and set it in the configuration file",
        ),
    ]
    yield Table("Redis", rows, about)


def _is_here(addresses: str) -> bool:
    """Return whether all servers are on this machine."""
    if addresses.startswith("unix:"):
        return True
    urls = (one if "//" in one else f"//{one}" for one in addresses.split(","))
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return all(host in _LOOPBACK or host.startswith("127.") for host in hosts)


def _size(size: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
