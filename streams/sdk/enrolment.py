"""Enrolling users in a run, in every partition: once, and again after a restart.

1. Every partition is asked for the roster that it has, by a request without users.
2. What it has must be the first of its users, in their order; else the roster is another one.
3. Those who are missing are sent, some at a time, until nobody is.

Whoever stops in between goes on where it was by doing the same again.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from streams.ledger.forgotten import blank
from streams.schemas import Enrol, Enrolled, encode
from streams.sdk.arguments import Ids
from streams.sdk.connection import Connection, Deadline
from streams.sdk.errors import ConflictingDecisions, InvalidRequest
from streams.sdk.steps import Layout
from streams.wire.packing import (
    ROSTER_PAGE,
    pack_users,
    page_digests,
    unpack_positions,
    unpack_users,
)

ENROLLED_AT_ONCE = 2**16
"""Users of one partition in one request: ids of 256 characters take 8 MiB at 2**15."""


def enrol(
    connection: Connection,
    empty: Enrol,
    layout: Layout,
    deadline: Deadline,
) -> dict[int, Enrolled]:
    """Have all partitions enrol their users; the roster as each of them has it then.

    Args:
        connection: to the service.
        empty: a request without users.
        layout: of the users by partition.
        deadline: until when to wait.

    Raises:
        InvalidRequest: the roster of the run has other users than these.
        DecisionTimeout: not all answered; calling again goes on where it was.
        RequestRejected: what a partition refused.
    """
    users = [unpack_users(users) for users in layout.users]
    # Step 1.
    answers = _asked(connection, dict.fromkeys(range(len(users)), empty), deadline)
    # Step 2.
    for partition, answer in answers.items():
        _check_same(answer, users[partition])
    # Step 3.
    while True:
        missing: dict[int, Enrol] = {}
        for partition, answer in answers.items():
            first = answer.members
            more = users[partition][first : first + ENROLLED_AT_ONCE]
            if len(more):
                missing[partition] = replace(empty, first=first, users=pack_users(more))
        if not missing:
            return answers
        answers |= _asked(connection, missing, deadline)


def _asked(
    connection: Connection, requests: Mapping[int, Enrol], deadline: Deadline
) -> dict[int, Enrolled]:
    token = next(iter(requests.values())).request
    records = {partition: encode(request) for partition, request in requests.items()}
    answers = connection.ask(token, records, deadline)
    return {p: answer for p, answer in answers.items() if isinstance(answer, Enrolled)}


def _as_known(answer: Enrolled, users: Ids) -> Ids:
    """The users of a roster, with nobody where a member was forgotten."""
    if not isinstance(answer.forgotten, bytes):
        return users
    known = users.copy()
    try:
        blank(known, unpack_positions(answer.forgotten, answer.members))
    except ValueError as error:
        raise ConflictingDecisions(
            f"what partition {answer.partition} says of the roster of run {answer.run!r} was not "
            f"said by a worker: {error}"
        ) from error
    return known


def _check_same(answer: Enrolled, users: Ids) -> None:
    """Refuse users who are not those of the roster, or begin with them."""
    if answer.members > len(users):
        raise InvalidRequest(
            f"partition {answer.partition} has {answer.members} users of run {answer.run!r} on its "
            f"roster, and {len(users)} of these: enrol all of them, or charge under another run"
        )
    mine = page_digests(_as_known(answer, users[: answer.members]))
    if mine != answer.digests:
        page = next(
            i for i in range(0, len(mine), 16) if mine[i : i + 16] != answer.digests[i : i + 16]
        )
        raise InvalidRequest(
            f"the roster of run {answer.run!r} has other users than these, or in another order: "
            f"those of partition {answer.partition} differ from number "
            f"{page // 16 * ROSTER_PAGE} on. Enrol the same users in the same order, new ones at "
            "the end, or charge under another run"
        )
