"""Budgets that are renewed, and users with several epochs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accounting import GdpFilter, NormGrid, PoissonGaussian, ReportAccountant, gdp_to_delta
from streams import Turnstile

# --- A4: renewal ---


def contributions(steps: int, first: int) -> np.ndarray:
    """One event a step from `first` on, each of cost 1, with a budget of 1 for any two steps."""
    taken = np.zeros(steps)
    for step in range(first, steps):
        rule = GdpFilter(1.0)
        spent = np.array([int(2.0**44 * taken[max(step - 1, 0) : step].sum())])
        taken[step] = rule.admit(spent, np.ones(1))[1][0]
    return taken


@pytest.mark.parametrize("steps", [11, 101, 1001])
def test_a_budget_for_any_consecutive_steps_loses_without_end(steps: int) -> None:
    """Without the first event the others are admitted in the other half of the steps."""
    difference = contributions(steps, 0) - contributions(steps, 1)
    assert (difference**2).sum() == steps  # where one event was promised a mu squared of 1


def test_disjoint_epochs_do_not_depend_on_one_another() -> None:
    def by_epoch(events: list[int]) -> dict[int, float]:
        rule, taken = GdpFilter(1.0), {}
        for epoch in sorted(set(events)):
            _, can_pay = rule.admit(rule.initial_state(1), np.array([float(events.count(epoch))]))
            taken[epoch] = float(can_pay[0])
        return taken

    with_event, without = by_epoch([0, 1, 2]), by_epoch([1, 2])
    assert {epoch: with_event[epoch] for epoch in without} == without


def admitted(turnstile: Turnstile, days: dict[int, float], **policy: str) -> np.ndarray:
    """The contributions of one user to a release each day, two days to an epoch.

    Args:
        turnstile: a service.
        days: the norm of the user's events, by day; 0 where there are none.
        policy: the terms of each epoch besides a budget of mu squared 1.
    """
    taken = []
    for day, norm in days.items():
        epoch, query = f"ads.2026-{1 + day // 2:02}", f"day-{day}"
        turnstile.create_dataset(epoch, measure="gdp", budget=1.0, **policy)
        decision = turnstile.run(epoch, query).charge([7], [norm], noise_stddev=1.0)
        taken.append(norm * float(decision.admitted[0]))
        turnstile.close_run(epoch, query)
    return np.array(taken)


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_what_one_epoch_changes_is_within_its_budget(removed: int) -> None:
    """A user has events of cost 0.6 every day, and one of two fits. Those of an epoch go."""
    days = dict.fromkeys(range(6), 0.6**0.5)
    others = {day: 0.0 if day // 2 == removed else norm for day, norm in days.items()}
    difference = admitted(Turnstile.in_memory(), days) - admitted(Turnstile.in_memory(), others)
    assert np.flatnonzero(difference).tolist() == [2 * removed]
    assert (difference**2).sum() == pytest.approx(0.6)


def test_epochs_that_share_a_budget_lose_more_than_one() -> None:
    """What a parent has left depends on all epochs: then its budget is the guarantee."""
    worlds = []
    for first in (1.0, 0.0):
        turnstile = Turnstile.in_memory()
        turnstile.create_dataset("person", measure="gdp", budget=2.0**0.5)
        days = dict.fromkeys(range(0, 8, 2), 1.0) | {0: first}
        worlds.append(admitted(turnstile, days, parents="person"))
    assert [world.tolist() for world in worlds] == [[1, 1, 0, 0], [0, 1, 1, 0]]
    assert ((worlds[0] - worlds[1]) ** 2).sum() == 2.0  # the budget of one epoch is 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_query_over_several_epochs_adds_up_contributions(count: int) -> None:
    """Each epoch pays mu squared 1. All of them together move the sum by their number."""
    turnstile, decisions = Turnstile.in_memory(), {}
    for epoch in (f"ads.2026-{month:02}" for month in range(1, count + 1)):
        turnstile.create_dataset(epoch, measure="gdp", budget=1.0)
        decisions[epoch] = turnstile.run(epoch, "year").charge([7], [1.0], noise_stddev=1.0)
    moved = sum(float(decision.admitted[0]) for decision in decisions.values())
    assert moved**2 == count**2  # of the user; that of one epoch is 1


RATE, EPSILON = 0.01, 1.0
GRID = np.linspace(-12.0, 60.0, 72_001)


def density(*parts: tuple[float, float]) -> np.ndarray:
    """A mixture of normal densities: (weight, mean)."""
    terms = [weight * np.exp(-0.5 * (GRID - mean) ** 2) for weight, mean in parts]
    return np.sum(terms, axis=0) / np.sqrt(2.0 * np.pi)


def delta(mixture: Callable[[float], np.ndarray]) -> float:
    """The larger delta between the outputs with the contribution of one epoch and without it."""
    with_epoch, without = mixture(1.0), mixture(0.0)
    step = GRID[1] - GRID[0]
    above = [
        np.maximum(p - np.exp(EPSILON) * q, 0.0).sum() * step
        for p, q in ((with_epoch, without), (without, with_epoch))
    ]
    return float(max(above))


OTHERS = 40.0  # what the user's other epochs contribute, in standard deviations of the noise


def test_epochs_of_one_user_that_share_a_coin_break_the_guarantee() -> None:
    """The other epochs show that the user was drawn: this one loses as without any sampling."""
    charged = float(ReportAccountant(PoissonGaussian(1.0, RATE), NormGrid(1.0, 1)).delta([1], 1.0))
    assert charged == pytest.approx(2.7e-9, rel=0.02)
    shared = delta(lambda norm: density((1 - RATE, 0.0), (RATE, OTHERS + norm)))
    assert shared == pytest.approx(RATE * gdp_to_delta(1.0, EPSILON), rel=1e-3)
    assert shared > 4e5 * charged
    own = delta(
        lambda norm: density(
            ((1 - RATE) ** 2, 0.0),
            ((1 - RATE) * RATE, norm),
            (RATE * (1 - RATE), OTHERS),
            (RATE**2, OTHERS + norm),
        )
    )
    assert own <= charged * (1 + 1e-3)
