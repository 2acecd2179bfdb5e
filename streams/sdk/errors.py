"""What can go wrong for a trainer or a query answerer, by who can do something about it.

After any of these nothing may be released. The message says what happened and what to do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from streams.schemas import Policy, Reason, Rejected


class TurnstileError(Exception):
    """Base of all errors of the SDK. After any of them nothing may be released."""


class InvalidRequest(TurnstileError, ValueError):
    """The caller's arguments cannot be charged. Nothing was published."""


class ReleaseUnknown(InvalidRequest):
    """The run was charged for more steps after ``released`` than can be handed back.

    Only the caller can find out which of these steps went out. ``released=newest`` gives all of
    them up: they stay charged, and nothing more of them may be released.

    Attributes:
        released: the step that the caller named.
        newest: the last step that all partitions have decided.
    """

    def __init__(self, run: str, released: int, newest: int, *, is_last: bool = True) -> None:
        handed_back = (
            f". Only if you know that step {newest} did not go out, open the run with "
            f"released={newest - 1}, which hands that step back. A trainer that charges ahead "
            "opens its runs with charges_ahead"
        )
        super().__init__(
            f"released is {released}, but run {run!r} has charged up to step {newest}: which of "
            f"steps {released + 1} to {newest} went out is not known. Give them up with "
            f"released={newest}; they stay charged" + (handed_back if is_last else "")
        )
        self.run, self.released, self.newest, self._is_last = run, released, newest, is_last

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts."""
        rebuild = partial(type(self), is_last=self._is_last)
        return rebuild, (self.run, self.released, self.newest)


class ReleasedTwice(TurnstileError):
    """The step was released before, by this process or another one. Nothing was released now."""


class Unusable(TurnstileError, RuntimeError):
    """This object cannot be used any more, or not here: it is closed, belongs to another process,
    is in use by another thread, or its attempt has failed. Nothing was published."""


class RequestRejected(TurnstileError):
    """The request was refused; it changed no budget where it was refused.

    Attributes:
        reason: why, for programs.
        detail: why, for people.
        partition: which partition refused; None if none was asked.
        current_attempt: the attempt of the run in that partition, if it has one.
        held: the policy that the dataset has, if it is another one than was asked for.
        holder: dataset and name of the run that holds the budget, if another one asked for it.
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
        where = "refused" if partition is None else f"partition {partition} refused"
        advice = ADVICE.get(reason)
        super().__init__(f"{where}: {reason}: {detail}" + (f"; {advice}" if advice else ""))
        self.current_attempt = current_attempt
        self.held, self.holder = held, holder
        self.reason = reason
        self.detail = detail
        self.partition = partition

    def __reduce__(self) -> tuple[type[RequestRejected], tuple[object, ...]]:
        """Pickle by the parts, so that the error survives a process boundary."""
        parts = self.reason, self.detail, self.partition, self.current_attempt
        return type(self), (*parts, self.held, self.holder)


class PolicyChanged(RequestRejected):
    """The dataset exists under another policy, which never changes."""


class PartitionsDisagree(PolicyChanged):
    """The partitions do not hold the dataset under one policy, there are more or fewer of them
    than it was made for, or they have come to different steps of a run. Nothing can be charged."""

    def __init__(self, detail: str, partition: int | None) -> None:
        super().__init__(Reason.POLICY_CHANGED, detail, partition)
        self.args = (detail,)  # nobody refused: the detail says it all

    def __reduce__(self) -> tuple[type[RequestRejected], tuple[object, ...]]:
        return type(self), (self.detail, self.partition)


class DatasetInUse(RequestRejected):
    """The dataset cannot be withdrawn: a run of it was opened."""


class Fenced(RequestRejected):
    """A newer attempt of this run is at work. This one must stop."""


class BudgetHeld(RequestRejected):
    """Another run holds the budget, which one run at a time charges. Nothing was charged.

    Close that run, or open this one with ``take_over=True``, which fences that one. A run that was
    fenced in this way gets this error at its next charge, and must stop.
    """


class DatasetIsClosed(RequestRejected):
    """The dataset was closed, which is for good."""


class RunIsClosed(RequestRejected):
    """The run was closed, which is for good."""


class StepContentChanged(RequestRejected):
    """The step was decided for other users or norms. Nothing was charged for these."""


class SeparationChanged(RequestRejected):
    """The run has been charged with another ``min_separation``, or with none."""


class DecisionTimeout(TurnstileError, TimeoutError):
    """Not all partitions answered in time. Asking the same again is safe: it is decided once."""


