"""The state of a run in one partition, and its transitions.

    (unknown) --open-run a--> open, attempt a, step -1
    open, attempt a, step s --charge a, s + 1--> open, attempt a, step s + 1     charged, decided
    open, attempt a, step s --charge a, s, same content--> unchanged    the stored decision again
    open, attempt a, step s --open-run b > a--> open, attempt b, step s          fences attempt a
    open, attempt a, step s --open-run a, same token--> unchanged           the same answer again
    open, attempt a, step s --open-run a, confirms its token--> unchanged
    open, attempt a, step s --close-run a--> closed, attempt a, step s
    closed, attempt a, step s --close-run a--> unchanged                    the same answer again
    open, attempt a, step s --close-dataset--> closed, attempt a, step s
    any other request is refused and changes nothing

``open-run 0`` stands for ``open-run a`` with the token of attempt a, with another one for
``open-run a + 1``, and for ``open-run 1`` of an unknown run.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET

from streams.ledger.tracked import Address, Tracked
from streams.records import (
    Charge,
    ChargeRoster,
    CloseRun,
    Decision,
    Enrol,
    NormEvent,
    NormEvents,
    OpenRun,
    Reason,
    Rejection,
    RosterDecision,
)

_AnyDecision: TypeAlias = Decision | RosterDecision


class RunState(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a run in one partition."""

    dataset: str
    run: str
    attempt: int
    request: str  # the token of the attempt: two trainers cannot share a number
    step: int = -1
    digest: bytes = b""
    decision: bytes = b""  # of the last step, as published
    closed: bool = False
    of_roster: bool = False  # the last step was charged to the roster of the run
    roster_steps: int = 0  # so many of all steps were


class Runs(Tracked[RunState]):
    """All runs of one partition, by dataset and name.

    Attributes:
        closed: the number of closed runs.
        datasets: the datasets of which a run was ever opened.
    """

    def __init__(self) -> None:
        super().__init__("run", RunState)
        self.closed = 0
        self.datasets: set[str] = set()

    def _moves(self, address: Address, before: RunState | None, after: RunState | None) -> None:
        was_closed = before is not None and before.closed
        is_closed = after is not None and after.closed
        self.closed += is_closed - was_closed
        self.datasets.add(address[0])


def opened(run: RunState | None, request: OpenRun) -> RunState:
    """Return the run after an opening (RUN_CLOSED or OLDER_ATTEMPT)."""
    attempt = request.attempt
    if request.confirms is not UNSET:
        return _confirmed(run, request, request.confirms)
    if run is None:
        return RunState(request.dataset, request.run, attempt or 1, request.request)
    if run.closed:
        raise Rejection(Reason.RUN_CLOSED, _is_closed(run))
    same_token = request.request == run.request
    if attempt == 0:
        attempt = run.attempt if same_token else run.attempt + 1
    if attempt < run.attempt or (attempt == run.attempt and not same_token):
        detail = f"attempt {attempt} is not newer than attempt {run.attempt}"
        raise Rejection(Reason.OLDER_ATTEMPT, detail)
    return msgspec.structs.replace(run, attempt=attempt, request=request.request)


def takes_terms(known: RunState | None, opened: RunState, *, has_roster: bool) -> bool:
    """Return whether an opening may set the terms of a run: none of its steps depends on them yet.

    An opening may have reached some partitions only. The next one, a new attempt, sets the same
    terms in all of them. ``known`` is the run before the opening; None if it is new.
    """
    return known is None or (known.step < 0 and opened.attempt > known.attempt and not has_roster)


def _confirmed(run: RunState | None, request: OpenRun, token: str) -> RunState:
    """Return a run by the token of its attempt (UNKNOWN_RUN, RUN_CLOSED, OLDER_ATTEMPT)."""
    if run is None or request.attempt > run.attempt:
        detail = f"attempt {request.attempt} of run {request.run!r} was never opened"
        raise Rejection(Reason.UNKNOWN_RUN, detail)
    if run.closed:
        raise Rejection(Reason.RUN_CLOSED, _is_closed(run))
    if (request.attempt, token) != (run.attempt, run.request):
        detail = f"attempt {request.attempt} was fenced by attempt {run.attempt}"
        raise Rejection(Reason.OLDER_ATTEMPT, detail)
    return run


def under_current_attempt(
    run: RunState | None,
    request: Charge | ChargeRoster | CloseRun | Enrol | NormEvent | NormEvents,
) -> RunState:
    """Return a run if a request quotes its current attempt; norm events may quote none.

    Raises:
        Rejection: UNKNOWN_RUN, RUN_CLOSED (but for closing it) or OLDER_ATTEMPT.
    """
    attempt = 1 if request.attempt is UNSET else request.attempt
    if run is None or attempt > run.attempt:
        which = "" if request.attempt is UNSET else f"attempt {attempt} of "
        detail = f"{which}run {request.run!r} was never opened"
        raise Rejection(Reason.UNKNOWN_RUN, detail)
    if run.closed and not isinstance(request, CloseRun):
        raise Rejection(Reason.RUN_CLOSED, _is_closed(run))
    if attempt < run.attempt and request.attempt is not UNSET:
        detail = f"attempt {attempt} was fenced by attempt {run.attempt}"
        raise Rejection(Reason.OLDER_ATTEMPT, detail)
    return run


def closed(run: RunState) -> RunState:
    """Return a run closed permanently, without the data that only its next step would need."""
    return msgspec.structs.replace(run, digest=b"", decision=b"", closed=True)


def check_next_step(run: RunState, charge: Charge | ChargeRoster) -> None:
    """Check that a charge is the step after the last one (STEP_OUT_OF_ORDER)."""
    if charge.step != run.step + 1:
        detail = f"step {charge.step} does not follow step {run.step}, the last one decided"
        raise Rejection(Reason.STEP_OUT_OF_ORDER, detail)


def stored_decision(run: RunState, charge: Charge | ChargeRoster, digest: bytes) -> _AnyDecision:
    """Return the last decision, for a charge with the same content (STEP_CONTENT_CHANGED)."""
    if digest != run.digest:
        detail = f"step {charge.step} was already charged with other content"
        raise Rejection(Reason.STEP_CONTENT_CHANGED, detail)
    decision: _AnyDecision = msgspec.msgpack.decode(run.decision, type=_AnyDecision)
    return msgspec.structs.replace(decision, attempt=charge.attempt)


class _Counted(msgspec.Struct):
    """The fields of a decision that are counted: its ids alone can take half a second to decode."""

    type: str
    users: int = 0
    admitted: bytes = b""


def counted(run: RunState) -> tuple[int, int] | None:
    """Return (users, halted users) of the last step, if its decision has all users."""
    if not run.decision:
        return None
    decision = msgspec.msgpack.decode(run.decision, type=_Counted)
    if decision.type != "decision":
        return None  # it has only changes
    admitted = int.from_bytes(decision.admitted, "little").bit_count()
    return decision.users, decision.users - admitted


def _is_closed(run: RunState) -> str:
    return f"run {run.run!r} was closed after step {run.step}: charge under another run"
