"""The roles of a service, and the least rights that each of them needs.

Kafka's finest unit of access is a topic. So a client that may read ``odometer`` reads the
odometers of all users: the portal shows each user only the own one, and no role for users has that
right. A role that may write ``norms`` has no right to a TransactionalId. An open transaction would
block readers of committed records, and its control records would leave gaps in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from streams.config import ConfigurationError

TOPIC, GROUP, TRANSACTIONS = "topic", "group", "transactional-id"
RedisUse: TypeAlias = Literal["audit", "decide", "look", "rewrite"]
_EVERY_TOPIC = ("norms", "halts", "odometer", "rejects", "snapshots")
_OF_ANSWERERS = ("answers", "answers-state")


@dataclass(frozen=True)
class AccessRule:
    """The operations that a role may perform on one resource, or on all with a name prefix."""

    resource: str  # TOPIC, GROUP or TRANSACTIONS
    name: str  # of the resource, or the prefix
    operations: Sequence[str]  # by the names that Kafka and kafka-acls use
    prefixed: bool = False  # whether ``name`` is a prefix


@dataclass(frozen=True)
class Role:
    """A kind of principal."""

    does: str  # what the role is for
    topics: Mapping[str, Sequence[str]]  # topic -> operations
    redis: RedisUse | None = None  # how it uses Redis; None if it does not
    decides: bool = False  # is in the workers' consumer group, and writes in transactions
    consumes: bool = False  # reads events in its own consumer groups


_SEE = ("Describe",)
_ASK = {
    "norms": ("Describe", "Write"),
    "halts": ("Describe", "Read"),
    "rejects": ("Describe", "Read"),
    "odometer": _SEE,
    "snapshots": _SEE,
}

ROLES: Mapping[str, Role] = {
    "trainer": Role("charges runs, receives the decisions, and creates datasets", _ASK),
    "answerer": Role(
        "charges the queries that it answers, receives the decisions, and signs its answers",
        {**_ASK, **dict.fromkeys(_OF_ANSWERERS, ("Describe", "DescribeConfigs", "Read", "Write"))},
        consumes=True,
    ),
    "gateway": Role(
        "charges runs for its callers, and returns the decisions to them", _ASK, redis="look"
    ),
    "worker": Role(
        "applies the log, decides, and signs its decisions",
        {
            "norms": ("Describe", "DescribeConfigs", "Read"),
            "halts": ("Describe", "DescribeConfigs", "Write"),
            "odometer": ("Describe", "DescribeConfigs", "Read", "Write"),
            "rejects": ("Describe", "DescribeConfigs", "Write"),
            "snapshots": ("Describe", "DescribeConfigs", "Read", "Write"),
        },
        redis="decide",
        decides=True,
    ),
    "portal": Role(
        "shows each user the own spending and HALTs, and those of no other user",
        {
            **dict.fromkeys(_EVERY_TOPIC, _SEE),
            "halts": ("Describe", "Read"),
            "odometer": ("Describe", "Read"),
        },
        redis="look",
    ),
    "dashboard": Role(
        "shows operators the state of the service, answers and, after a login, events of users",
        {
            **dict.fromkeys(_EVERY_TOPIC, ("Describe", "DescribeConfigs")),
            "rejects": ("Describe", "DescribeConfigs", "Read"),
            "answers": ("Describe", "DescribeConfigs", "Read"),
            "answers-state": ("Describe", "DescribeConfigs"),
        },
        redis="look",
    ),
    "operator": Role(
        "creates topics and monitors the service; reads no record",
        dict.fromkeys(
            (*_EVERY_TOPIC, *_OF_ANSWERERS),
            ("AlterConfigs", "Create", "Describe", "DescribeConfigs"),
        ),
        redis="look",
    ),
    "auditor": Role(
        "reads everything and verifies what was spent; writes nothing",
        dict.fromkeys((*_EVERY_TOPIC, *_OF_ANSWERERS), ("Describe", "DescribeConfigs", "Read")),
        redis="audit",
    ),
    "trimmer": Role(
        "deletes records of the log that snapshots cover, and makes Redis rewrite its "
        "append-only file; the right to delete records includes deleting the topic",
        {
            **dict.fromkeys(_EVERY_TOPIC, ("Describe", "DescribeConfigs")),
            "norms": ("Delete", "Describe", "DescribeConfigs", "Read"),
            "snapshots": ("Describe", "DescribeConfigs", "Read"),
        },
        redis="rewrite",
    ),
}


def rules_of(role: str, prefix: str) -> list[AccessRule]:
    """Return the rights of a role under a prefix.

    Raises:
        ConfigurationError: the prefix is empty, so the rights would include the topics of others.
    """
    if not prefix:
        raise ConfigurationError(
            "the prefix is empty, so the rights would include the topics of every other service on "
            "these servers: give the service a prefix"
        )
    known = ROLES[role]
    rules = [
        AccessRule(TOPIC, f"{prefix}{topic}", operations)
        for topic, operations in known.topics.items()
    ]
    if known.consumes:
        rules.append(AccessRule(GROUP, f"{prefix}answerer-", ("Describe", "Read"), prefixed=True))
    if known.decides:
        rules.append(AccessRule(GROUP, f"{prefix}worker", ("Describe", "Read")))
        rules.append(AccessRule(TRANSACTIONS, prefix, ("Describe", "Write"), prefixed=True))
    return rules
