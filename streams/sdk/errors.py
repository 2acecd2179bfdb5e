"""The errors of the SDK, by what the caller can do about them.

After any of these nothing may be released. The message says what happened and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from accounting import InvalidInput
from streams.failures import Exit, Failure
from streams.records import Measure, Policy, Reason, Rejected, Rejection

if TYPE_CHECKING:
    from streams.kafka.security import ConnectionFailure


class TurnstileError(Failure):
    """Base class of all errors of the SDK. After any of them nothing may be released."""

    exit_code = Exit.REFUSED

    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor's arguments."""
        error = super().__new__(cls, *args)
        error._given = args, kwargs
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle these arguments, so that the error survives a process boundary."""
        args, kwargs = self._given
        return partial(type(self), **kwargs), args


class InvalidRequest(TurnstileError, ValueError):
    """The caller's arguments are invalid or cannot be charged. Nothing was published."""

    exit_code = Exit.USAGE


class UncoveredStep(InvalidRequest):
    """A budget's measure cannot charge this kind of step. Nothing was published.

    Attributes:
        measure: the measure of the budget.
        covered_by: the measures that can charge the step. A policy never changes, so charge a
            dataset that has one of them.
    """

    def __init__(self, detail: str, measure: Measure, covered_by: tuple[Measure, ...]) -> None:
        super().__init__(detail)
        self.measure, self.covered_by = measure, covered_by


class ReleaseUnknown(InvalidRequest):
    """More steps were charged after ``released`` than can be handed back.

    Only the caller can find out which of these steps were released. ``released=newest`` gives all
    of them up: they stay charged, and nothing more of them may be released.

    Attributes:
        released: the step that the caller named.
        newest: the last step that all partitions have decided.
    """

    def __init__(self, run: str, released: int, newest: int, *, is_last: bool = True) -> None:
        handed_back = (
            f". If step {newest} was certainly not released, open the run with "
            f"released={newest - 1} instead, which hands that step back. A trainer that charges "
            "ahead opens its runs with charges_ahead"
        )
        super().__init__(
            f"released is {released}, but run {run!r} has charged up to step {newest}, so it is "
            f"unknown which of steps {released + 1} to {newest} were released. Give them up with "
            f"released={newest}; they stay charged" + (handed_back if is_last else "")
        )
        self.run, self.released, self.newest = run, released, newest


class ReleasedTwice(TurnstileError):
    """The step was released before, by this or another process. Nothing was released now."""


class Unusable(TurnstileError, RuntimeError):
    """This object cannot be used, or not now. Nothing was published.

    It is closed, belongs to another process, is in use by another thread, or its attempt has
    failed.
    """


