"""The arguments of the commands for rights and keys: acl, topics, keys."""

from __future__ import annotations

from typing import Any

from streams.cli import acl
from streams.cli.options import Later, path_of, verb
from streams.kafka.access import ROLES

commands = Later("streams.cli.commands")
keys = Later("streams.cli.keys")


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
        choices=("decisions", "answers", "requests"),
        default="decisions",
        help="what is signed: decisions by workers, answers by an answerer, requests by a client "
        "(default decisions)",
    )
    made.add_argument(
        "--out",
        type=path_of,
        metavar="FILE",
        help="for the private key, readable by its owner alone",
    )
