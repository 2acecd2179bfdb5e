"""The arguments of the commands for rights and keys: acl, topics, keys, principal, operator."""

from __future__ import annotations

from typing import Any

from streams.cli import acl
from streams.cli.options import CLIENT, OBSERVER, Later, name_of, path_of, verb
from streams.topics.access import ROLES

commands = Later("streams.cli.commands")
keys = Later("streams.cli.keys")
principals = Later("streams.cli.principals")

_BY_OPERATOR = (
    "Signed with the setting operator_key (TURNSTILE_OPERATOR_KEY or _FILE), which only those need "
    "who say whose keys count. Doing it again is fine, and completes what was half done."
)


def add_security(verbs: Any) -> None:
    """Add them."""
    rights = verb(
        verbs,
        "acl",
        acl.acl,
        "the rights of each role on Kafka and Redis, printed or given",
        ("kafka", "prefix", "timeout", "config"),
        "Without --principal, one principal of each role is named like the role. --apply gives the "
        "rights on Kafka, as the user that the settings name, who has to be a super user.",
    )
    rights.add_argument(
        "--principal",
        type=acl.principal,
        action="append",
        metavar="ROLE=User:NAME",
        help=f"who has a role; again for more. Roles: {', '.join(ROLES)}",
    )
    what = rights.add_mutually_exclusive_group()
    what.add_argument("--format", choices=acl.FORMATS, default="table", help="(default table)")
    what.add_argument("--apply", action="store_true", help="give the rights on Kafka")

    topics = verbs.add_parser("topics", help="create the topics, where workers may not")
    verb(
        topics.add_subparsers(required=True, metavar="COMMAND"),
        "create",
        commands.topics_create,
        "create the topics that are missing; doing it again is fine",
        ("kafka", "prefix", "timeout", "config", "partitions"),
    )

    pairs = verbs.add_parser("keys", help="keys by which decisions and requests are signed")
    made = verb(
        pairs.add_subparsers(required=True, metavar="COMMAND"),
        "new",
        keys.new,
        "make a private key, and the public key for those who check what it signs",
        (),
        "A file that is there already is not overwritten.",
    )
    made.add_argument(
        "--for",
        dest="purpose",
        choices=("decisions", "answers", "requests", "operator"),
        default="decisions",
        help="who signs: workers their decisions, an answerer its answers, a client its requests, "
        "or the operator, who says whose requests count (default decisions)",
    )
    made.add_argument(
        "--out",
        type=path_of,
        metavar="FILE",
        help="for the private key, readable by its owner alone",
    )

    _add_principals(verbs)


def _add_principals(verbs: Any) -> None:
    principal = verbs.add_parser("principal", help="add, remove or list who signs requests")
    commands_of = principal.add_subparsers(required=True, metavar="COMMAND")
    add = verb(
        commands_of,
        "add",
        principals.add,
        "have requests count that a principal signs with a key, and with no other",
        CLIENT,
        _BY_OPERATOR,
    )
    add.add_argument("name", type=name_of, help="by which datasets name it")
    add.add_argument("public_key", help="as `turnstile keys new --for requests` prints it")
    add.add_argument(
        "--creates", action="store_true", help="it may create datasets, without a guarded parent"
    )
    remove = verb(
        commands_of,
        "remove",
        principals.remove,
        "have nothing count any more that a principal signs",
        CLIENT,
        _BY_OPERATOR,
    )
    remove.add_argument("name", type=name_of)
    verb(
        commands_of,
        "list",
        principals.listed,
        "the operator, and who signs with which key",
        OBSERVER,
        "From Redis, without a key.",
    )
    operator = verbs.add_parser("operator", help="bind who says whose keys count")
    bind = verb(
        operator.add_subparsers(required=True, metavar="COMMAND"),
        "bind",
        principals.bind,
        "bind the operator to the service, or another one in its place",
        CLIENT,
        f"The first principal that is added binds it as well. {_BY_OPERATOR}",
    )
    bind.add_argument(
        "--successor",
        metavar="KEY",
        help="the public key from now on; workers have it in operator_keys before, or they stop",
    )
    bind.add_argument(
        "--also",
        action="append",
        metavar="LOG",
        help="the id of a log whose records are copied to this one next; again for more",
    )
