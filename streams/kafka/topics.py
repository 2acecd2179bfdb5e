"""The topics of the service: partitions, retention and record sizes.

Workers create missing topics. They compare the existing ones with what the service needs, at the
start and while they run: a record that Kafka deletes before it is applied would be a charge that
is never counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TypeVar
from uuid import UUID

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from streams.config import Config
from streams.kafka.kafka_clients import new_admin
from streams.kafka.results import TopicsSeen, TopicsUnavailable, UnusableTopics
from streams.kafka.security import explained
from streams.records.digests import NO_TOPIC

logger = logging.getLogger("turnstile.topics")

T = TypeVar("T")

_DAY_MS = 24 * 60 * 60 * 1000
_MEBIBYTE = 1024 * 1024

NORMS, HALTS, ODOMETER, REJECTS = "norms", "halts", "odometer", "rejects"
SNAPSHOTS = "snapshots"
TOPICS = (NORMS, HALTS, ODOMETER, REJECTS, SNAPSHOTS)
CLIENT_TOPICS = (NORMS, HALTS, ODOMETER, REJECTS)
"""The topics of clients. Only workers and operators use snapshots."""

CLEANED = {
    "cleanup.policy": "compact",
    "segment.ms": str(_DAY_MS),
    "max.compaction.lag.ms": str(_DAY_MS),
    "delete.retention.ms": str(_DAY_MS),
}
"""Kafka removes a superseded record when its segment is closed and compacted, and a tombstone some
time after that. By default a segment stays open for a week, and compaction waits until half of the
partition is superseded. Ids of erased users have to be gone within days."""

SETTINGS: dict[str, dict[str, str]] = {
    # The log is the source of truth: nothing may be deleted from it.
    NORMS: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    },
    HALTS: {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * _DAY_MS),
        "segment.ms": str(_DAY_MS),
    },
    ODOMETER: CLEANED,
    REJECTS: {
        "cleanup.policy": "delete",
        "retention.ms": str(30 * _DAY_MS),
        "segment.ms": str(_DAY_MS),
        # A rejection quotes its record, which may have arrived compressed to a thousandth.
        "compression.type": "gzip",
    },
    # A worker that restores a state reads all segments; small ones are compacted sooner.
    SNAPSHOTS: {
        **CLEANED,
        "segment.bytes": str(64 * _MEBIBYTE),
        "unclean.leader.election.enable": "false",
    },
}
"""The settings with which the topics are created.

