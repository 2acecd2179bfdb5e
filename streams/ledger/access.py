"""Which budgets a request is about, and whether anything may be charged to them."""

from __future__ import annotations

from streams.ledger.arrears import wake
from streams.ledger.budgets import Budgets
from streams.ledger.state import State
from streams.schemas import VERSION, Reason, Rejection


def budgets_of(state: State, dataset: str, version: int = VERSION) -> Budgets:
    """Of a dataset that a request of this version wants to charge."""
    try:
        budgets = state.policies.budgets(dataset)
    except KeyError:
        detail = f"dataset {dataset!r} does not exist; create it before anything is charged"
        raise Rejection(Reason.UNKNOWN_DATASET, detail) from None
    if budgets.is_nested and version < 3:
        detail = (
            f"dataset {dataset!r} is within another one, of which version {version} knows "
            "nothing: open and charge it in version 3"
        )
        raise Rejection(Reason.UNSUPPORTED_VERSION, detail)
    if state.rosters.asleep:
        wake(state, budgets)
    return budgets


def open_budgets_of(state: State, dataset: str, version: int = VERSION) -> Budgets:
    """The same, of a dataset that is not closed."""
    budgets = budgets_of(state, dataset, version)
    check_open(state, dataset)
    return budgets


def check_open(state: State, dataset: str) -> None:
    """Check that a dataset was not closed.

    Raises:
        Rejection: DATASET_CLOSED.
    """
    if (dataset,) in state.closed:
        detail = (
            f"dataset {dataset!r} was closed, which is for good: what was charged to it stays, "
            "and so does its name"
        )
        raise Rejection(Reason.DATASET_CLOSED, detail)
