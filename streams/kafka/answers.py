"""The topics of answerers: `answers`, for all readers, and `answers-state`, for answerers only.

Each has one partition: the order of the journal entries decides which answer of a step counts.
Each journal entry has its own key, so compaction removes only entries that an answerer has
deleted. Answers are retained as the operator has configured. A deleted answer is not answered
again, because its journal entry stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from streams.config import Config
from streams.kafka.clients import new_admin
from streams.kafka.results import TopicsUnavailable, UnusableTopics
from streams.kafka.security import explained
from streams.kafka.topics import create_topic
from streams.records import MAX_ANSWER_BYTES

ANSWERS, ANSWERS_STATE = "answers", "answers-state"
ANSWER_TOPICS: Final = (ANSWERS, ANSWERS_STATE)
ANSWER_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    ANSWERS: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    },
    # Kafka cleans whole segments only, and a starting answerer reads everything that is left.
    ANSWERS_STATE: {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 * 1024 * 1024),
        "max.message.bytes": str(MAX_ANSWER_BYTES + 1024 * 1024),
        "unclean.leader.election.enable": "false",
    },
}
"""The settings with which the topics are created."""

ANSWER_NEEDS: Final = ("cleanup.policy", "unclean.leader.election.enable")
"""Without these settings, journal entries could be lost or never deleted. The operator may choose
the others."""


def ensure_answer_topics(config: Config) -> None:
    """Create the topics that do not exist yet, and check those that do. Safe to call again.

    Raises:
        UnusableTopics: journal entries could be lost with the existing settings.
        TopicsUnavailable: no broker answers, or this user may not create topics.
    """
    try:
        admin = new_admin(config)
        try:
            for name in ANSWER_TOPICS:
                _ensure(admin, config, name)
        finally:
            admin.close()
    except KafkaError as error:
        raise TopicsUnavailable(
            f"cannot use the answer topics at {config.kafka}: {explained(error)}"
        ) from error


def has_answer_topics(config: Config) -> bool:
    """Return whether an answerer has ever used this log.

    Raises:
        TopicsUnavailable: no broker answers.
    """
    try:
        admin = new_admin(config)
        try:
            return bool(_found(admin, config.topic(ANSWERS_STATE)))
        finally:
            admin.close()
    except KafkaError as error:
        raise TopicsUnavailable(
            f"cannot look for the answer topics at {config.kafka}: {explained(error)}"
        ) from error


def _found(admin: KafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    with suppress(UnknownTopicOrPartitionError):
        return [entry for entry in admin.describe_topics([topic]) if entry["partitions"]]
    return []


def _ensure(admin: KafkaAdminClient, config: Config, name: str) -> None:
    topic = config.topic(name)
    found = _found(admin, topic)
    if not found:
        create_topic(admin, config, name, 1, ANSWER_SETTINGS[name])
        return
    partitions = len(found[0]["partitions"])
    if partitions != 1:
        raise UnusableTopics(
            f"topic {topic} has {partitions} partitions, but answers need the order of a single "
            "one: if nothing was answered yet, delete the topic and create it with one partition"
        )
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(ANSWER_NEEDS, ""))
    settings = admin.describe_configs([asked], config_filter="all").get("topic", {}).get(topic, {})
    wrong = {
        setting: settings[setting]["value"]
        for setting in ANSWER_NEEDS
        if setting in settings
        and settings[setting]["value"] not in (ANSWER_SETTINGS[name][setting], None)
    }
    if wrong:
        needed = {setting: ANSWER_SETTINGS[name][setting] for setting in wrong}
        raise UnusableTopics(
            f"topic {topic} has {wrong} where {needed} is needed: journal entries could be lost, "
            "or never deleted. Change its settings, then start again"
        )
