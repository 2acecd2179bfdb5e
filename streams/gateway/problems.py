"""Errors as HTTP status codes, with the fields of the SDK's errors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from streams.config import Unavailable
from streams.gateway.messages import Dataset, HttpProblem
from streams.records import Holder, Policy, Reason
from streams.sdk.dataset_requests import arguments_of
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
    """The path or the body does not have the form of this document. Nothing was published."""
    UNAUTHENTICATED = "unauthenticated"
    """The request has no key, or one that is no private key of ``turnstile keys new``."""
    UNKNOWN_CALLER = "unknown-caller"
    """The gateway does not serve this key. Its setting gateway_keys has the public keys."""
    NOT_CURATOR = "not-curator"
    """Only the curator reads balances. The gateway's setting curator_keys has the public keys."""
    REFUSED = "refused"
    """The gateway is not known by this name, or the page of another site sent the request."""
    NOT_FOUND = "not-found"
    """The gateway has no such path."""
    METHOD_NOT_ALLOWED = "method-not-allowed"
    """The path does not take this method."""
    BODY_TIMEOUT = "body-timeout"
    """The body did not arrive in time."""
    RELEASE_UNKNOWN = "release-unknown"
    """More steps were charged after ``released`` than can be handed back."""
    BODY_TOO_LARGE = "body-too-large"
    """The body is too large. Charge fewer users in one step."""
    INVALID_REQUEST = "invalid-request"
    """The content is invalid or cannot be charged. Nothing was published."""
    UNCOVERED_STEP = "uncovered-step"
    """The measure of a budget cannot charge this kind of step. Nothing was published."""
    TOO_MANY_REQUESTS = "too-many-requests"
    """The gateway handles as many requests as it may. Send the same request again later."""
    FAILED = "failed"
    """The gateway failed. Release nothing. Send the same request again."""
    CONFLICTING_DECISIONS = "conflicting-decisions"
    """A decision was not made by a worker, or contradicts another one. Stop the run."""
    SERVICE_UNAVAILABLE = "service-unavailable"
    """Kafka or Redis does not answer. Release nothing. Send the same request again later."""
    DECISION_TIMEOUT = "decision-timeout"
    """Not all partitions have decided in time. Release nothing. Send the same request again: it is
    charged once."""


AnyReason: TypeAlias = Reason | ProblemReason
_REASONS: Final[Mapping[int, tuple[AnyReason, ...]]] = {
    400: (ProblemReason.MALFORMED_REQUEST,),
    401: (ProblemReason.UNAUTHENTICATED,),
    403: (
        *(ProblemReason.REFUSED, ProblemReason.UNKNOWN_CALLER, ProblemReason.NOT_CURATOR),
        Reason.NOT_ALLOWED,
    ),
    404: (
        *(ProblemReason.NOT_FOUND, Reason.UNKNOWN_DATASET),
        *(Reason.UNKNOWN_RUN, Reason.UNKNOWN_ROSTER),
    ),
    405: (ProblemReason.METHOD_NOT_ALLOWED,),
    408: (ProblemReason.BODY_TIMEOUT,),
    409: (
        *(ProblemReason.RELEASE_UNKNOWN, Reason.POLICY_CHANGED, Reason.SUPERSEDED),
        *(Reason.DATASET_CLOSED, Reason.DATASET_IN_USE, Reason.DATASET_SHARED, Reason.RUN_CLOSED),
        *(Reason.OLDER_ATTEMPT, Reason.SEPARATION_CHANGED, Reason.BUDGET_HELD, Reason.NO_ROSTERS),
        *(Reason.STEP_CONTENT_CHANGED, Reason.STEP_OUT_OF_ORDER, Reason.ROSTER_CHANGED),
        *(Reason.COLLECT_CHANGED, Reason.NOT_COLLECTING, Reason.TOO_MANY_NORMS),
    ),
    413: (ProblemReason.BODY_TOO_LARGE, Reason.TOO_LARGE),
    422: (ProblemReason.INVALID_REQUEST, ProblemReason.UNCOVERED_STEP),
    429: (ProblemReason.TOO_MANY_REQUESTS,),
    500: (ProblemReason.FAILED,),
    # The workers have another release than the gateway, or another log continues this one.
    502: (
        *(ProblemReason.CONFLICTING_DECISIONS, Reason.UNSUPPORTED_VERSION),
        *(Reason.LOG_RETIRED, Reason.LOG_CHANGED),
    ),
    503: (ProblemReason.SERVICE_UNAVAILABLE,),
    504: (ProblemReason.DECISION_TIMEOUT,),
}
UNPROCESSABLE: Final = 422
STATUSES: Final[Mapping[AnyReason, int]] = {
    **dict.fromkeys(Reason, UNPROCESSABLE),
    **{reason: status for status, reasons in _REASONS.items() for reason in reasons},
}
"""The status code of each reason; 422 for rejections that have no other one."""

RETRIED: Final = (429, 503, 504)
"""The status codes with which a caller may send the same request again."""
RETRY_AFTER: Final = 1
"""Seconds after which it may."""

_ERRORS: Final[tuple[tuple[type[Exception], ProblemReason], ...]] = (
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

    def __init__(self, reason: ProblemReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def problem_of(error: Exception) -> HttpProblem:
    """Return the problem that an error means to a caller, FAILED if the error is a bug."""
    reason: AnyReason
    fields: dict[str, Any] = {name: getattr(error, name, None) for name in _FIELDS}
    if isinstance(error, RequestRejected):
        reason = error.reason
        fields["held"] = error.held and dataset_of(error.held)
        fields["holder"] = error.holder and Holder(dataset=error.holder[0], run=error.holder[1])
    elif isinstance(error, RequestFailed):
        reason = error.reason
    else:
        known = (reason for kind, reason in _ERRORS if isinstance(error, kind))
        if (reason := next(known, ProblemReason.FAILED)) is ProblemReason.FAILED:
            detail = "the gateway failed: release nothing, and send the same request again"
            return HttpProblem(status=STATUSES[reason], reason=reason, detail=detail)
    if fields["covered_by"] is not None:
        fields["covered_by"] = list(fields["covered_by"])
    return HttpProblem(status=STATUSES[reason], reason=reason, detail=str(error), **fields)


def dataset_of(policy: Policy, *, closed: bool = False) -> Dataset:
    """Return a policy in the form of a response."""
    return msgspec.convert({**arguments_of(policy), "closed": closed}, Dataset)
