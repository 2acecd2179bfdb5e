"""Which budgets a request is about, and whether anything may be charged to them."""

from __future__ import annotations

from streams.ledger.accrual import wake
from streams.ledger.budgets import Budgets
from streams.ledger.state import State
from streams.records import Reason, Rejection


def budgets_of(state: State, dataset: str) -> Budgets:
    """Return every budget that a charge to this dataset draws on.

    Raises:
        Rejection: UNKNOWN_DATASET.
    """
    try:
        budgets = state.policies.budgets(dataset)
    except KeyError:
        detail = f"dataset {dataset!r} does not exist: create it first"
        raise Rejection(Reason.UNKNOWN_DATASET, detail) from None
    if state.rosters.asleep:
        wake(state, budgets)
    return budgets


def open_budgets_of(state: State, dataset: str) -> Budgets:
    """Return every budget that a charge to this open dataset draws on.

    Raises:
        Rejection: UNKNOWN_DATASET or DATASET_CLOSED.
    """
    budgets = budgets_of(state, dataset)
    check_open(state, dataset)
    return budgets


def check_open(state: State, dataset: str) -> None:
    """Check that a dataset was not closed.

    Raises:
        Rejection: DATASET_CLOSED.
    """
    if (dataset,) in state.closed:
        detail = (
            f"dataset {dataset!r} is closed permanently: its charges stay, and its name cannot be "
            "used again"
        )
        raise Rejection(Reason.DATASET_CLOSED, detail)
