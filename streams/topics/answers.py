"""The topics of answerers: `answers`, for everybody, and `answers-state`, for answerers alone.

Each has one partition: the order of the marks in it decides which answer of a step there is. What
is deleted of it could be answered once more, so nothing is; a mark takes some hundred bytes.
"""

from __future__ import annotations

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
ANSWER_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}


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
                _ensure(admin, config, config.topic(name))
        finally:
            admin.close()
    except KafkaError as error:
        raise TopicsUnavailable(
            f"the topics of answers at {config.kafka}: {explained(error)}"
        ) from error


def _ensure(admin: KafkaAdminClient, config: Config, topic: str) -> None:
    found: list[dict[str, Any]] = []
    with suppress(UnknownTopicOrPartitionError):
        found = [entry for entry in admin.describe_topics([topic]) if entry["partitions"]]
    if not found:
        options = {
            "num_partitions": 1,
            "replication_factor": config.replication,
            "configs": ANSWER_SETTINGS,
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
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(ANSWER_SETTINGS, ""))
    settings = admin.describe_configs([asked], config_filter="all").get("topic", {}).get(topic, {})
    wrong = {
        name: settings[name]["value"]
        for name, wanted in ANSWER_SETTINGS.items()
        if name in settings and settings[name]["value"] not in (wanted, None)
    }
    if wrong:
        raise UnusableTopics(
            f"topic {topic} has {wrong} where {ANSWER_SETTINGS} is needed: what is deleted could "
            "be answered once more. Change its settings, then start again"
        )
