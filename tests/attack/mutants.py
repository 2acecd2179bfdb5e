"""Broken versions of the software under test, each a context in which one part is replaced.

`SEEN` are those that canaries find. `UNSEEN` change nothing about a canary's own coordinate, so
that only tests of two worlds find them: those that each one names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from accounting.release import ExactNoise
from accounting.release.exact_normals import ExactNormals
from streams.queries import continual_monitoring
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.trainers import steps as training
from streams.trainers.steps import PrivateSteps
from tests.attack.scenarios import COUNTED, FULL_BATCH, SAMPLED, SUMS, Scenario
from tests.unit.conditions import test_two_worlds
from tests.unit.trainers import test_cohorts


class Seen(NamedTuple):
    """A mutant, and the scenarios in which canaries must find it."""

    name: str
    broken: Callable[[], AbstractContextManager[None]]
    scenarios: tuple[Scenario, ...]


class Unseen(NamedTuple):
    """A mutant that canaries do not find, a scenario that shows it, and the test that finds it."""

    name: str
    broken: Callable[[], AbstractContextManager[None]]
    scenario: Scenario
    test: Callable[[], None]


@contextmanager
def half_the_noise() -> Iterator[None]:
    """Draw noise with half the standard deviation that was charged."""

    class Halved(ExactNormals):
        def draw(self, stddev: Fraction, count: int) -> Any:
            return super().draw(stddev / 2, count)

    class HalvedOne(ExactNoise):
        def rounded_normal(self, stddev: Fraction) -> int:
            return super().rounded_normal(stddev / 2)

    with (
        patch.object(training, "ExactNormals", Halved),
        patch.object(continual_monitoring, "ExactNoise", HalvedOne),
    ):
        yield


@contextmanager
def not_clipped_to_levels() -> Iterator[None]:
    """Clip gradients to the clip norm of the training, and not to what each user was charged."""
    exact = RosterStep.clip_norms_at

    def same_for_all(self: RosterStep, positions: Any) -> Any:
        levels = exact(self, positions)
        return np.where(levels > 0.0, 1.0, levels)

    with patch.object(RosterStep, "clip_norms_at", same_for_all):
        yield


@contextmanager
def sums_not_clipped() -> Iterator[None]:
    """Add contributions of admitted users as they are."""

    def as_they_are(rows: Any, granted: Any) -> Any:
        return rows * (np.asarray(granted) > 0.0)[:, np.newaxis]

    with patch.object(continual_monitoring, "clip_rows", as_they_are):
        yield


@contextmanager
def charged_only_when_drawn() -> Iterator[None]:
    """Draw coins first, and charge the amplified cost to the users who were drawn."""
    set_norms, charge = Roster.set_norms, Roster.charge
    rng = np.random.default_rng(0)
    wanted, coins = np.zeros(0), np.zeros(0, dtype=bool)

    def remembered(self: Roster, norms: Any, positions: Any = None) -> None:
        nonlocal wanted
        wanted = np.asarray(norms)
        set_norms(self, norms, positions)

    def charged(self: Roster, **given: Any) -> RosterStep:
        nonlocal coins
        coins = rng.random(len(self)) < given["sampling_rate"]
        set_norms(self, np.where(coins, wanted, 0.0))
        return charge(self, **given)

    def drawn(admitted: Any, rate: float, **_: Any) -> Any:
        return np.flatnonzero(admitted & coins)

    with (
        patch.object(Roster, "set_norms", remembered),
        patch.object(Roster, "charge", charged),
        patch.object(training, "poisson_sample", drawn),
    ):
        yield


@contextmanager
def divided_by_the_users_there_are() -> Iterator[None]:
    """Divide by the rate times the true number of users, instead of a public number."""
    begin = PrivateSteps.__init__

    def divided(self: PrivateSteps, run: Any, users: Any, **given: Any) -> None:
        begin(self, run, users, **given | {"expected_batch": given["sampling_rate"] * len(users)})

    with patch.object(PrivateSteps, "__init__", divided):
        yield


@contextmanager
def a_fixed_batch_of_the_admitted() -> Iterator[None]:
    """Draw a fixed share of the admitted users, so that other users follow each admission."""
    rng = np.random.default_rng(0)

    def drawn(admitted: Any, rate: float, **_: Any) -> Any:
        there = np.flatnonzero(admitted)
        return np.sort(rng.permutation(there)[: round(rate * len(there))])

    with patch.object(training, "poisson_sample", drawn):
        yield


@contextmanager
def cohorts_by_place_in_the_list() -> Iterator[None]:
    """Ask every third user of those who are left, instead of fixed groups."""

    def every_third(users: Any, step: int, *, period: int, key: Any) -> Any:
        return np.arange(step % period, len(users), period)

    with patch.object(test_cohorts, "rotating_cohort", every_third):
        yield


# Long enough that a user who is charged only when drawn would stay in.
_LONG_SAMPLED = replace(SAMPLED, steps=700)
_LONG_COUNTED = replace(COUNTED, steps=200)

SEEN = (
    Seen("half the noise", half_the_noise, (FULL_BATCH, SAMPLED, COUNTED, SUMS)),
    Seen("levels not clipped to", not_clipped_to_levels, (FULL_BATCH, SAMPLED)),
    Seen("sums not clipped", sums_not_clipped, (SUMS,)),
    Seen("charged only when drawn", charged_only_when_drawn, (_LONG_SAMPLED, _LONG_COUNTED)),
)
UNSEEN = (
    Unseen(
        "divided by the true number of users",
        divided_by_the_users_there_are,
        FULL_BATCH,
        test_two_worlds.test_release_differs_by_one_contribution_only,
    ),
    Unseen(
        "a fixed batch of the admitted users",
        a_fixed_batch_of_the_admitted,
        COUNTED,
        test_two_worlds.test_draws_of_a_user_do_not_depend_on_another_user,
    ),
    Unseen(
        "cohorts that follow who is left",
        cohorts_by_place_in_the_list,
        FULL_BATCH,
        test_cohorts.test_group_of_a_user_depends_on_the_id_alone,
    ),
)
