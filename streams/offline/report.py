"""What every user has lost: from the history that the log has, by the reports of ``accounting``.

A row is for the eyes of its own user, or goes out through a private release. It is a statement
about what happened, and admits nobody to anything. What is refused, is refused before anything is
said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting import NormGrid, ReportAccountant
from accounting.reports.accountant import Method
from streams.ledger.accounts import Accounts
from streams.offline.amounts import Amounts
from streams.offline.archive import Archive
from streams.offline.fold import Fold
from streams.offline.histories import (
    Column,
    Counts,
    DatasetHistory,
    Doubt,
    Histories,
    TooManyMechanisms,
)
from streams.schemas import User
from streams.topics.topics import NORMS

_AT_A_TIME = 1024
"""Histories of which the epsilons are computed together."""


class ReportRefused(Exception):
    """No report can be made that would hold."""


@dataclass(frozen=True)
class Losses:
    """The users of one dataset in one partition; arrays in their order.

    Attributes:
        steps: in which each took part at a cost.
        spent: in the measure's unit, at the order of whose budget most is spent.
        remaining: of the budget there.
        order: that order; NaN if the measure has none.
        epsilon: that the history implies at delta; an upper bound, as all methods give one.
        forgotten: how many users have no row, since nobody knows any more who they are.
    """

    dataset: str
    measure: str
    users: Sequence[User]
    steps: NDArray[np.int64]
    spent: NDArray[np.float64]
    remaining: NDArray[np.float64]
    order: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    forgotten: int


def report(
    archive: Archive,
    *,
    delta: float,
    method: Method = "tightest",
    dataset: str | None = None,
    levels_public: bool = False,
    progress: Callable[[int, int], None] = lambda _partition, _records: None,
) -> list[Losses]:
    """What every user has lost.

    Args:
        archive: the topics, of which the log is read.
        delta: of the epsilons, strictly between 0 and 1.
        method: of the report.
        dataset: this one alone.
        levels_public: the caller knows that no level, and nobody's part, ever followed a coin.
        progress: called with the partition and the number of its records, now and then.

    Raises:
        ReportRefused: levels may have followed coins, a log without its beginning, a dataset that
            came from another log, or steps of more kinds than can be told apart.
        Unreadable: Kafka does not answer.
    """
    accountants = _Accountants(delta, method)
    losses: list[Losses] = []
    for partition in range(archive.partitions):
        fold = Fold(archive, partition, archive.extent(NORMS, partition))
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
        found = histories.end()
        for name, accounts in fold.ledger.datasets.items():
            if dataset in (None, name):
                if (name,) in fold.ledger.arrivals:
                    origin = fold.ledger.arrivals[name,].origin.topic
                    raise ReportRefused(
                        f"dataset {name!r} came from the log {origin}: what users took part in "
                        "there is not in this log, and a report would tell too little. Make one of "
                        "that log, and of this one for other datasets with --dataset"
                    )
                history = found.get(name, DatasetHistory())
                if history.doubt is not None and not levels_public:
                    raise ReportRefused(_in_words(name, history.doubt))
                forgotten = fold.ledger.policies.budgets(name).forgotten_at(
                    np.arange(len(accounts))
                )
                losses.append(_losses(accounts, history, accountants, forgotten))
    return losses


def _in_words(name: str, doubt: Doubt) -> str:
    return (
        f"no report of dataset {name!r} is sure to hold: {doubt.what} in step {doubt.step} of run "
        f"{doubt.run!r} of {doubt.dataset!r} (partition {doubt.partition}, offset {doubt.offset}), "
        "after users had been drawn by coins. Where levels follow coins, as Roster.observe has "
        "them, a report on the history holds for nobody, and the budget does (see "
        "docs/guarantees.md); the log cannot tell why they moved. If no level, and nobody's part, "
        "ever followed a coin, say so with --levels-public"
    )


def _losses(
    accounts: Accounts,
    history: DatasetHistory,
    accountants: _Accountants,
    forgotten: NDArray[np.int64],
) -> Losses:
    users, amounts = len(accounts), Amounts(accounts.policy)
    told = np.delete(np.arange(users), forgotten)
    ids = accounts.users_at(told)
    columns, counts = history.columns(users)
    numbers = accounts.numbers(told)
    spent, left, order = amounts.tightest_of_all(numbers["spent"], numbers.get("order"))
    return Losses(
        dataset=accounts.policy.dataset,
        measure=accounts.policy.measure,
        users=ids if isinstance(ids, list) else ids.tolist(),
        steps=history.steps(users)[told],
        spent=spent,
        remaining=left,
        order=order,
        epsilon=accountants.epsilon(columns, counts[told]),
        forgotten=len(forgotten),
    )


class _Accountants:
    """One for each set of columns: the tables of a mechanism and a norm are computed once."""

    def __init__(self, delta: float, method: Method) -> None:
        self._delta = delta
        self._method = method
        self._known: dict[tuple[Column, ...], ReportAccountant] = {}

    def epsilon(self, columns: list[Column], counts: Counts) -> NDArray[np.float64]:
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
                different[block], self._delta, method=self._method
            )
        epsilons: NDArray[np.float64] = found[which.reshape(-1)]
        return epsilons
