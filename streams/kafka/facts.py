"""Reads facts about Kafka and its topics, for diagnosis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAuthorizationFailedError

from streams.config import Config
from streams.kafka.answer_topics import ANSWER_SETTINGS
from streams.kafka.kafka_clients import administering
from streams.kafka.topics import MIN_IN_SYNC, NEEDED, described_topics, settings_of

_KEEPING = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True)
class TopicFacts:
    """The facts about one topic."""

    partitions: int
    replicas: int  # the minimum of all partitions
    in_sync: int  # the minimum of all partitions, now
    without_leader: list[int]  # partitions that cannot be read or written
    settings: dict[str, str]  # empty if this client may not see them


@dataclass(frozen=True)
class KafkaFacts:
    """The facts about one Kafka cluster that this client may see."""

    release: str  # the latest release whose requests it supports
    brokers: int
    topics: dict[str, TopicFacts]  # the existing topics, by name without the prefix
    # The existing topics of answerers, as above; None if this client may not see them.
    answers: dict[str, TopicFacts] | None = field(default_factory=dict)


def read_facts(config: Config) -> KafkaFacts:
    """Return the facts about Kafka that this client may see, or raise ``TopicsUnavailable``."""
    with administering(config, "look at the topics") as admin:
        return _facts(admin, config)


def _facts(admin: KafkaAdminClient, config: Config) -> KafkaFacts:
    # Not describe_cluster(): kafka-python 3.0 raises KeyError with brokers before Kafka 3.7.
    brokers = [broker.node_id for broker in admin._manager.cluster.brokers()]
    topics = _topics(admin, config, NEEDED)
    answers = None
    with suppress(TopicAuthorizationFailedError):  # some roles may not see them
        answers = _topics(admin, config, ANSWER_SETTINGS)
    version = admin.get_broker_version_data(brokers[0])
    return KafkaFacts(
        release=str(version).removeprefix("<BrokerVersionData ").rstrip(">"),
        brokers=len(brokers),
        topics=topics,
        answers=answers,
    )


def _topics(
    admin: KafkaAdminClient, config: Config, wanted: Mapping[str, Mapping[str, str]]
) -> dict[str, TopicFacts]:
    names = {name: config.topic(name) for name in wanted}
    described = described_topics(admin, list(names.values()))
    there = {name: topic for name, topic in names.items() if topic in described}
    asked = {topic: (*wanted[name], MIN_IN_SYNC) for name, topic in there.items()}
    settings = settings_of(admin, asked) if asked else {}
    topics = {}
    for name, topic in there.items():
        partitions = described[topic]["partitions"]
        topics[name] = TopicFacts(
            partitions=len(partitions),
            replicas=min(len(one["replica_nodes"]) for one in partitions),
            in_sync=min(len(one["isr_nodes"]) for one in partitions),
            without_leader=[one["partition_index"] for one in partitions if one["leader_id"] < 0],
            settings=settings.get(topic, {}),
        )
    return topics


def read_inputs(config: Config, topics: Collection[str]) -> dict[str, dict[str, str] | None]:
    """Return the retention settings of event topics; None for a topic that does not exist.

    A topic that this client may not see is left out. Without Kafka: ``TopicsUnavailable``.
    """
    found: dict[str, dict[str, str] | None] = {}
    with administering(config, "look at the topics of events") as admin:
        for topic in topics:
            with suppress(TopicAuthorizationFailedError):
                there = described_topics(admin, [topic])
                asked = {topic: _KEEPING}
                found[topic] = settings_of(admin, asked)[topic] if there else None
    return found
