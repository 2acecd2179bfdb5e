"""The topics of answerers: `answers`, for all readers, and `answers-state`, for answerers only.

Each has one partition: the order of the journal entries decides which answer of a step counts.
Each journal entry has its own key, so compaction removes only entries that an answerer has
deleted. Answers are retained as the operator has configured. A deleted answer is not answered
again, because its journal entry stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from streams.config import Config
from streams.kafka.kafka_clients import administering
from streams.kafka.results import UnusableTopics
from streams.kafka.topics import CLEANED, create_topic, described_topics, unsuitable
from streams.records import MAX_ANSWER_BYTES

logger = logging.getLogger("turnstile.topics")

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
    # Entries of open blocks name users.
    ANSWERS_STATE: {
        **CLEANED,
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
    with administering(config, "use the answer topics") as admin:
        for name in ANSWER_TOPICS:
            topic = config.topic(name)
            found = described_topics(admin, [topic])
            if not found:
                create_topic(admin, config, name, 1, ANSWER_SETTINGS[name])
            elif (partitions := len(found[topic]["partitions"])) != 1:
                raise UnusableTopics(
                    f"topic {topic} has {partitions} partitions, but answers need the order of a "
                    "single one: if nothing was answered yet, delete the topic and create it with "
                    "one partition"
                )
        needed = {
            name: {setting: settings[setting] for setting in ANSWER_NEEDS}
            for name, settings in ANSWER_SETTINGS.items()
        }
        if problem := unsuitable(admin, config, needed, logger.warning):
            raise UnusableTopics(problem)
