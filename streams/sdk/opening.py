"""Opening and closing a run.

Opening a run makes a new attempt in every partition, under one policy:

1. Ask every partition for its next attempt, partition 0 first. Of two runs that want a budget at
   once, partition 0 gives it to one of them, and the other asks no further partition. Nor does a
   run that was closed: it would hold budgets where it was never opened. A run that was closed
   elsewhere alone is closed in partition 0, too.
2. Check that all hold the dataset under one policy, made for the current number of partitions.
3. If attempts differ because an earlier opening was interrupted, ask the lower partitions again for
   the highest attempt. If another trainer has opened the run meanwhile, start again.
4. If an earlier opening set a minimum separation or terms of collecting norms in some partitions
   only, and this one leaves them out, start again with them. Check that all partitions have the
   same, and that the dataset has the users' ids in the same form as this client: plain, or
   pseudonyms of the same key.
5. Find the next step from the last step that the partitions decided and the one released.

Resuming an attempt asks every partition whether it is still the newest, and changes nothing. Steps
2, 4 and 5 are the same. A step may be resumed that all partitions have decided: charging it again
returns the stored decision. So a process that knows the number and the token of an attempt needs no
other state.

Closing a run needs no policy and no agreement:

1. Ask one partition to close attempt 1; its rejection names the attempt that it has, if another.
   Then ask the other partitions to close that one. If no partition knows the run, it does not
   exist, and asking has not made it.
2. Ask the partitions that still have it open to close their attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import uniform

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import quoted
from streams.records import (
    MAX_SEPARATION,
    CloseRun,
    CollectTerms,
    OpenRun,
    Reason,
    RunClosed,
    RunOpened,
)
from streams.sdk.arguments import read_terms
from streams.sdk.connection import Connection, Deadline
from streams.sdk.dataset_requests import check_agreement, check_names
from streams.sdk.errors import (
    BudgetHeld,
    Fenced,
    InvalidRequest,
    PartitionsDisagree,
    ReleaseUnknown,
    RequestRejected,
    RunIsClosed,
    invalid_requests,
)
from streams.sdk.run import Run
from streams.sdk.step_layout import check_key

_OPENINGS = 10
_PAUSE = 0.05
"""Upper bound of a random pause, in seconds, so that two trainers do not collide again."""
_LONGEST_TOKEN = 64
_UNFIT_FOR_TERMS = (Reason.INVALID_MECHANISM, Reason.MIXED_USERS)
_HIGHEST_ASKED = 2**62
"""The highest attempt that a request may name; partitions count on above it one by one."""


def open_run(
    connection: Connection,
    dataset: str,
    name: str,
    *,
    released: int | None,
    min_separation: int | None,
    collect: CollectTerms | None,
    charges_ahead: bool,
    take_over: bool,
    deadline: Deadline,
) -> Run:
    """Open a new attempt of a run, which fences all earlier ones, as ``Turnstile.run`` does.

    Raises:
        InvalidRequest: also if the dataset has users by other pseudonyms.
        Fenced: other trainers keep opening this run.
    """
    check_names(dataset, name)
    if released is not None and (
        not isinstance(released, int | np.integer) or isinstance(released, bool) or released < -1
    ):
        raise InvalidRequest(
            f"released is {quoted(released)}; it must be a step, or -1 for none yet"
        )
    with invalid_requests():
        blank = OpenRun(
            dataset=dataset,
            run=name,
            attempt=0,
            request="-",
            min_separation=UNSET
            if min_separation is None
            else whole_number("min_separation", min_separation, 2, MAX_SEPARATION),
            take_over=True if take_over else UNSET,
            collect=UNSET if collect is None else read_terms(collect),
        )
    for attempts in range(_OPENINGS):
        if attempts:
            connection.pause(uniform(0.0, _PAUSE))
        opened = _open_everywhere(connection, blank, deadline)
        if opened is not None and (whole := _completed(blank, opened)) != blank:
            blank, opened = whole, None
        if opened is not None:
            # Step 4.
            _check_terms(name, opened)
            check_key(opened[0].policy, connection.pseudonyms)
            # Step 5.
            return Run(
                connection, opened, _next_step(name, opened, released, 2 if charges_ahead else 1)
            )
    raise Fenced(Reason.OLDER_ATTEMPT, f"other trainers keep opening run {name!r}", None)


def resume_run(
    connection: Connection,
    dataset: str,
    name: str,
    attempt: int,
    token: str,
    *,
    step: int | None,
    deadline: Deadline,
) -> Run:
    """Continue an attempt that was opened before, as ``Turnstile.resume`` does."""
    check_names(dataset, name)
    with invalid_requests():
        number = whole_number("attempt", attempt, 1, _HIGHEST_ASKED)
        asked = None if step is None else whole_number("step", step, 0, _HIGHEST_ASKED)
    if not 1 <= len(token) <= _LONGEST_TOKEN:
        raise InvalidRequest("token must be the token of the attempt, as the run has it")
    # The question has a token of its own, so that no copy of an earlier answer answers it.
    request = connection.new_token()
    question = OpenRun(dataset=dataset, run=name, attempt=number, request=request, confirms=token)
    everywhere = dict.fromkeys(range(connection.partitions), question)
    answers = connection.ask(everywhere, RunOpened, deadline)
    check_agreement(dataset, answers, connection.partitions)
    opened = {p: replace(answer, request=token) for p, answer in answers.items()}
    _check_terms(name, opened)
    check_key(opened[0].policy, connection.pseudonyms)
    due = _next_step(name, opened, None, 1)
    newest = max(answer.last_step for answer in opened.values())
    if asked is not None and asked not in (due, newest):
        raise RequestRejected(
            Reason.STEP_OUT_OF_ORDER,
            f"step {quoted(asked)} is neither the last step of run {name!r} nor the next one, "
            f"which is step {due}",
            None,
        )
    return Run(connection, opened, due if asked is None else asked, is_shared=True)


def close_run(connection: Connection, dataset: str, name: str, deadline: Deadline) -> bool:
    """Close a run in every partition, as ``Turnstile.close_run`` does."""
    check_names(dataset, name)
    blank = CloseRun(dataset=dataset, run=name, attempt=1, request="-")
    # Step 1. A rejection names the attempt that the partition has, if any.
    attempts: dict[int, int | None] = {}
    newest = 1
    for partitions in (range(1), range(1, connection.partitions)):
        request = replace(blank, request=connection.new_token(), attempt=newest)
        replies = connection.survey(dict.fromkeys(partitions, request), RunClosed, deadline)
        for partition, reply in replies.items():
            if not isinstance(reply, RequestRejected):
                continue
            if reply.reason not in (Reason.UNKNOWN_RUN, Reason.OLDER_ATTEMPT):
                raise reply
            attempts[partition] = reply.current_attempt
            newest = max(newest, reply.current_attempt or 0)
    if list(attempts.values()) == [None] * connection.partitions:
        return False
    # Step 2.
    token = connection.new_token()
    requests = {
        partition: replace(blank, request=token, attempt=attempt)
        for partition, attempt in attempts.items()
        if attempt is not None
    }
    connection.ask(requests, RunClosed, deadline)
    return True


def _open_everywhere(
    connection: Connection, blank: OpenRun, deadline: Deadline
) -> dict[int, RunOpened] | None:
    """Return the answers of all partitions under one attempt; None if another trainer
    interfered.
    """
    # Step 1.
    request = replace(blank, request=connection.new_token())
    replies: dict[int, RunOpened | RequestRejected] = {}
    for partitions in (range(1), range(1, connection.partitions)):
        if not any(isinstance(reply, BudgetHeld | RunIsClosed) for reply in replies.values()):
            replies |= connection.survey(dict.fromkeys(partitions, request), RunOpened, deadline)
    # Step 2.
    try:
        check_agreement(blank.dataset, replies, connection.partitions)
    except RequestRejected as rejected:
        if blank.collect and rejected.reason in _UNFIT_FOR_TERMS:
            raise InvalidRequest(f"collect: {rejected.detail}") from rejected
        if isinstance(rejected, RunIsClosed) and isinstance(replies[0], RunOpened):
            close_run(connection, blank.dataset, blank.run, deadline)
        raise
    opened = {p: reply for p, reply in replies.items() if isinstance(reply, RunOpened)}
    # Step 3.
    for _ in range(_OPENINGS):
        highest = max(answer.attempt for answer in opened.values())
        lower = {p: answer.attempt for p, answer in opened.items() if answer.attempt < highest}
        if not lower:
            return opened
        request = replace(request, attempt=min(highest, _HIGHEST_ASKED))
        if min(lower.values()) >= request.attempt:  # no request may name it: count up by one
            request = replace(blank, request=connection.new_token())
        try:
            opened |= connection.ask(dict.fromkeys(lower, request), RunOpened, deadline)
        except Fenced:
            return None
    return None


def _completed(blank: OpenRun, opened: Mapping[int, RunOpened]) -> OpenRun:
    """Return an opening with the terms that an earlier one has set in some partitions only.

    It is unchanged if it names them, if there are several, or if a partition has charged a step
    without them.
    """
    for argument in ("min_separation", "collect"):
        found = {getattr(answer, argument) for answer in opened.values()} - {UNSET}
        lacking = [answer for answer in opened.values() if getattr(answer, argument) is UNSET]
        is_known = getattr(blank, argument) is not UNSET or len(found) != 1
        if not is_known and lacking and all(answer.last_step < 0 for answer in lacking):
            (terms,) = found
            asked = read_terms(terms) if isinstance(terms, CollectTerms) else terms
            blank = replace(blank, **{argument: asked})
    return blank


def _check_terms(name: str, opened: Mapping[int, RunOpened]) -> None:
    """Check that all partitions have the same minimum separation and terms of collecting for a run.

    They differ if clients ended while they opened the run with others.

    Raises:
        PartitionsDisagree: they differ.
    """
    for argument in ("min_separation", "collect"):
        kept = {p: getattr(answer, argument) or None for p, answer in sorted(opened.items())}
        other = next((p for p, value in kept.items() if value != kept[0]), None)
        if other is not None:
            raise PartitionsDisagree(
                f"run {name!r} has {argument} {kept} in its partitions: open it with the right "
                "one or, if that is rejected, use a run of another name",
                other,
            )


def _next_step(
    name: str, opened: Mapping[int, RunOpened], released: int | None, at_once: int
) -> int:
    """Return the step that a new attempt charges: a new one, or the last one, handed back.

    Up to ``at_once`` steps may have been charged and not released.

    Raises:
        PartitionsDisagree: the partitions are more than one step apart.
        InvalidRequest: not all partitions have decided the step ``released``.
        ReleaseUnknown: more than ``at_once`` steps were charged after ``released``.
    """
    last = {partition: answer.last_step for partition, answer in sorted(opened.items())}
    newest, decided = max(last.values()), min(last.values())
    if newest - decided > 1:
        raise PartitionsDisagree(
            f"run {name!r} is at different steps in its partitions ({last}), so another program "
            "than this SDK has charged it: use a run of another name",
            None,
        )
    if released is None:
        return newest if decided < newest else newest + 1
    if released > decided:
        raise InvalidRequest(
            f"released is {quoted(released)}, but step {decided} is the last one of run {name!r} "
            "that all partitions have decided (-1 for none). That step was charged elsewhere "
            "or not at all: release nothing more before you know which"
        )
    if released < newest - at_once:
        raise ReleaseUnknown(name, released, decided, is_last=decided == newest)
    return newest if released < newest else newest + 1