class RequestRejected(TurnstileError):
    """The request was rejected. It changed no budget in the partition that rejected it.

    Attributes:
        reason: the reason as an enum member, for programs.
        detail: the reason as text, for people.
        partition: the partition that rejected the request; None if none was asked.
        current_attempt: the newest attempt of the run in that partition, if there is one.
        held: the policy that the dataset has, if another one was requested.
        holder: dataset and name of the run that holds the budget, if another run requested it.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        partition: int | None,
        current_attempt: int | None = None,
        held: Policy | None = None,
        holder: tuple[str, str] | None = None,
    ) -> None:
        by = "rejected" if partition is None else f"partition {partition} rejected the request"
        advice = ADVICE.get(reason)
        super().__init__(f"{by}: {reason}: {detail}" + (f"; {advice}" if advice else ""))
        self.current_attempt = current_attempt
        self.held, self.holder = held, holder
        self.reason = reason
        self.detail = detail
        self.partition = partition


class PolicyChanged(RequestRejected):
    """The dataset exists under another policy. A policy never changes."""


class PartitionsDisagree(PolicyChanged):
    """The partitions differ, so nothing can be charged.

    They hold the dataset under different policies or not at all, there are more or fewer of them
    than it was made for, or they are at different steps of a run.
    """

    def __init__(self, detail: str, partition: int | None) -> None:
        super().__init__(Reason.POLICY_CHANGED, detail, partition)
        self.args = (detail,)  # no partition rejected a request: the detail is the message


class DatasetInUse(RequestRejected):
    """The dataset cannot be withdrawn because a run of it was opened."""


class Fenced(RequestRejected):
    """A newer attempt of this run exists, so this one must stop."""


class BudgetHeld(RequestRejected):
    """Another run holds the budget, which one run at a time charges. Nothing was charged.

    Close that run, or open this one with ``take_over=True``, which fences that run. A run that was
    fenced in this way gets this error at its next charge, and must stop.
    """


class DatasetIsClosed(RequestRejected):
    """The dataset was closed permanently."""


class RunIsClosed(RequestRejected):
    """The run was closed permanently."""


class StepContentChanged(RequestRejected):
    """The step was decided with other content. The content of this request was not charged."""


class SeparationChanged(RequestRejected):
    """The run has been charged with another ``min_separation``, or with none."""


class DecisionTimeout(TurnstileError, TimeoutError):
    """Not all partitions answered in time. It is safe to repeat the same request: it is decided
    once.
    """

    exit_code = Exit.UNAVAILABLE


class ErasedInPart(TurnstileError):
    """The user was erased from the datasets that this client may manage, and from no others.

    Attributes:
        datasets: the datasets in which the user is erased.
        not_allowed: the outermost datasets of families in which this client may not erase the
            user, who may be in them. It would have to manage all of a family.
    """

    def __init__(self, datasets: list[str], not_allowed: list[str]) -> None:
        super().__init__(
            f"the user is erased from {datasets}, but this client may not manage {not_allowed}: "
            "sign the request with a key that may"
        )
        self.datasets, self.not_allowed = datasets, not_allowed


class ServiceUnavailable(TurnstileError):
    """Kafka cannot be reached or rejects records, or the topics do not exist.

    Attributes:
        reason: the reason for which the broker rejects this client; None for other causes.
    """

    exit_code = Exit.UNAVAILABLE

    def __init__(self, message: str = "", reason: ConnectionFailure | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FileProblem(StrEnum):
    """Why a budget file cannot be used."""

    MISSING = "missing"
    UNREADABLE = "unreadable"  # no right to read it, a folder, or an input or output error
    READ_ONLY = "read-only"
    FOREIGN = "foreign"  # Turnstile has not written it
    OTHER_LAYOUT = "other-layout"  # another release has written it
    DAMAGED = "damaged"
    REPLACED = "replaced"  # since it was opened, by another file or by an older copy
    BUSY = "busy"  # other processes keep it locked
    FULL = "full"  # no space is left for it, or it could not be written
    EXISTS = "exists"  # a copy would replace it
    WRITE_AHEAD = "write-ahead"  # another program has set WAL mode
    MOVED = "moved"  # its log was moved into a service


class UnusableFile(ServiceUnavailable):
    """The budget file cannot be used. Nothing was charged.

    Attributes:
        path: the file.
        problem: why.
        detail: more about it, for people.
    """

    def __init__(self, path: str, problem: FileProblem, detail: str = "") -> None:
        super().__init__(f"{path} {FILE_ADVICE[problem]}" + (f" ({detail})" if detail else ""))
        self.path, self.problem, self.detail = path, problem, detail


FILE_ADVICE: dict[FileProblem, str] = {
    FileProblem.MISSING: "does not exist: check the path. Turnstile.open creates a new file",
    FileProblem.UNREADABLE: (
        "cannot be read or written: check the disk, and the rights on the file and its folder"
    ),
    FileProblem.READ_ONLY: (
        "cannot be written: give this user the right to write the file and its folder"
    ),
    FileProblem.FOREIGN: "is not a budget file, and was not changed: choose another path",
    FileProblem.OTHER_LAYOUT: "was written by another release, and was not changed: use that one",
    FileProblem.DAMAGED: (
        "is damaged: restore a copy that has all charges. An older copy, or a new file, would let "
        "users spend the missing charges again"
    ),
    FileProblem.REPLACED: (
        "is not the file that was opened: it was moved, deleted or replaced by an older copy. Put "
        "it back, and open it again"
    ),
    FileProblem.BUSY: "is locked by another process: try again",
    FileProblem.FULL: (
        "cannot grow: make room on the disk, or raise the quota or the limit of file sizes. If "
        "there is room, check the disk"
    ),
    FileProblem.EXISTS: "exists already: give the copy another name",
    FileProblem.WRITE_AHEAD: (
        "is in WAL mode, which another program has set: close that program and all clients of the "
        "file, and open it again"
    ),
    FileProblem.MOVED: "was moved into a service, which continues its budgets: use the service",
}
"""The problem of a budget file and its remedy, after the path in the message."""


class ConflictingDecisions(TurnstileError):
    """A decision contradicts another one for the same step, or does not fit its request.

    Another program than the workers writes to `halts`, or a worker is faulty. Stop the run.
    """

    exit_code = Exit.SOFTWARE


_KINDS: dict[Reason, type[RequestRejected]] = {
    Reason.POLICY_CHANGED: PolicyChanged,
    Reason.DATASET_CLOSED: DatasetIsClosed,
    Reason.DATASET_IN_USE: DatasetInUse,
    Reason.OLDER_ATTEMPT: Fenced,
    Reason.BUDGET_HELD: BudgetHeld,
    Reason.RUN_CLOSED: RunIsClosed,
    Reason.SEPARATION_CHANGED: SeparationChanged,
    Reason.STEP_CONTENT_CHANGED: StepContentChanged,
}

_OTHER_VERSION = (
    "the worker reads another request than this SDK meant to send, so their versions differ: "
    "upgrade the workers, then the SDK"
)
_OTHER_CONTENT = "release nothing of this step: open the run again and abandon it"

ADVICE: dict[Reason, str] = {
    Reason.UNSUPPORTED_VERSION: "the worker is older than this SDK: upgrade the workers first",
    Reason.MALFORMED: _OTHER_VERSION,
    Reason.LOG_RETIRED: "use the prefix of the log that continues this one",
    Reason.LOG_CHANGED: _OTHER_VERSION,
    Reason.INVALID_POLICY: "change the arguments of create_dataset",
    Reason.INVALID_ACCESS: (
        "give at least one key the right to manage the dataset, and make keys with "
        "`turnstile keys new --for requests`"
    ),
    Reason.POLICY_CHANGED: (
        "use the policy that the dataset has. A dataset of another name would let the same users "
        "begin with nothing spent"
    ),
    Reason.UNKNOWN_DATASET: "check its name, or create it with create_dataset",
    Reason.NOT_ALLOWED: (
        "sign requests with a key that has the right: the setting request_key. A manager of the "
        "dataset adds its public key to the access list with `turnstile dataset access`"
    ),
    Reason.SUPERSEDED: (
        "look at the list that is in force; set it again if yours should replace it, and check the "
        "clocks of those who set it"
    ),
    Reason.DATASET_CLOSED: (
        "use another dataset of these users, nested in one whose budget is still charged"
    ),
    Reason.DATASET_IN_USE: "keep it: what was charged to it stays charged",
    Reason.DATASET_SHARED: "charge the shares, each by its own runs",
    Reason.UNKNOWN_RUN: "open the run again",
    Reason.RUN_CLOSED: "it continues the dataset's budgets",
    Reason.OLDER_ATTEMPT: "stop here, unless the newer attempt was started by mistake",
    Reason.SEPARATION_CHANGED: "use the same min_separation, or a run of another name",
    Reason.BUDGET_HELD: (
        "close that run with close_run if it is done, take the budget over (take_over=True), which "
        "fences it, or give each run a share of the budget (create_dataset with share_of)"
    ),
    Reason.STEP_CONTENT_CHANGED: (
        "charge exactly what was charged before, in the same order of users, or give the step up "
        "with abandon"
    ),
    Reason.STEP_OUT_OF_ORDER: "open the run again: its step is the next one",
    Reason.NO_ROSTERS: "use Run.charge, or a run of another name",
    Reason.UNKNOWN_ROSTER: "enrol the users of the run with Run.enrol",
    Reason.ROSTER_CHANGED: (
        "enrol the same users in the same order, new ones at the end, or charge under another run"
    ),
    Reason.NOT_COLLECTING: (
        "open a run of another name: a run collects norms or is charged with named users"
    ),
    Reason.COLLECT_CHANGED: "leave collect out, or open a run of another name",
    Reason.STEP_DECIDED: "send norms before the step is charged, on a public schedule",
    Reason.TOO_LARGE: (
        "charge fewer users in one step, close runs that are finished, or create the topics of a "
        "new service with more partitions"
    ),
    Reason.LENGTH_MISMATCH: _OTHER_VERSION,
    Reason.INVALID_MECHANISM: _OTHER_CONTENT,
    Reason.INVALID_COST_TABLE: _OTHER_VERSION,
    Reason.INVALID_LEVELS: _OTHER_VERSION,
    Reason.MIXED_USERS: _OTHER_CONTENT,
    Reason.INVALID_NORM: _OTHER_VERSION,
    Reason.NORM_ABOVE_CLIP: _OTHER_VERSION,
    Reason.DUPLICATE_USER: _OTHER_VERSION,
    Reason.WRONG_PARTITION: _OTHER_VERSION,
    Reason.USER_ERASED: "leave the user out of every later step, and of the data",
    Reason.NORM_CHANGED: "send one norm for each user and step",
    Reason.TOO_MANY_NORMS: (
        "open the run again, and give the step up with abandon if it is handed back; otherwise "
        "close the run. Create the topics of a new service with more partitions"
    ),
}
"""Advice for the message of a rejection, by its reason."""


def refusal_of(rejected: Rejected) -> RequestRejected:
    """Return the exception for a rejected request."""
    kind = _KINDS.get(rejected.reason, RequestRejected)
    return kind(
        rejected.reason,
        rejected.detail,
        rejected.partition,
        rejected.current_attempt,
        rejected.held,
        None if rejected.holder is None else (rejected.holder.dataset, rejected.holder.run),
    )


def not_of_a_worker(partition: int, complaint: str) -> ConflictingDecisions:
    """Return the error for an answer that a worker cannot have made."""
    return ConflictingDecisions(
        f"the answer of partition {partition} {complaint}: it was not made by a worker. Release "
        "nothing of this step, and find out what writes to halts"
    )


@contextmanager
def invalid_requests() -> Iterator[None]:
    """Raise ``InvalidRequest`` for arguments that accounting or the ledger's checks reject."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    except Rejection as rejected:
        if rejected.uncovered is not None:
            raise UncoveredStep(
                rejected.detail, rejected.uncovered, rejected.covered_by
            ) from rejected
        raise InvalidRequest(rejected.detail) from rejected
