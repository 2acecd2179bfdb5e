"""Enrolling users in a run, in every partition. After a restart, users are checked instead.

1. Ask every partition for its roster, by a request without users.
2. Check that the roster has the first of the partition's users, in order.
3. Send the missing users in batches until none is missing.

A client that stops in between continues by enrolling the same users again.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from streams.ledger.erasure import blanked
from streams.records import Enrol, Enrolled, encode
from streams.records.digests import ROSTER_PAGE, page_digests
from streams.records.packing import unpack_positions
from streams.records.users import UserIds
from streams.sdk.connection import Connection, Deadline
from streams.sdk.errors import ConflictingDecisions, InvalidRequest
from streams.sdk.steps import Layout

ENROLLED_AT_ONCE = 2**16
"""Users of one partition per request. Ids of 256 characters take 8 MiB at 2**15."""


def enrol(
    connection: Connection,
    empty: Enrol,
    layout: Layout,
    deadline: Deadline,
) -> dict[int, Enrolled]:
    """Enrol the users in all partitions, and return each partition's roster.

    Args:
        connection: to the service.
        empty: a request without users.
        layout: the users by partition.
        deadline: of each round of answers.

    Raises:
        InvalidRequest: the roster of the run has other users than these.
        DecisionTimeout: not all partitions answered; call again to continue.
        RequestRejected: a partition rejected the request.
    """
    users = [UserIds.unpack(users) for users in layout.users]
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
                missing[partition] = replace(empty, first=first, users=more.pack())
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


def _as_known(answer: Enrolled, users: UserIds) -> UserIds:
    """Return the users with the ids of erased members blanked, as the roster has them."""
    if not isinstance(answer.erased, bytes):
        return users
    try:
        return blanked(users, unpack_positions(answer.erased, answer.members))
    except ValueError as error:
        raise ConflictingDecisions(
            f"partition {answer.partition} answered with an invalid roster of run "
            f"{answer.run!r}: {error}. It was not made by a worker"
        ) from error


def _check_same(answer: Enrolled, users: UserIds) -> None:
    """Check that these users begin with those of the roster."""
    if answer.members > len(users):
        raise InvalidRequest(
            f"partition {answer.partition} has {answer.members} users of run {answer.run!r} on its "
            f"roster, but only {len(users)} were given: enrol all of them, or charge under another "
            "run"
        )
    mine = page_digests(_as_known(answer, users[: answer.members]))
    if mine != answer.digests:
        page = next(
            i for i in range(0, len(mine), 16) if mine[i : i + 16] != answer.digests[i : i + 16]
        )
        raise InvalidRequest(
            f"the roster of run {answer.run!r} has other users, or in another order: those of "
            f"partition {answer.partition} differ from number {page // 16 * ROSTER_PAGE} on. Enrol "
            "the same users in the same order, with new ones at the end, or charge under another "
            "run"
        )