In topics that clients write to, the client chooses the compression. To compress their records in
another way, the broker would have to expand them, and 600 KB can expand to more than its memory.
Only workers write to rejects. Every client can read gzip.
"""

NEEDED: dict[str, dict[str, str]] = {
    topic: {**settings, "max.message.bytes": str(_MEBIBYTE)} for topic, settings in SETTINGS.items()
}
"""The settings that existing topics need. Brokers take records of 1 MiB by default."""

MIN_IN_SYNC: Final = "min.insync.replicas"
"""How many brokers must have a record before Kafka acknowledges it."""
_COPIES, _IN_SYNC = 3, 2
"""With fewer copies, ``_IN_SYNC`` would stop all writers whenever one broker is down."""

_LINGERS = "Ids of erased users stay longer on the broker's disk than docs/operate/erasure.md says"
_AT_MOST = ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms")
"""Settings whose value is a maximum; the value of any other numeric setting is a minimum."""

WISHES: Mapping[tuple[str, str], str] = {
    (NORMS, "max.message.bytes"): "Large requests are rejected",
    (HALTS, "retention.ms"): "Trainers that are offline for longer miss decisions",
    (REJECTS, "retention.ms"): "Reasons of rejections are deleted early",
    (REJECTS, "compression.type"): "A rejected record takes its expanded size",
    (SNAPSHOTS, "segment.bytes"): "A worker that restores a state reads superseded records",
    (SNAPSHOTS, "unclean.leader.election.enable"): "The last snapshot may be lost",
    (SNAPSHOTS, "max.message.bytes"): "Snapshots cannot be written",
    **{
        (topic, setting): _LINGERS
        for topic in (HALTS, REJECTS, ODOMETER, SNAPSHOTS)
        for setting in _AT_MOST
    },
}
"""Recommended settings, and what happens without them. No charge is lost without them."""


class Topics:
    """Creates and checks the topics. Blocks while Kafka answers; any thread may call it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._admin: KafkaAdminClient | None = None
        self._lock = Lock()
        self._warned: set[str] = set()

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._disconnect()

    def ensure(self) -> TopicsSeen:
        """Create the topics that do not exist yet. Any number of processes may call it at once.

        Raises:
            UnusableTopics: the existing topics cannot be used as they are.
            TopicsUnavailable: no broker answers.
        """
        with self._lock:
            seen = self._ask(self._create)
        if seen.problem:
            raise UnusableTopics(seen.problem)
        if self._config.partitions not in (seen.partitions, Config.partitions):
            self._warn(
                f"partitions is {self._config.partitions}, but {self._config.topic(NORMS)} has "
                f"{seen.partitions}: the setting has no effect on existing topics"
            )
        return seen

    def look(self) -> TopicsSeen:
        """Return the current state of the topics, or raise ``TopicsUnavailable``."""
        with self._lock:
            return self._ask(self._look)

    def extents(self, partitions: int) -> list[tuple[int, int]]:
        """Return the start and end offsets of each partition of norms, or ``TopicsUnavailable``."""
        places = [TopicPartition(self._config.topic(NORMS), p) for p in range(partitions)]

        def ask(admin: KafkaAdminClient) -> list[tuple[int, int]]:
            found = [
                admin.list_partition_offsets(dict.fromkeys(places, which))
                for which in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            ]
            return [(found[0][place].offset, found[1][place].offset) for place in places]

        with self._lock:
            return self._ask(ask)

    def _ask(self, question: Callable[[KafkaAdminClient], T]) -> T:
        try:
            if self._admin is None:
                self._admin = new_admin(self._config)
            return question(self._admin)
        except KafkaError as error:
            self._disconnect()
            raise TopicsUnavailable(
                f"cannot use the topics at {self._config.kafka}: {explained(error)}"
            ) from error

    def _disconnect(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(KafkaError, OSError):
                admin.close()

    def _create(self, admin: KafkaAdminClient) -> TopicsSeen:
        partitions = self._config.partitions
        for name in TOPICS:
            if found := described_topics(admin, [self._config.topic(name)]):
                if name == NORMS:  # a topic that a later release adds gets as many partitions
                    partitions = len(found[self._config.topic(name)]["partitions"])
            else:
                create_topic(admin, self._config, name, partitions, SETTINGS[name])
        return self._look(admin)

    def _look(self, admin: KafkaAdminClient) -> TopicsSeen:
        names = {name: self._config.topic(name) for name in TOPICS}
        described = described_topics(admin, list(names.values()))
        norms = described.get(names[NORMS])
        if norms is None:
            gone = f"there is no topic {names[NORMS]}, the log of everything that was spent"
            return TopicsSeen(NO_TOPIC, 0, gone)
        counts = {topic: len(found["partitions"]) for topic, found in described.items()}
        there = {name: NEEDED[name] for name, topic in names.items() if topic in described}
        problem = _uneven(counts) or unsuitable(admin, self._config, there, self._warn)
        return TopicsSeen(topic_id_of(norms), counts[names[NORMS]], problem)

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", what)


def unsuitable(
    admin: KafkaAdminClient,
    config: Config,
    needed: Mapping[str, Mapping[str, str]],
    warn: Callable[[str], None],
) -> str | None:
    """Return which settings would lose records and what to do; None if none would.

    Args:
        needed: by topic, without the prefix, and setting.
        warn: receives what is recommended, or cannot be seen.
    """
    topics = {name: config.topic(name) for name in needed}
    found = settings_of(admin, {topics[name]: tuple(needed[name]) for name in needed})
    wrong: list[tuple[str, str, str, str]] = []
    for name, topic in topics.items():
        if not found[topic]:
            warn(f"this user may not see the settings of {topic}: they are not checked")
        for setting, value in needed[name].items():
            actual = found[topic].get(setting, value)
            if suits(setting, actual, value):
                continue
            if (name, setting) in WISHES:
                warn(f"{topic} has {setting}={actual}, {value} is recommended")
            else:
                wrong.append((topic, setting, actual, value))
    if not wrong:
        return None
    problems = [
        f"topic {topic} has {setting}={actual} where {value} is needed"
        for topic, setting, actual, value in wrong
    ]
    commands = [
        f"`python -m kafka.admin -b {config.kafka} configs alter -r topic -n {topic} "
        + " ".join(f"-c {setting}={value}" for one, setting, _, value in wrong if one == topic)
        + "`"
        for topic in dict.fromkeys(topic for topic, *_ in wrong)
    ]
    return (
        f"{'; '.join(problems)}: records could be lost without a trace. "
        f"Change it with {' and '.join(commands)}, then start again"
    )


def create_topic(
    admin: KafkaAdminClient, config: Config, name: str, partitions: int, settings: Mapping[str, str]
) -> None:
    """Create a topic, unless another process has just created it.

    From three copies on, Kafka acknowledges a record when two brokers have it, so that the loss of
    one loses no record and stops no writer. A higher default of the brokers is kept, if Kafka
    shows it.
    """
    topic, copies = config.topic(name), config.replication
    options = {
        "num_partitions": partitions,
        "replication_factor": copies,
        "configs": dict(settings),
    }
    with suppress(TopicAlreadyExistsError):
        if copies >= _COPIES and _default_in_sync(admin, topic, options) < _IN_SYNC:
            options["configs"] = {**settings, MIN_IN_SYNC: str(_IN_SYNC)}
        admin.create_topics({topic: options}, wait_for_metadata=True)


def _default_in_sync(admin: KafkaAdminClient, topic: str, options: Mapping[str, Any]) -> int:
    """Return what ``min.insync.replicas`` would be without a value of our own."""
    (planned,) = admin.create_topics({topic: options}, validate_only=True)["topics"]
    return int(planned.get("configs", {}).get(MIN_IN_SYNC, {}).get("value") or 1)


def ensure_topics(config: Config) -> int:
    """Create missing topics, and return P, their number of partitions, or ``TopicsUnavailable``."""
    with Topics(config) as topics:
        return topics.ensure().partitions


def find_topics(admin: KafkaAdminClient, config: Config) -> TopicsSeen:
    """Return the state of the topics that clients use: P, which all share, and the id of norms.

    Raises:
        TopicsUnavailable: the topics do not exist yet, or they differ in P, so the partition of a
            user would be ambiguous.
    """
    names = [config.topic(name) for name in CLIENT_TOPICS]
    described = described_topics(admin, names)
    missing = sorted(name for name in names if name not in described)
    if missing:
        raise TopicsUnavailable(f"no such topics: {', '.join(missing)}")
    counts = {name: len(described[name]["partitions"]) for name in names}
    if problem := _uneven(counts):
        raise UnusableTopics(problem)
    norms = described[config.topic(NORMS)]
    return TopicsSeen(topic_id_of(norms), len(norms["partitions"]), None)


def _uneven(counts: Mapping[str, int]) -> str | None:
    if len(set(counts.values())) == 1:
        return None
    return (
        f"the topics differ in their number of partitions: {dict(counts)}. A user's partition is "
        "ambiguous, and Kafka takes no partition away: delete and create the topics halts, "
        "odometer, rejects and snapshots with as many partitions as norms had when its first "
        "dataset was created, and, if partitions were added to norms itself, see "
        "`turnstile status`"
    )


def described_topics(admin: KafkaAdminClient, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the descriptions of those of these topics that exist."""
    try:
        found = admin.describe_topics(names)
    except UnknownTopicOrPartitionError:
        return {}
    return {entry["name"]: entry for entry in found if entry["partitions"]}


def topic_id_of(described: Mapping[str, Any]) -> bytes:
    """Return the 16 bytes of a topic's id; zeros from a broker without topic ids."""
    found = described.get("topic_id")
    if found is None:
        return NO_TOPIC
    return (found if isinstance(found, UUID) else UUID(str(found))).bytes


def settings_of(
    admin: KafkaAdminClient, asked: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
    """Return topic -> setting -> value; settings that this user may not see are left out."""
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(settings, ""))
        for topic, settings in asked.items()
    ]
    answer = admin.describe_configs(resources, config_filter="all").get("topic", {})
    return {
        topic: {
            setting: described["value"]
            for setting, described in answer.get(topic, {}).items()
            if described.get("value") is not None
        }
        for topic in asked
    }


def suits(setting: str, actual: str, wanted: str) -> bool:
    """Return whether the value of a setting retains as much as needed, and not longer than
    allowed.
    """
    if not wanted.lstrip("-").isdecimal():
        return actual == wanted
    number, least = int(actual), int(wanted)
    if setting in _AT_MOST:
        return number <= least
    if setting.startswith("retention"):
        return number < 0 or 0 <= least <= number
    return number >= least
