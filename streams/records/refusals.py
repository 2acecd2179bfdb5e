"""The reasons for rejecting a request."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.records.requests import Holder, Policy, Request


class Reason(StrEnum):
    """Why a request was rejected, in the order of the checks.

    The size of a record is checked before it is decoded, and the size of a decision last.
    """

    UNSUPPORTED_VERSION = "unsupported-version"
    """The record has another version than 1."""
    MALFORMED = "malformed"
    """Neither MessagePack nor JSON, truncated, with wrong types or ranges, with a packed array of a
    wrong length, or with an id that is not in normal form."""
    LOG_RETIRED = "log-retired"
    """The log has ended, and another log continues its state."""
    LOG_CHANGED = "log-changed"
    """The partition is not as a ``retire`` expects it, or an ``import`` is not the first record."""
    INVALID_POLICY = "invalid-policy"
    """The fields of the policy do not fit together."""
    INVALID_ACCESS = "invalid-access"
    """The access list has an invalid key, is not in order, gives no key the right to manage, or is
    that of a dataset nested in one without a list."""
    POLICY_CHANGED = "policy-changed"
    """The dataset exists under another policy, and a policy never changes."""
    UNKNOWN_DATASET = "unknown-dataset"
    """The dataset, its parent or the dataset that it shares was never created."""
    NOT_ALLOWED = "not-allowed"
    """The request is not signed by a key with the required right."""
    SUPERSEDED = "superseded"
    """The access list was set with this number or a higher one."""
    DATASET_CLOSED = "dataset-closed"
    """The dataset is closed. It cannot be charged, opened, created, withdrawn or nested in."""
    DATASET_IN_USE = "dataset-in-use"
    """The dataset cannot be withdrawn: a run was opened, or another dataset is nested in it or has
    a share of it."""
    DATASET_SHARED = "dataset-shared"
    """The dataset is charged through its shares, or one of its shares is not closed."""
    UNKNOWN_RUN = "unknown-run"
    """The run was never opened."""
    RUN_CLOSED = "run-closed"
    """The run is closed. It can be neither charged nor opened again."""
    OLDER_ATTEMPT = "older-attempt"
    """A newer attempt has fenced this one, or the attempt's number is taken."""
    SEPARATION_CHANGED = "separation-changed"
    """The run has another minimum separation, and has been charged or has a roster."""
    BUDGET_HELD = "budget-held"
    """Another run holds the budget, or this run was fenced and must be opened again."""
    STEP_CONTENT_CHANGED = "step-content-changed"
    """The step was charged with other content."""
    STEP_OUT_OF_ORDER = "step-out-of-order"
    """The step is neither the last step nor the next one."""
    NO_ROSTERS = "no-rosters"
    """A run with a minimum separation has no roster."""
    UNKNOWN_ROSTER = "unknown-roster"
    """No user has been enrolled in the run."""
    ROSTER_CHANGED = "roster-changed"
    """The roster has other users, another clip norm, another grid or another number of members."""
    TOO_LARGE = "too-large"
    """A fixed maximum is exceeded. A request has at most 524288 users and 8 MiB. Its step changes
    at most 3145728 accounts (users x budgets) and 16777216 balances (users x orders, over all
    budgets), where an enrolment counts all members. At most 16 rosters of open runs share an
    outermost budget. A log has at most 65536 datasets. A decision has at most 16 MiB: 4096 + users
    x 3 / 2, and for each user the id in the decision (8 bytes where all are integers, else 9, or 3
    and the UTF-8 of the string), or 12 if that is fewer and norms are clipped."""
    LENGTH_MISMATCH = "length-mismatch"
    """The numbers of users and norms differ."""
    INVALID_MECHANISM = "invalid-mechanism"
    """The measure of a budget cannot charge the mechanism, or its scale is invalid."""
    INVALID_COST_TABLE = "invalid-cost-table"
    """A roster's steps cannot have these costs, or the table with this digest is not known here."""
    INVALID_LEVELS = "invalid-levels"
    """A level is above the grid, positions are not in the roster or do not increase, or two norms
    of the grid are equal."""
    MIXED_USERS = "mixed-users"
    """The ids are of another kind than the policy allows, or pseudonyms of another key."""
    INVALID_NORM = "invalid-norm"
    """A norm is NaN, infinite or negative."""
    NORM_ABOVE_CLIP = "norm-above-clip"
    """A norm exceeds ``clip_norm``."""
    DUPLICATE_USER = "duplicate-user"
    """A user appears twice in a step or in a roster."""
    WRONG_PARTITION = "wrong-partition"
    """The user lives in another partition."""


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
