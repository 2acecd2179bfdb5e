"""Grants rights and sets passwords in Kafka."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streams.config import Config
from streams.kafka.access import AccessRule
from streams.kafka.kafka_clients import administering
from streams.kafka.results import TopicsUnavailable


def grant(config: Config, granted: Mapping[str, Sequence[AccessRule]]) -> int:
    """Give each principal these rights, in addition to those it has; return their number.

    ``TopicsUnavailable``: no broker answers, it has no authorizer, or this user lacks the right.
    """
    wanted = [
        acl
        for principal, rules in granted.items()
        for rule in rules
        for acl in _acls(principal, rule)
    ]
    with administering(config, "give rights") as admin:
        _create(admin, wanted)
    return len(wanted)


def set_passwords(config: Config, passwords: Mapping[str, str]) -> None:
    """Set passwords of SCRAM-SHA-512, of new users too, or raise ``TopicsUnavailable``."""
    wanted = [
        UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password)
        for user, password in passwords.items()
    ]
    with administering(config, "give rights") as admin:
        problems = admin.alter_user_scram_credentials(wanted)
    for user, problem in problems.items():
        if problem:
            raise TopicsUnavailable(f"the password of {user} was not set: {problem}")


def _create(admin: KafkaAdminClient, wanted: list[ACL]) -> None:
    for failed in admin.create_acls(wanted)["failed"]:
        name = failed.__name__
        what = {
            "SecurityDisabledError": "the broker has no authorizer: set authorizer.class.name, and "
            "allow.everyone.if.no.acl.found=false",
            "ClusterAuthorizationFailedError": "this user may not give rights, which requires "
            "Alter on the cluster: use a super user",
        }.get(name, name)
        raise TopicsUnavailable(f"cannot give rights: {what}") from failed


def _acls(principal: str, rule: AccessRule) -> list[ACL]:
    prefixed, literal = ACLResourcePatternType.PREFIXED, ACLResourcePatternType.LITERAL
    resource = ResourceType[_enumerated(rule.resource)]
    pattern = ResourcePattern(resource, rule.name, prefixed if rule.prefixed else literal)
    return [
        ACL(principal, "*", ACLOperation[_enumerated(name)], ACLPermissionType.ALLOW, pattern)
        for name in rule.operations
    ]


def _enumerated(name: str) -> str:
    """Return the name in kafka-python of what ``access`` and kafka-acls name otherwise."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").upper()
