"""Errors as HTTP status codes, with the fields of the SDK's errors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from streams.gateway.messages import Dataset, HolderRun, HttpProblem
from streams.operations.status import Unavailable
from streams.records import Policy, Reason
from streams.sdk.datasets import arguments_of
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    InvalidRequest,
    ReleaseUnknown,
    RequestRejected,
    ServiceUnavailable,
    UncoveredStep,
    Unusable,
)


class ProblemReason(StrEnum):
    """Why a request failed, if no worker has rejected it."""

    MALFORMED_REQUEST = "malformed-request"
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_CALLER = "unknown-caller"
    REFUSED = "refused"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    BODY_TIMEOUT = "body-timeout"
    RELEASE_UNKNOWN = "release-unknown"
    BODY_TOO_LARGE = "body-too-large"
    INVALID_REQUEST = "invalid-request"
    UNCOVERED_STEP = "uncovered-step"
    TOO_MANY_REQUESTS = "too-many-requests"
    FAILED = "failed"
    CONFLICTING_DECISIONS = "conflicting-decisions"
    SERVICE_UNAVAILABLE = "service-unavailable"
    DECISION_TIMEOUT = "decision-timeout"


class Meaning(NamedTuple):
    """The status code of a reason, and what it means to callers."""

    status: int
    text: str


PROBLEMS: Final[Mapping[ProblemReason, Meaning]] = {
    ProblemReason.MALFORMED_REQUEST: Meaning(
        400, "The path or the body does not have the form of this document. Nothing was published."
    ),
    ProblemReason.UNAUTHENTICATED: Meaning(
        401, "The request has no key, or one that is no private key of `turnstile keys new`."
    ),
    ProblemReason.UNKNOWN_CALLER: Meaning(
        403, "The gateway does not serve this key. Its setting gateway_keys has the public keys."
    ),
    ProblemReason.REFUSED: Meaning(
        403, "The gateway is not known by this name, or the page of another site sent the request."
    ),
    ProblemReason.NOT_FOUND: Meaning(404, "The gateway has no such path."),
    ProblemReason.METHOD_NOT_ALLOWED: Meaning(405, "The path does not take this method."),
    ProblemReason.BODY_TIMEOUT: Meaning(408, "The body did not arrive in time."),
    ProblemReason.RELEASE_UNKNOWN: Meaning(
        409, "More steps were charged after `released` than can be handed back."
    ),
    ProblemReason.BODY_TOO_LARGE: Meaning(
        413, "The body is too large. Charge fewer users in one step."
    ),
    ProblemReason.INVALID_REQUEST: Meaning(
        422, "The content is invalid or cannot be charged. Nothing was published."
    ),
    ProblemReason.UNCOVERED_STEP: Meaning(
        422, "The measure of a budget cannot charge this kind of step. Nothing was published."
    ),
    ProblemReason.TOO_MANY_REQUESTS: Meaning(
        429, "The gateway handles as many requests as it may. Send the same request again later."
    ),
    ProblemReason.FAILED: Meaning(500, "The gateway failed. Send the same request again."),
    ProblemReason.CONFLICTING_DECISIONS: Meaning(
        502, "A decision was not made by a worker, or contradicts another one. Stop the run."
    ),
    ProblemReason.SERVICE_UNAVAILABLE: Meaning(
        503, "Kafka or Redis does not answer. Release nothing. Send the same request again later."
    ),
    ProblemReason.DECISION_TIMEOUT: Meaning(
        504,
        "Not all partitions have decided in time. Release nothing. Send the same request again: "
        "it is charged once.",
    ),
}

REJECTIONS: Final[Mapping[Reason, int]] = {
    **dict.fromkeys(Reason, 422),
    Reason.NOT_ALLOWED: 403,
    **dict.fromkeys((Reason.UNKNOWN_DATASET, Reason.UNKNOWN_RUN, Reason.UNKNOWN_ROSTER), 404),
    Reason.TOO_LARGE: 413,
    **dict.fromkeys(
        (
            Reason.POLICY_CHANGED,
            Reason.SUPERSEDED,
            Reason.DATASET_CLOSED,
            Reason.DATASET_IN_USE,
            Reason.DATASET_SHARED,
            Reason.RUN_CLOSED,
            Reason.OLDER_ATTEMPT,
            Reason.SEPARATION_CHANGED,
            Reason.BUDGET_HELD,
            Reason.STEP_CONTENT_CHANGED,
            Reason.STEP_OUT_OF_ORDER,
            Reason.NO_ROSTERS,
            Reason.ROSTER_CHANGED,
        ),
        409,
    ),
    # The workers have another release than the gateway, or another log continues this one.
    **dict.fromkeys((Reason.UNSUPPORTED_VERSION, Reason.LOG_RETIRED, Reason.LOG_CHANGED), 502),
}
"""The status code of each rejection by a worker."""

RETRY_AFTER: Final = 1
"""Seconds after which a caller may send the same request again, with status 429, 503 or 504."""

_REASONS: Final[tuple[tuple[type[Exception], ProblemReason], ...]] = (
    (UncoveredStep, ProblemReason.UNCOVERED_STEP),
    (ReleaseUnknown, ProblemReason.RELEASE_UNKNOWN),
    (InvalidRequest, ProblemReason.INVALID_REQUEST),
    (DecisionTimeout, ProblemReason.DECISION_TIMEOUT),
    (ConflictingDecisions, ProblemReason.CONFLICTING_DECISIONS),
    (ServiceUnavailable, ProblemReason.SERVICE_UNAVAILABLE),
    (Unavailable, ProblemReason.SERVICE_UNAVAILABLE),
    (Unusable, ProblemReason.SERVICE_UNAVAILABLE),
)
_FIELDS: Final = ("partition", "current_attempt", "released", "newest", "measure", "covered_by")


class RequestFailed(Exception):
    """A request that the gateway refuses before anything is published."""

    def __init__(self, reason: ProblemReason, detail: str = "") -> None:
        super().__init__(detail or PROBLEMS[reason].text)
        self.reason = reason


def problem_of(error: Exception) -> HttpProblem | None:
    """Return the problem that an error means to a caller; None if the error is a bug."""
    fields: dict[str, Any] = {name: getattr(error, name, None) for name in _FIELDS}
    if isinstance(error, RequestRejected):
        holder = None if error.holder is None else HolderRun(*error.holder)
        fields |= {"holder": holder, "held": error.held and dataset_of(error.held)}
        status, reason = REJECTIONS[error.reason], str(error.reason)
    else:
        known = getattr(error, "reason", None) if isinstance(error, RequestFailed) else None
        found = known or next((each for kind, each in _REASONS if isinstance(error, kind)), None)
        if found is None:
            return None
        status, reason = PROBLEMS[found].status, str(found)
    if fields["covered_by"] is not None:
        fields["covered_by"] = list(fields["covered_by"])
    return HttpProblem(status=status, reason=reason, detail=str(error), **fields)


def dataset_of(policy: Policy, *, closed: bool = False) -> Dataset:
    """Return a policy in the form of a response."""
    return msgspec.convert({**arguments_of(policy), "closed": closed}, Dataset)
