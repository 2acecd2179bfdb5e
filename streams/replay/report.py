"""Reports the privacy loss of every user's steps, computed from the log.

There are two numbers for each user:

- ``epsilon`` bounds the loss of a fixed schedule of the same steps. It is no guarantee for steps,
  norms or a stop that followed from released outputs.
- ``any_time_epsilon`` is a guarantee at every stopping time of the released outputs, converted from
  the charges.

``advantage`` and ``true_positive_rate`` bound the success of an attacker who tests whether a user's
data was used, for the schedule of ``epsilon``. ``budget_risk`` bounds it at every stopping time,
because it follows from the budget alone.

Each row is only for its own user. Rows do not affect admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import InvalidInput, NormGrid, ReportAccountant, Risk
from accounting.reports.accountant import Method
from streams.ledger.accounts import Accounts
from streams.operations.guarantees import Amounts
from streams.records import FALSE_POSITIVE_RATE, User
from streams.replay.archive import Archive, StoredHead
from streams.replay.history import (
    Counts,
    DatasetHistory,
    Histories,
    StepKind,
    TooManyMechanisms,
)
from streams.replay.log_replay import LogReplay, Progress

_AT_A_TIME = 1024
"""The histories whose epsilons are computed at once."""


class ReportRefused(Exception):
    """No correct report can be made."""


@dataclass(frozen=True)
class Losses:
    """The users of one dataset in one partition; arrays are in their order.

    Attributes:
        steps: the number of steps with a cost in which the user took part.
        spent: in the measure's unit, at the order at which the largest share is spent.
        remaining: what is left of the budget at this order.
        order: this order; NaN if the measure has none.
        epsilon: an upper bound, at delta, on the loss of a fixed schedule of these steps.
        any_time_epsilon: the any-time epsilon of the charges; NaN if norm levels may have followed
            sampling coins.
        erased: the number of erased users, who have no row because their ids are unknown.
        true_positive_rate: the largest rate of an attack with the given false-positive rate, for a
            fixed schedule of these steps.
        advantage: the largest true-positive rate minus the false-positive rate, for such a
            schedule.
        budget_risk: the risk of any user of the dataset, from the budget.
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
    true_positive_rate: NDArray[np.float64]
    advantage: NDArray[np.float64]
    budget_risk: Risk


@dataclass(frozen=True)
class Report:
    """The losses by partition and dataset, and the stored heads of each partition."""

    losses: Sequence[Losses]
    heads: Sequence[Sequence[StoredHead]]


def report(
    archive: Archive,
    *,
    delta: float,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    method: Method = "tightest",
    dataset: str | None = None,
    progress: Progress = lambda _: None,
) -> Report:
    """Return the loss of every user's steps, by partition and dataset.

    Args:
        delta: the delta of the epsilons, strictly between 0 and 1.
        false_positive_rate: the attacks' rate, strictly between 0 and 1.
        method: the method of ``ReportAccountant``.
        dataset: report only this one.
        progress: called with the replay of each partition; see ``LogReplay.steps``.

    Raises:
        BrokenLog: the log has a gap, or is not the one that was applied.
        ReportRefused: levels may have followed coins, the log is trimmed, there are too many kinds
            of steps, or the method has no bound.
        UnreadableService: Kafka does not answer.
    """
    accountants = _Accountants(delta, false_positive_rate, method)
    losses: list[Losses] = []
    heads: list[Sequence[StoredHead]] = []
    for partition in range(archive.partitions):
        replay = LogReplay(archive, partition)
        if begins := replay.extent.start:
            raise ReportRefused(
                f"partition {partition} has no steps from before offset {begins}: they are "
                "deleted, and a report would be too low"
            )
        histories = Histories(replay.ledger)
        for applied in replay.steps(progress=progress):
            try:
                histories.take(applied)
            except TooManyMechanisms as error:
                place = f"partition {partition}, offset {applied.record.offset}"
                raise ReportRefused(f"{place}: {error}") from error
        heads.append(replay.heads)
        found = histories.end()
        for name, accounts in replay.ledger.state.datasets.items():
            if dataset in (None, name):
                history = found.get(name, DatasetHistory())
                stated = accounts.policy.sampled_levels
                if history.doubt and stated is not False:
                    raise ReportRefused(_refusal(name, history.doubt))
                budgets = replay.ledger.state.policies.budgets(name)
                erased = budgets.erased_at(np.arange(len(accounts)))
                family = [found.get(each.policy.dataset) for each in budgets.family]
                # Unless the policy says, levels may have followed the coins of any dataset in the
                # same family.
                sampled = any(each and each.has_sampled for each in family)
                any_time = not (sampled if stated is UNSET else stated)
                losses.append(_losses(partition, accounts, history, accountants, erased, any_time))
    return Report(losses, heads)


def _refusal(name: str, doubt: str) -> str:
    return (
        f"a report of dataset {name!r} may be wrong: {doubt}, after users had been sampled. If "
        "norm levels follow sampling coins (Roster.observe), only the budget is a guarantee "
        "(docs/guarantees.md). Policies with sampled_levels=False state that no level follows a "
        "coin"
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
    shown = np.delete(np.arange(users), erased)
    columns, counts = history.columns(users)
    numbers = accounts.numbers(shown)
    units, orders = numbers["spent"], numbers.get("order")
    spent, left, order = amounts.tightest_of_all(units, orders)
    delta = accountants.delta
    epsilon, true_positive_rate, advantage = accountants.bounds(columns, counts[shown])
    return Losses(
        partition=partition,
        dataset=accounts.policy.dataset,
        measure=accounts.policy.measure,
        users=accounts.users_at(shown).tolist(),
        steps=history.steps(users)[shown],
        spent=spent,
        remaining=left,
        order=order,
        epsilon=epsilon,
        any_time_epsilon=(
            amounts.epsilon(units, orders, delta) if any_time else np.full(len(shown), np.nan)
        ),
        erased=len(erased),
        true_positive_rate=true_positive_rate,
        advantage=advantage,
        budget_risk=accounts.policy.risk(accountants.false_positive_rate),
    )


class _Accountants:
    """One accountant for each set of columns, so that tables are computed only once."""

    def __init__(self, delta: float, false_positive_rate: float, method: Method) -> None:
        self.delta = delta
        self.false_positive_rate = false_positive_rate
        self._method = method
        self._known: dict[tuple[StepKind, ...], ReportAccountant] = {}

    def bounds(self, columns: list[StepKind], counts: Counts) -> NDArray[np.float64]:
        """Return epsilon, true-positive rate and advantage of each history, at most, (3, n)."""
        if not columns or not len(counts):
            return np.repeat([[0.0], [self.false_positive_rate], [0.0]], len(counts), axis=1)
        key = tuple(columns)
        if key not in self._known:
            self._known[key] = ReportAccountant(
                [column.mechanism for column in columns],
                [NormGrid(column.norm, 1) for column in columns],
            )
        different, which = np.unique(counts, axis=0, return_inverse=True)
        found = np.empty((3, len(different)))
        accountant = self._known[key]
        for start in range(0, len(different), _AT_A_TIME):
            block = slice(start, start + _AT_A_TIME)
            rows = different[block]
            try:
                found[0, block] = accountant.epsilon(rows, self.delta, method=self._method)
                found[1:, block] = accountant.risk(rows, self.false_positive_rate, self._method)
            except InvalidInput as error:
                if self._method != "saddlepoint":
                    raise
                raise ReportRefused(
                    "the saddle point proves no bound for some histories: use the method tightest, "
                    "pld or renyi"
                ) from error
        return found[:, which.reshape(-1)]
