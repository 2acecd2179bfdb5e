"""Releases what users together have spent of their budgets, and charges them for it.

A user's spending depends on that user's data, so statistics of it are released with noise
(``accounting.release``) and charged like every release:

1. Read each user's spent share of the budget from the log, between 0 and 1. It depends only on
   that user's norms and on released outputs.
2. Charge all users for a contribution to the mean and for one to the quantiles: two steps of a run.
3. Release the mean and the quantiles of the users who were admitted with their whole contribution,
   with the charged noise. The list of users who were left out stays secret.

Users with nothing left cannot pay and are left out. Erased users are left out because their ids are
unknown. Neighbouring data sets differ by adding or removing one user.
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
from streams.ledger.errors import PartitionError
from streams.ledger.validation import has_per_user_order
from streams.records import Policy, User
from streams.replay.archive import Archive, UnreadableService
from streams.replay.replay import Compared, LogReplay
from streams.sdk.run import Run

LEVELS = 1024
"""The resolution of quantiles, about a thousandth of the budget."""
_WHOLE = 1.0


class NoAggregate(ValueError):
    """No statistics of this dataset can be released."""


@dataclass(frozen=True)
class Shares:
    """The spent share of each user of one dataset, which must not be shown."""

    policy: Policy
    users: Sequence[User]
    spent: NDArray[np.float64]
    compared: Sequence[Compared]


@dataclass(frozen=True)
class Aggregates:
    """The released statistics."""

    mean: MeanRelease
    quantiles: QuantilesRelease


def shares_of(archive: Archive, dataset: str) -> Shares:
    """Return the spent share of each user, at the order with the largest share.

    Raises:
        BrokenLog: the log has a gap, or is not the one that was applied.
        NoAggregate: the dataset does not exist, or its users have pseudonyms.
        UnreadableService: Kafka does not answer, or the log cannot be applied.
    """
    policies: list[Policy] = []
    users: list[User] = []
    spent = [np.empty(0)]
    compared: list[Compared] = []
    for partition in range(archive.partitions):
        replay = LogReplay(archive, partition)
        if replay.cut_off:
            raise UnreadableService(replay.cut_off)
        try:
            for _ in replay.steps():
                pass
        except PartitionError as error:
            raise UnreadableService(str(error)) from error
        compared.append(replay.compared)
        ledger = replay.ledger
        ledger.restore_rosters()
        if dataset not in ledger.state.datasets:
            continue
        budgets = ledger.state.policies.budgets(dataset)
        accounts = budgets.own
        policies.append(accounts.policy)
        slots = np.arange(len(accounts))
        known = np.delete(slots, budgets.erased_at(slots))
        users += accounts.users_at(known).tolist()
        spent.append(_shares(accounts.policy, accounts.numbers(known)))
    if not policies:
        raise NoAggregate(f"dataset {dataset!r} does not exist")
    if isinstance(policies[0].pseudonyms, str):
        raise NoAggregate(
            f"the users of dataset {dataset!r} have pseudonyms, so the log has no ids to charge"
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
    """Charge all users, and release the mean and quantiles of their shares.

    Args:
        run: the run of the dataset in which two steps are charged.
        shares: the shares of its users.
        rho: the maximum cost for a user in zCDP: half for the mean, half for the quantiles.
        quantiles: fractions strictly between 0 and 1.
        generator: for repeatable noise in tests.

    Raises:
        InvalidInput: an argument is unusable; nothing was charged.
        RequestRejected: the service rejected the charge; nothing is released.
        DecisionTimeout: the service did not answer; nothing is released.
    """
    half = positive_finite("rho", rho) / 2
    if not len(quantiles) or not all(0 < fraction < 1 for fraction in quantiles):
        raise InvalidInput("quantiles", list(quantiles), "fractions between 0 and 1")
    mean_noise = _noise(_WHOLE, half)
    run.abandon()  # an interrupted release was charged, and nothing of it was published
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
    """Return who is admitted with the whole contribution, which cannot be clipped."""
    decided = run.charge(users, norms, noise_stddev=noise)
    return np.asarray(decided.admitted & (decided.granted >= norms))


def _noise(norm: float, rho: float) -> float:
    """Return the noise at which a norm costs at most rho."""
    return math.nextafter(norm / math.sqrt(2.0 * rho) * (1.0 + 2.0**-40), math.inf)


def _shares(policy: Policy, numbers: dict[str, NDArray[np.integer]]) -> NDArray[np.float64]:
    budget = np.array(policy.budget, dtype=np.float64)
    if has_per_user_order(policy):
        budget = budget[numbers["order"]]
    share = numbers["spent"] / budget
    return np.minimum(share.max(axis=1) if share.ndim == 2 else share, _WHOLE)
