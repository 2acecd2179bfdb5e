"""Norm events: send the norms of users' contributions to a run that collects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from accounting.exact.argument_checks import whole_number
from streams.records import MAX_EVENTS, MAX_UNSIGNED_BYTES, NormEvents, encode
from streams.records.packing import pack_norms
from streams.records.users import UserIds
from streams.sdk.arguments import UsersLike, read_norms, read_users
from streams.sdk.connection import Connection, Deadline
from streams.sdk.dataset_requests import check_names
from streams.sdk.errors import invalid_requests
from streams.sdk.step_layout import place

_HIGHEST: Final = 2**62


def send_norms(
    connection: Connection,
    dataset: str,
    run: str,
    step: int,
    users: UsersLike,
    norms: ArrayLike,
    *,
    attempt: int | None,
    deadline: Deadline,
) -> None:
    """Send norms to the partitions of their users, as ``Turnstile.send_norms`` does."""
    check_names(dataset, run)
    pseudonyms = connection.pseudonyms
    with invalid_requests():
        blank = NormEvents(
            dataset=dataset,
            run=run,
            step=whole_number("step", step, 0, _HIGHEST),
            attempt=UNSET if attempt is None else whole_number("attempt", attempt, 1, _HIGHEST),
            pseudonyms=UNSET if pseudonyms is None else pseudonyms.fingerprint,
            users=b"",
            norms=b"",
        )
    layout = place(read_users(users), connection.partitions, pseudonyms)
    values, _ = read_norms(norms, len(layout.ids), None)
    records = {
        partition: _records(blank, layout.users_of(partition), values[positions])
        for partition, positions in enumerate(layout.positions)
    }
    while together := {p: record for p in records if (record := next(records[p], None))}:
        connection.post(together, deadline)


def _records(blank: NormEvents, users: UserIds, norms: NDArray[np.float64]) -> Iterator[bytes]:
    """Yield records that are small enough, for users of one partition."""
    record = encode(replace(blank, users=users.pack(), norms=pack_norms(norms)))
    if len(record) <= MAX_UNSIGNED_BYTES and len(users) <= MAX_EVENTS:
        if len(users):
            yield record
        return
    middle = len(users) // 2
    yield from _records(blank, users[:middle], norms[:middle])
    yield from _records(blank, users[middle:], norms[middle:])