class ForgottenInPart(TurnstileError):
    """The user was forgotten where this client may manage datasets, and nowhere else.

    Attributes:
        datasets: where the user is forgotten.
        not_allowed: outermost datasets that this client may not manage. The user may be in them.
    """

    def __init__(self, datasets: list[str], not_allowed: list[str]) -> None:
        super().__init__(
            f"the user is forgotten in {datasets}, but this client may not manage {not_allowed}: "
            "sign the request as a principal that may"
        )
        self.datasets, self.not_allowed = datasets, not_allowed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts."""
        return type(self), (self.datasets, self.not_allowed)


class ServiceUnavailable(TurnstileError):
    """Kafka cannot be reached, does not take what is published, or the topics are not there."""


class ConflictingDecisions(TurnstileError):
    """Two different decisions for one step, or one that does not fit what was asked: somebody else
    writes to `halts`, or something is badly wrong. Nothing may go on."""


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
    "this is not what this SDK meant to send, so SDK and worker differ: upgrade the workers, then "
    "the SDK"
)
_OTHER_CONTENT = "nothing of this step may be released: open the run again and abandon it"

ADVICE: dict[Reason, str] = {
    Reason.UNSUPPORTED_VERSION: "the worker is older than this SDK: upgrade the workers first",
    Reason.MALFORMED: _OTHER_VERSION,
    Reason.INVALID_POLICY: "change the arguments of create_dataset",
    Reason.POLICY_CHANGED: (
        "ask for the policy that is there. A dataset of another name would begin with nothing "
        "spent, for the same people"
    ),
    Reason.INVALID_KEY: "make a pair of keys with `turnstile keys new`",
    Reason.UNKNOWN_DATASET: "check its name, or create it with create_dataset",
    Reason.NOT_ALLOWED: (
        "sign requests as a principal that may: the settings principal and request_key. The "
        "operator registers its public key with `turnstile principal add`"
    ),
    Reason.SUPERSEDED: "say it again, unless the later word is the one that holds",
    Reason.DATASET_CLOSED: (
        "use another dataset of these users, within one whose budget is still charged"
    ),
    Reason.DATASET_IN_USE: "keep it: what was charged to it stays charged",
    Reason.DATASET_SHARED: "charge the shares, each by its own runs",
    Reason.UNKNOWN_RUN: "open the run again with Turnstile.run",
    Reason.RUN_CLOSED: "open a run of another name; the budgets of the dataset go on",
    Reason.OLDER_ATTEMPT: "stop here, unless the other one is not meant to run",
    Reason.SEPARATION_CHANGED: "the budgets of the dataset go on, whatever the run",
    Reason.BUDGET_HELD: (
        "close that run if it is done, take the budget over (take_over=True), which fences it, or "
        "give each run a share of the budget (create_dataset with share_of)"
    ),
    Reason.STEP_CONTENT_CHANGED: (
        "charge exactly what was charged before, in the same order of users, or give the step up "
        "with abandon"
    ),
    Reason.STEP_OUT_OF_ORDER: "open the run again with Turnstile.run: its step is the next one",
    Reason.NO_ROSTERS: "use Run.charge, or a run of another name",
    Reason.UNKNOWN_ROSTER: "enrol the users of the run with Run.enrol",
    Reason.ROSTER_CHANGED: (
        "enrol the same users in the same order, new ones at the end, or charge under another run"
    ),
    Reason.TOO_LARGE: (
        "charge fewer users in one step, close runs that are done, or use more partitions for a "
        "new service"
    ),
    Reason.LENGTH_MISMATCH: _OTHER_VERSION,
    Reason.INVALID_MECHANISM: _OTHER_CONTENT,
    Reason.INVALID_TARIFF: _OTHER_VERSION,
    Reason.INVALID_LEVELS: _OTHER_VERSION,
    Reason.MIXED_USERS: _OTHER_CONTENT,
    Reason.INVALID_NORM: _OTHER_VERSION,
    Reason.NORM_ABOVE_CLIP: _OTHER_VERSION,
    Reason.DUPLICATE_USER: _OTHER_VERSION,
    Reason.WRONG_PARTITION: _OTHER_VERSION,
}
"""What to do about a refusal."""


def refusal_of(rejected: Rejected) -> RequestRejected:
    """The exception of a rejected request."""
    kind = _KINDS.get(rejected.reason, RequestRejected)
    return kind(
        rejected.reason,
        rejected.detail,
        rejected.partition,
        rejected.current_attempt,
        rejected.held,
        None if rejected.holder is None else (rejected.holder.dataset, rejected.holder.run),
    )
