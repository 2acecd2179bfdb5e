"""What the steps of every user lose, from the history in the log, by the reports of ``accounting``.

Two numbers are given for each user:

- ``epsilon`` bounds the loss of a fixed schedule of the same steps. It is no guarantee for steps,
  norms or a stop that followed from released outputs.
- ``any_time_epsilon`` is a guarantee at every stopping time of the released outputs, converted from
  what was charged.

Each row is for its own user, or goes out through a private release. No row admits anybody to a
step. A refused report writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting import NormGrid, ReportAccountant
from accounting.reports.accountant import Method
from streams.ledger.accounts import Accounts
from streams.records import User
from streams.replay.amounts import Amounts
from streams.replay.archive import Archive
from streams.replay.fold import Compared, Fold
from streams.replay.histories import (
    Counts,
    DatasetHistory,
    Doubt,
    Histories,
    StepKind,
    TooManyMechanisms,
)

_AT_A_TIME = 1024
"""Histories of which the epsilons are computed together."""


class ReportRefused(Exception):
    """No report can be made that would hold."""


@dataclass(frozen=True)
class Losses:
    """The users of one dataset in one partition; arrays in their order.

    Attributes:
        partition: of the log.
        steps: in which each took part at a cost.
        spent: in the measure's unit, at the order of whose budget most is spent.
        remaining: of the budget there.
        order: that order; NaN if the measure has none.
        epsilon: an upper bound, at delta, of the loss of a fixed schedule of these steps.
        any_time_epsilon: of what was charged; NaN if norm levels may have followed sampling coins.
        erased: how many users have no row, since nobody knows any more who they are.
    """

    partition: int
    dataset: str
    measure: str
    users: Sequence[User]
    steps: NDArray[np.int64]
    spent: NDArray[np.float64]
    remaining: NDArray[np.float64]
    order: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    any_time_epsilon: NDArray[np.float64]
    erased: int


@dataclass(frozen=True)
class Report:
    """What every user has lost.

    Attributes:
        losses: by partition and dataset.
        compared: with which stored heads the log was compared, by partition.
    """

    losses: Sequence[Losses]
    compared: Sequence[Compared]


def report(
    archive: Archive,
    *,
    delta: float,
    method: Method = "tightest",
    dataset: str | None = None,
    progress: Callable[[int, int], None] = lambda _partition, _records: None,
) -> Report:
    """Return what the steps of every user lose, by dataset and partition.

    Args:
        archive: the topics, of which the log is read.
        delta: of the epsilons, strictly between 0 and 1.
        method: of the report.
        dataset: this one alone.
        progress: called with the partition and the number of its records, now and then.

    Raises:
        BrokenLog: the log has a gap, or is not the one that was applied.
        ReportRefused: levels may have followed coins, a log without its beginning, or steps of
            more kinds than can be told apart.
        Unreadable: Kafka does not answer.
    """
    accountants = _Accountants(delta, method)
    losses: list[Losses] = []
    compared: list[Compared] = []
    for partition in range(archive.partitions):
        fold = Fold(archive, partition)
        if fold.extent.start > 0:
            raise ReportRefused(
                f"the log of partition {partition} begins at offset {fold.extent.start}: what "
                "users took part in before that is gone, and a report would tell too little"
            )
        histories = Histories(fold.ledger)
        for applied in fold.steps():
            try:
                histories.take(applied)
            except TooManyMechanisms as error:
                place = f"partition {partition}, offset {applied.record.offset}"
                raise ReportRefused(f"{place}: {error}") from error
            if fold.records % _AT_A_TIME == 0:
                progress(partition, fold.records)
        compared.append(fold.compared)
        found = histories.end()
        for name, accounts in fold.ledger.state.datasets.items():
            if dataset in (None, name):
                history = found.get(name, DatasetHistory())
                # Unless the policy denies it, levels may have followed the coins of any dataset
                # within the same outermost one.
                follow_coins = accounts.policy.sampled_levels is not False
                if history.doubt is not None and follow_coins:
                    raise ReportRefused(_in_words(name, history.doubt))
                budgets = fold.ledger.state.policies.budgets(name)
                erased = budgets.erased_at(np.arange(len(accounts)))
                outermost = found.get(budgets.names[-1], DatasetHistory())
                declared = accounts.policy.sampled_levels is True
                sampled = follow_coins and outermost.has_sampled
                any_time = not (declared or sampled)
                losses.append(_losses(partition, accounts, history, accountants, erased, any_time))
    return Report(losses, compared)


def _in_words(name: str, doubt: Doubt) -> str:
    return (
        f"no report of dataset {name!r} is sure to hold: {doubt.what} in step {doubt.step} of run "
        f"{doubt.run!r} of {doubt.dataset!r} (partition {doubt.partition}, offset {doubt.offset}), "
        "after users had been sampled. If norm levels follow sampling coins (Roster.observe), only "
        "the budget is a guarantee (docs/guarantees.md). Policies with sampled_levels=False state "
        "that no level follows a coin"
    )


def _losses(
    partition: int,
    accounts: Accounts,
    history: DatasetHistory,
    accountants: _Accountants,
    erased: NDArray[np.int64],
    any_time: bool,
) -> Losses:
    users, amounts = len(accounts), Amounts(accounts.policy)
    told = np.delete(np.arange(users), erased)
    columns, counts = history.columns(users)
    numbers = accounts.numbers(told)
    units, orders = numbers["spent"], numbers.get("order")
    spent, left, order = amounts.tightest_of_all(units, orders)
    delta = accountants.delta
    return Losses(
        partition=partition,
        dataset=accounts.policy.dataset,
        measure=accounts.policy.measure,
        users=accounts.users_at(told).tolist(),
        steps=history.steps(users)[told],
        spent=spent,
        remaining=left,
        order=order,
        epsilon=accountants.epsilon(columns, counts[told]),
        any_time_epsilon=(
            amounts.epsilon_of_all(units, orders, delta) if any_time else np.full(len(told), np.nan)
        ),
        erased=len(erased),
    )


class _Accountants:
    """One for each set of columns: the tables of a mechanism and a norm are computed once."""

    def __init__(self, delta: float, method: Method) -> None:
        self.delta = delta
        self._method = method
        self._known: dict[tuple[StepKind, ...], ReportAccountant] = {}

    def epsilon(self, columns: list[StepKind], counts: Counts) -> NDArray[np.float64]:
        """An upper bound for each history, (n,); equal histories have equal ones."""
        if not columns or not len(counts):
            return np.zeros(len(counts))
        key = tuple(columns)
        if key not in self._known:
            self._known[key] = ReportAccountant(
                [column.mechanism for column in columns],
                [NormGrid(column.norm, 1) for column in columns],
            )
        different, which = np.unique(counts, axis=0, return_inverse=True)
        found = np.empty(len(different))
        for start in range(0, len(different), _AT_A_TIME):
            block = slice(start, start + _AT_A_TIME)
            found[block] = self._known[key].epsilon(
                different[block], self.delta, method=self._method
            )
        epsilons: NDArray[np.float64] = found[which.reshape(-1)]
        return epsilons
