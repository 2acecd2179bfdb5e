"""Erasing a user: one request to the user's partition."""

from __future__ import annotations

from msgspec import UNSET

from streams.records import Erase, Erased, User, encode
from streams.records.users import UserIds, normal_form
from streams.sdk.arguments import read_users
from streams.sdk.connection import Connection, Deadline
from streams.sdk.datasets import check_names
from streams.sdk.errors import ConflictingDecisions, ErasedInPart


def erase(connection: Connection, user: User, dataset: str | None, deadline: Deadline) -> list[str]:
    """Have the user's partition erase the id.

    Returns:
        The datasets in which the user is erased.

    Raises:
        InvalidRequest: the id or the name is invalid.
        RequestRejected: the dataset does not exist, or has users by other pseudonyms.
        ErasedInPart: no dataset was given, and this client may not manage all of them.
        DecisionTimeout: no answer in time; try again.
    """
    if dataset is not None:
        check_names(dataset)
    read = read_users([user])
    known: User = read[0] if isinstance(read, list) else int(read[0])
    pseudonyms = connection.pseudonyms
    if pseudonyms is not None:
        known = int(pseudonyms.of([known])[0])
    elif isinstance(known, str):
        known = normal_form(known)
    token = connection.new_token()
    request = Erase(
        request=token,
        user=known,
        dataset=UNSET if dataset is None else dataset,
        pseudonyms=UNSET if pseudonyms is None else pseudonyms.fingerprint,
    )
    home = int(UserIds([known]).homes(connection.partitions)[0])
    answer = connection.ask(token, {home: encode(request)}, deadline)[home]
    if not isinstance(answer, Erased):
        raise ConflictingDecisions(
            f"partition {home} answered a request to erase a user with {type(answer).__name__}: "
            "it was not made by a worker"
        )
    if answer.not_allowed:
        raise ErasedInPart(answer.datasets, answer.not_allowed)
    return answer.datasets
