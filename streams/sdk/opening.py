"""Opening a run: a new attempt in every partition, under one policy.

1. Every partition is asked for its next attempt.
2. All must hold the dataset, under one policy, made for as many partitions as there are.
3. Where attempts differ, because an opening before this one came half-way, the lower ones are
   asked again, for the highest. If another trainer has come between, all begins again.
4. All must keep participations apart alike, and know users as this client does.
5. What the partitions decided last, and what was released, say which step comes next.

Closing a run needs no policy and no agreement:

1. One partition is asked to close the first attempt of it, and says which one there is if that is
   another; then the others are asked to close that one. Where nobody knows the run, there is none,
   and nothing was made by asking.
2. Where it is not known, but elsewhere, it is opened, so that its name is used up everywhere.
3. Those that have it open still are asked to close the attempt that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import uniform

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from accounting import InvalidInput
from accounting.exact.validation import whole_number
from streams.schemas import (
    MAX_SEPARATION,
    Answer,
    CloseRun,
    OpenRun,
    Reason,
    RunOpened,
    encode,
)
from streams.sdk.connection import Connection, Deadline
from streams.sdk.datasets import check_agreement, check_names
from streams.sdk.errors import (
    BudgetHeld,
    Fenced,
    InvalidRequest,
    PartitionsDisagree,
    ReleaseUnknown,
    RequestRejected,
)
from streams.sdk.pseudonyms import check_key
from streams.sdk.run import Run

_OPENINGS = 10
_PAUSE = 0.05
"""Seconds at most until all begins again, so that two trainers do not keep meeting."""
_HIGHEST_ASKED = 2**62
"""Of the attempts that a request may name; partitions give higher ones, one after the other."""


def open_run(
    connection: Connection,
    dataset: str,
    name: str,
    *,
    released: int | None,
    min_separation: int | None,
    charges_ahead: bool,
    take_over: bool,
    deadline: Deadline,
) -> Run:
    """A new attempt of a run, which fences every earlier one.

    Raises:
        InvalidRequest: a name that no dataset or run can have, a ``min_separation`` that is none,
            or ``released`` is no step that all partitions have decided; or the dataset knows users
            by other pseudonyms.
        ReleaseUnknown: more steps than can be handed back were charged after ``released``.
        PartitionsDisagree: the dataset or the run cannot be charged.
        RunIsClosed: the run was closed.
        SeparationChanged: the run has been charged with another ``min_separation``.
        BudgetHeld: another run holds the budget, and ``take_over`` is false.
        RequestRejected: the dataset does not exist.
        Fenced: other trainers keep opening this run.
        DecisionTimeout: not all partitions answered; try again.
    """
    check_names(dataset, name)
    if released is not None and (
        not isinstance(released, int | np.integer) or isinstance(released, bool) or released < -1
    ):
        raise InvalidRequest(f"released is {released!r}; it must be a step, or -1 for none yet")
    request = _open_request(dataset, name, _separation(min_separation), take_over=take_over)
    for attempts in range(_OPENINGS):
        if attempts:
            connection.pause(uniform(0.0, _PAUSE))
        opened = _open_everywhere(connection, dataset, request, deadline)
        if opened is not None:
            # Step 4.
            _check_separations(name, opened)
            check_key(opened[0].policy, connection.pseudonyms)
            # Step 5.
            return Run(
                connection, opened, _next_step(name, opened, released, 2 if charges_ahead else 1)
            )
    raise Fenced(Reason.OLDER_ATTEMPT, f"other trainers keep opening run {name!r}", None)


def close_run(connection: Connection, dataset: str, name: str, deadline: Deadline) -> bool:
    """End a run for good in every partition, also one that an earlier call closed in some.

    Returns:
        Whether there was such a run; if not, nothing was closed, and no run was made.

    Raises:
        InvalidRequest: a name that no dataset or run can have.
        Fenced: a trainer opened the run meanwhile; try again.
        RequestRejected: the dataset does not exist.
        DecisionTimeout: not all partitions answered; try again.
    """
    check_names(dataset, name)
    blank = CloseRun(dataset=dataset, run=name, attempt=1, request="-")
    # Step 1. Who refuses an attempt says which one there is, if there is any.
    attempts: dict[int, int | None] = {}
    newest = 1
    for somewhere in (range(1), range(1, connection.partitions)):
        token = connection.new_token()
        request = encode(replace(blank, request=token, attempt=newest))
        replies = connection.survey(token, dict.fromkeys(somewhere, request), deadline)
        for partition, reply in replies.items():
            if not isinstance(reply, RequestRejected):
                continue
            if reply.reason not in (Reason.UNKNOWN_RUN, Reason.OLDER_ATTEMPT):
                raise reply
            attempts[partition] = reply.current_attempt
            newest = max(newest, reply.current_attempt or 0)
    unknown = [p for p, attempt in attempts.items() if attempt is None]
    if len(unknown) == connection.partitions:
        return False
    # Step 2. An opening that reached the others only would be completed by the next one.
    if unknown:
        token, opening = connection.new_token(), _open_request(dataset, name)
        opened = connection.survey(token, dict.fromkeys(unknown, opening(token, 0)), deadline)
        for partition, answer in opened.items():
            if isinstance(answer, RunOpened):
                attempts[partition] = answer.attempt
            # Where another run holds the budget, the run stays unknown: closed elsewhere, it
            # cannot be opened any more.
            elif isinstance(answer, RequestRejected) and not isinstance(answer, BudgetHeld):
                raise answer
    # Step 3.
    token = connection.new_token()
    requests = {
        partition: encode(replace(blank, request=token, attempt=attempt))
        for partition, attempt in attempts.items()
        if attempt is not None
    }
    connection.ask(token, requests, deadline)
    return True


def _separation(min_separation: int | None) -> int | UnsetType:
    if min_separation is None:
        return UNSET
    try:
        return whole_number("min_separation", min_separation, 2, MAX_SEPARATION)
    except InvalidInput as error:
        raise InvalidRequest(f"{error}; 1 is what a run does without it") from error


def _open_request(
    dataset: str, name: str, separation: int | UnsetType = UNSET, *, take_over: bool = False
) -> Callable[[str, int], bytes]:
    """Return what makes the request for an attempt of a run from its token and number."""
    blank = OpenRun(
        dataset=dataset,
        run=name,
        attempt=0,
        request="-",
        min_separation=separation,
        take_over=True if take_over else UNSET,
    )
    return lambda token, attempt: encode(replace(blank, request=token, attempt=attempt))


def _next_attempts(
    connection: Connection, token: str, request: Callable[[str, int], bytes], deadline: Deadline
) -> dict[int, Answer | RequestRejected]:
    """What every partition says when it is asked for its next attempt."""
    requests = dict.fromkeys(range(connection.partitions), request(token, 0))
    return connection.survey(token, requests, deadline)


def _open_everywhere(
    connection: Connection,
    dataset: str,
    request: Callable[[str, int], bytes],
    deadline: Deadline,
) -> dict[int, RunOpened] | None:
    """The answers of all partitions under one attempt; None if another trainer came between."""
    # Step 1.
    token = connection.new_token()
    replies = _next_attempts(connection, token, request, deadline)
    # Step 2.
    check_agreement(dataset, replies, connection.partitions)
    opened = {p: reply for p, reply in replies.items() if isinstance(reply, RunOpened)}
    # Step 3.
    for _ in range(_OPENINGS):
        highest = max(answer.attempt for answer in opened.values())
        lower = {p: answer.attempt for p, answer in opened.items() if answer.attempt < highest}
        if not lower:
            return opened
        attempt = min(highest, _HIGHEST_ASKED)
        if min(lower.values()) >= attempt:
            token, attempt = connection.new_token(), 0  # beyond what can be asked for: one by one
        try:
            requests = dict.fromkeys(lower, request(token, attempt))
            answers = connection.ask(token, requests, deadline)
        except Fenced:
            return None
        opened |= {p: answer for p, answer in answers.items() if isinstance(answer, RunOpened)}
    return None


def _check_separations(name: str, opened: Mapping[int, RunOpened]) -> None:
    """Whether a run keeps participations apart alike in all partitions.

    Another one may have been opened in some of them only, by somebody who then ended.
    """
    kept = {p: answer.min_separation or None for p, answer in sorted(opened.items())}
    other = next((p for p, separation in kept.items() if separation != kept[0]), None)
    if other is not None:
        raise PartitionsDisagree(
            f"run {name!r} has min_separation {kept} in its partitions: open it with the one that "
            "it is to have, or, if it was charged without, use a run of another name",
            other,
        )


def _next_step(
    name: str, opened: Mapping[int, RunOpened], released: int | None, at_once: int
) -> int:
    """The step that a new attempt charges: a new one, or the last one, which is handed back.

    So many steps, ``at_once``, may have been charged and not released.
    """
    last = {partition: answer.last_step for partition, answer in sorted(opened.items())}
    newest, everywhere = max(last.values()), min(last.values())
    if newest - everywhere > 1:
        raise PartitionsDisagree(
            f"run {name!r} has come to different steps in its partitions ({last}), so something "
            "else than this SDK has charged it: use a run of another name",
            None,
        )
    if released is None:
        return newest if everywhere < newest else newest + 1
    if released > everywhere:
        raise InvalidRequest(
            f"released is {released}, but {everywhere} is the last step of run {name!r} that all "
            "partitions have decided (-1 is none): what was released was charged elsewhere or not "
            "at all. Release nothing more before you know where"
        )
    if released < newest - at_once:
        raise ReleaseUnknown(name, released, everywhere, is_last=everywhere == newest)
    return newest if released < newest else newest + 1
