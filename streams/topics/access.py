"""Who may do what: the roles of a service, and the least that each of them needs.

Kafka's finest grain is a topic. So whoever may read ``odometer`` reads everybody's: a portal for
users shows each its own, and nobody else has that right. Whoever may write ``norms`` has no
TransactionalId, since a transaction that is left open would hold up those who read what is
committed, and its markers leave gaps in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from streams.config import ConfigurationError

TOPIC, GROUP, TRANSACTIONS = "topic", "group", "transactional-id"
RedisUse: TypeAlias = Literal["audit", "decide", "look", "rewrite"]
_EVERY_TOPIC = ("norms", "halts", "odometer", "rejects", "checkpoints")
_OF_ANSWERERS = ("answers", "answers-state")


@dataclass(frozen=True)
class Rule:
    """What a role may do with one thing, or with all whose names begin so.

    Attributes:
        resource: TOPIC, GROUP or TRANSACTIONS.
        name: of the resource.
        operations: by Kafka's names, as they are in kafka-acls.
        prefixed: whether ``name`` is how the names begin.
    """

    resource: str
    name: str
    operations: Sequence[str]
    prefixed: bool = False


@dataclass(frozen=True)
class Role:
    """A kind of principal.

    Attributes:
        does: what it is there for.
        topics: topic -> operations.
        redis: what it does in Redis; None: nothing.
    """

    does: str
    topics: Mapping[str, Sequence[str]]
    redis: RedisUse | None = None
    decides: bool = False  # belongs to the group of the workers, and fences who did before
    consumes: bool = False  # reads events, in groups of its own, and signs what it answers


_SEE = ("Describe",)
_ASK = {
    "norms": ("Describe", "Write"),
    "halts": ("Describe", "Read"),
    "rejects": ("Describe", "Read"),
    "odometer": _SEE,
    "checkpoints": _SEE,
}

ROLES: Mapping[str, Role] = {
    "trainer": Role("charges runs, hears its decisions, and creates datasets", _ASK),
    "answerer": Role(
        "charges the queries that it answers, hears its decisions, and signs its answers",
        {**_ASK, **dict.fromkeys(_OF_ANSWERERS, ("Describe", "DescribeConfigs", "Read", "Write"))},
        consumes=True,
    ),
    "worker": Role(
        "applies the log, decides, and signs what it decided",
        {
            "norms": ("Describe", "DescribeConfigs", "Read"),
            "halts": ("Describe", "DescribeConfigs", "Write"),
            "odometer": ("Describe", "DescribeConfigs", "Read", "Write"),
            "rejects": ("Describe", "DescribeConfigs", "Write"),
            "checkpoints": ("Describe", "DescribeConfigs", "Read", "Write"),
        },
        redis="decide",
        decides=True,
    ),
    "portal": Role(
        "shows each user what that user has spent and was left out of, and nobody else's",
        {
            **dict.fromkeys(_EVERY_TOPIC, _SEE),
            "halts": ("Describe", "Read"),
            "odometer": ("Describe", "Read"),
        },
        redis="look",
    ),
    "dashboard": Role(
        "shows operators how the service is, and behind a login what happens to people in it",
        {
            **dict.fromkeys(_EVERY_TOPIC, ("Describe", "DescribeConfigs")),
            "halts": ("Describe", "DescribeConfigs", "Read"),
            "odometer": ("Describe", "DescribeConfigs", "Read"),
            "rejects": ("Describe", "DescribeConfigs", "Read"),
        },
        redis="look",
    ),
    "operator": Role(
        "creates topics and watches the service; reads no record",
        dict.fromkeys(
            (*_EVERY_TOPIC, *_OF_ANSWERERS),
            ("AlterConfigs", "Create", "Describe", "DescribeConfigs"),
        ),
        redis="look",
    ),
    "auditor": Role(
        "reads everything and proves what was spent; writes nothing",
        dict.fromkeys((*_EVERY_TOPIC, *_OF_ANSWERERS), ("Describe", "DescribeConfigs", "Read")),
        redis="audit",
    ),
    "trimmer": Role(
        "deletes records of the log that checkpoints cover, and has Redis rewrite its append-only "
        "file; the right to delete records also deletes the topic",
        {
            **dict.fromkeys(_EVERY_TOPIC, ("Describe", "DescribeConfigs")),
            "norms": ("Delete", "Describe", "DescribeConfigs", "Read"),
            "checkpoints": ("Describe", "DescribeConfigs", "Read"),
        },
        redis="rewrite",
    ),
}


def rules_of(role: str, prefix: str) -> list[Rule]:
    """What a role may do, under a prefix.

    Raises:
        ConfigurationError: an empty prefix, under which other people's topics are as well.
    """
    if not prefix:
        raise ConfigurationError(
            "the prefix is empty, so rights could not be told from those of everybody else on "
            "these servers: give the service a prefix"
        )
    known = ROLES[role]
    rules = [
        Rule(TOPIC, f"{prefix}{topic}", operations) for topic, operations in known.topics.items()
    ]
    if known.consumes:
        rules.append(Rule(GROUP, f"{prefix}answerer-", ("Describe", "Read"), prefixed=True))
    if known.decides:
        rules.append(Rule(GROUP, f"{prefix}worker", ("Describe", "Read")))
        rules.append(Rule(TRANSACTIONS, prefix, ("Describe", "Write"), prefixed=True))
    return rules
