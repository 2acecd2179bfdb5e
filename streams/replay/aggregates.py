"""What users together have spent of their budgets: numbers to be published, and charged for.

How much a user has spent tells something about that user's data. What can go out is the mean and
quantiles of these shares with noise (``accounting.release``), and that is a release like any other:

1. The share of the budget that each user has spent is read from the log: from 0 to 1, whatever the
   data. It depends on that user's norms and on what was released, and on nobody else.
2. Everybody is charged for a contribution to the mean, and for one to the quantiles: two steps of a
   run, decided by the service.
3. Of those who are admitted with all that was asked for, the mean and the quantiles are released,
   with the noise that was charged. Who is left out is said to nobody.

Who has nothing left cannot pay, and is not among them; nor is who was erased, since nobody knows
whom to charge. Neighbours differ by adding or removing one user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from accounting.exact.validation import positive_finite
from accounting.release import (
    MeanRelease,
    QuantilesRelease,
    mean_norms,
    quantile_norms,
    release_mean,
    release_quantiles,
)
from streams.ledger.partition_error import PartitionError
from streams.ledger.policies import has_per_user_order
from streams.records import Policy, User
from streams.replay.archive import Archive, UnreadableService
from streams.replay.fold import Compared, Fold
from streams.sdk.run import Run

LEVELS = 1024
"""The resolution of quantiles: thousandths of the budget."""
_WHOLE = 1.0


class NoAggregate(ValueError):
    """There is nothing that could be released so."""


@dataclass(frozen=True)
class Shares:
    """Of every user of one dataset the share of the budget that is spent; not to be shown.

    Attributes:
        compared: with which stored heads the log was compared, by partition.
    """

    policy: Policy
    users: Sequence[User]
    spent: NDArray[np.float64]
    compared: Sequence[Compared]


@dataclass(frozen=True)
class Aggregates:
    """What may be published."""

    mean: MeanRelease
    quantiles: QuantilesRelease


def shares_of(archive: Archive, dataset: str) -> Shares:
    """The share that each user has spent, where most is spent.

    Raises:
        BrokenLog: the log has a gap, or is not the one that was applied.
        NoAggregate: no such dataset, or one whose users the log knows by pseudonyms.
        Unreadable: Kafka does not answer, or the log cannot be applied.
    """
    policies: list[Policy] = []
    users: list[User] = []
    spent = [np.empty(0)]
    compared: list[Compared] = []
    for partition in range(archive.partitions):
        fold = Fold(archive, partition)
        if fold.cut_off:
            raise UnreadableService(fold.cut_off)
        try:
            for _ in fold.steps():
                pass
        except PartitionError as error:
            raise UnreadableService(str(error)) from error
        compared.append(fold.compared)
        ledger = fold.ledger
        ledger.wake()
        if dataset not in ledger.state.datasets:
            continue
        budgets = ledger.state.policies.budgets(dataset)
        accounts = budgets.own
        policies.append(accounts.policy)
        everybody = np.arange(len(accounts))
        known = np.delete(everybody, budgets.erased_at(everybody))
        users += accounts.users_at(known).tolist()
        spent.append(_shares(accounts.policy, accounts.numbers(known)))
    if not policies:
        raise NoAggregate(f"there is no dataset {dataset!r}")
    if isinstance(policies[0].pseudonyms, str):
        raise NoAggregate(
            f"dataset {dataset!r} knows users by pseudonyms, and the log has no ids to charge: "
            "no aggregate is released of it"
        )
    return Shares(policies[0], users, np.concatenate(spent), compared)


def aggregate(
    run: Run,
    shares: Shares,
    *,
    rho: float,
    quantiles: Sequence[float],
    generator: np.random.Generator | None = None,
) -> Aggregates:
    """Charge all users for it, and release the mean and quantiles of their shares.

    Args:
        run: of the dataset, by which they are charged: two steps.
        shares: of the users.
        rho: what it costs a user at the most, in nats of zCDP: half for the mean, half for the
            quantiles.
        quantiles: fractions strictly between 0 and 1.
        generator: of repeatable noise, for tests.

    Raises:
        InvalidInput: arguments that make no release; nothing was charged.
        RequestRejected: the service refused; nothing is released.
        DecisionTimeout: the service did not answer; nothing is released.
    """
    half = positive_finite("rho", rho) / 2
    if not len(quantiles) or not all(0 < fraction < 1 for fraction in quantiles):
        raise InvalidInput("quantiles", list(quantiles), "fractions between 0 and 1")
    mean_noise = _noise(_WHOLE, half)
    run.abandon()  # what an aggregate was charged that broke off; nothing of it went out
    most = float(quantile_norms([0.0], _WHOLE, levels=LEVELS)[0])
    counter_noise = _noise(most, half)
    asked = mean_norms(shares.spent, _WHOLE)
    of_mean = _admitted(run, shares.users, asked, mean_noise)
    asked = quantile_norms(shares.spent, _WHOLE, levels=LEVELS)
    of_quantiles = _admitted(run, shares.users, asked, counter_noise)
    return Aggregates(
        release_mean(shares.spent[of_mean], _WHOLE, noise_stddev=mean_noise, generator=generator),
        release_quantiles(
            shares.spent[of_quantiles],
            list(quantiles),
            _WHOLE,
            noise_stddev=counter_noise,
            levels=LEVELS,
            generator=generator,
        ),
    )


def _admitted(
    run: Run, users: Sequence[User], norms: NDArray[np.float64], noise: float
) -> NDArray[np.bool_]:
    """Who may take part: with all of a contribution, since it cannot be clipped to less."""
    decided = run.charge(users, norms, noise_stddev=noise)
    return np.asarray(decided.admitted & (decided.granted >= norms))


def _noise(norm: float, rho: float) -> float:
    """At which a norm costs no more than rho."""
    return math.nextafter(norm / math.sqrt(2.0 * rho) * (1.0 + 2.0**-40), math.inf)


def _shares(policy: Policy, numbers: dict[str, NDArray[np.integer]]) -> NDArray[np.float64]:
    budget = np.array(policy.budget, dtype=np.float64)
    if has_per_user_order(policy):
        budget = budget[numbers["order"]]
    share = numbers["spent"] / budget
    return np.minimum(share.max(axis=1) if share.ndim == 2 else share, _WHOLE)
