"""Why a record is refused."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.schemas.requests import Holder, Policy, Request


class Reason(StrEnum):
    """Why a record was refused, in the order in which the checks are made.

    One check is out of this order: a record of more than ``MAX_REQUEST_BYTES`` is rejected as too
    large before it is decoded.
    """

    UNSUPPORTED_VERSION = "unsupported-version"
    MALFORMED = "malformed"  # not MessagePack, not JSON, truncated, wrong types or ranges
    INVALID_POLICY = "invalid-policy"
    INVALID_ACCESS = "invalid-access"  # an access list with an invalid key, or without a manager
    POLICY_CHANGED = "policy-changed"  # the dataset exists with another policy
    UNKNOWN_DATASET = "unknown-dataset"
    NOT_ALLOWED = "not-allowed"  # not signed by a key that has the right
    SUPERSEDED = "superseded"  # the access list was set with this number or a higher one
    DATASET_CLOSED = "dataset-closed"  # nothing is charged to it any more, and it stays
    DATASET_IN_USE = "dataset-in-use"  # it cannot be withdrawn: a run has been opened
    DATASET_SHARED = "dataset-shared"  # it is charged through its shares, or one is not closed
    UNKNOWN_RUN = "unknown-run"  # charged or closed before it was opened
    RUN_CLOSED = "run-closed"  # it can neither be charged nor opened again
    OLDER_ATTEMPT = "older-attempt"  # fenced by a newer attempt, or the number is taken
    SEPARATION_CHANGED = "separation-changed"  # the run has another minimum separation
    BUDGET_HELD = "budget-held"  # another run holds a budget that this one would charge
    STEP_CONTENT_CHANGED = "step-content-changed"  # same step, other content
    STEP_OUT_OF_ORDER = "step-out-of-order"  # neither the last step nor the next one
    NO_ROSTERS = "no-rosters"  # a run with a minimum separation has none
    UNKNOWN_ROSTER = "unknown-roster"  # nobody has been enrolled in the run
    ROSTER_CHANGED = "roster-changed"  # not the users, the clip norm or the grid that it has
    TOO_LARGE = "too-large"  # above a fixed maximum (MAX_... in streams.schemas)
    LENGTH_MISMATCH = "length-mismatch"  # not one norm per user
    INVALID_MECHANISM = "invalid-mechanism"  # the measure cannot charge it, or its scale is bad
    INVALID_COST_TABLE = "invalid-cost-table"  # impossible prices, or a table not known here
    INVALID_LEVELS = "invalid-levels"  # beyond the grid, or positions that are not in the roster
    MIXED_USERS = "mixed-users"  # ids of another kind than those of the dataset
    INVALID_NORM = "invalid-norm"  # NaN, infinite or negative
    NORM_ABOVE_CLIP = "norm-above-clip"
    DUPLICATE_USER = "duplicate-user"
    WRONG_PARTITION = "wrong-partition"  # the user lives in another partition


MAX_DETAIL = 500


class Rejection(Exception):
    """A record that is not applied: its reason for programs, its detail for people.

    The detail is cut to ``MAX_DETAIL`` characters: it may quote the record, which may be long.

    Attributes:
        request: the decoded record, if it could be decoded.
        held: for POLICY_CHANGED, the policy that the dataset has.
        holder: for BUDGET_HELD, the run that holds the budget, if one does.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        request: Request | None = None,
        *,
        held: Policy | None = None,
        holder: Holder | None = None,
    ) -> None:
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[:MAX_DETAIL]} ..."
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.request = request
        self.held = held
        self.holder = holder
