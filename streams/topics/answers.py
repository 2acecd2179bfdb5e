"""The topics of answerers: `answers`, for everybody, and `answers-state`, for answerers alone.

Each has one partition: the order of the marks in it decides which answer of a step there is.
Compaction takes away those marks that an answerer has forgotten, and no others: each has a key of
its own. Answers are kept for as long as the retention says that somebody has set; an answer that is
deleted is not answered again, since its mark is not deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from streams.config import Config
from streams.topics.clients import new_admin
from streams.topics.security import explained
from streams.topics.seen import TopicsUnavailable, UnusableTopics

ANSWERS, ANSWERS_STATE = "answers", "answers-state"
ANSWER_TOPICS: Final = (ANSWERS, ANSWERS_STATE)
ANSWER_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    ANSWERS: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    },
    # What is forgotten is cleaned away by whole segments only, and all that is there is read by an
    # answerer that starts.
    ANSWERS_STATE: {
        "cleanup.policy": "compact",
        "segment.bytes": str(16 * 1024 * 1024),
        "unclean.leader.election.enable": "false",
    },
}
"""With what they are created."""

ANSWER_NEEDS: Final = ("cleanup.policy", "unclean.leader.election.enable")
"""Without these marks could be lost, or never go; the others are for whoever runs it to choose."""


def ensure_answer_topics(config: Config) -> None:
    """Create those that do not exist yet, and look at those that do. Safe to call again.

    Raises:
        UnusableTopics: marks could be lost with what there is.
        TopicsUnavailable: no broker, or this user may not do that.
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
            f"the topics of answers at {config.kafka}: {explained(error)}"
        ) from error


def _ensure(admin: KafkaAdminClient, config: Config, name: str) -> None:
    topic = config.topic(name)
    found: list[dict[str, Any]] = []
    with suppress(UnknownTopicOrPartitionError):
        found = [entry for entry in admin.describe_topics([topic]) if entry["partitions"]]
    if not found:
        options = {
            "num_partitions": 1,
            "replication_factor": config.replication,
            "configs": dict(ANSWER_SETTINGS[name]),
        }
        with suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: options}, wait_for_metadata=True)
        return
    partitions = len(found[0]["partitions"])
    if partitions != 1:
        raise UnusableTopics(
            f"topic {topic} has {partitions} partitions, and the order of one says what was "
            "answered: delete it, if nothing was answered yet, and create it with one"
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
            f"topic {topic} has {wrong} where {needed} is needed: marks could be lost, or never "
            "go. Change its settings, then start again"
        )
