"""A step that a budget's measure cannot charge is rejected before anything is charged.

Every dataset here has room for exactly one Gaussian step of norm 1, which is charged at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, PoissonGaussian, PureDP, banded_steps
from streams import Turnstile, UncoveredStep

USERS = [1, 2, 3, "four"]
SAMPLED = PoissonGaussian(1.0, 0.01)
COVERED_BY: dict[Any, set[str]] = {
    SAMPLED: {"renyi", "steps"},  # by rosters only
    Laplace(1.0): {"renyi", "zcdp", "pure-dp"},
    PureDP(): {"renyi", "zcdp", "pure-dp"},
    Gaussian(1.0): {"renyi", "zcdp", "gdp", "steps"},
}
FITS_ONCE: dict[str, dict[str, Any]] = {
    "default": {"budget": 1.0},
    "gdp": {"measure": "gdp", "budget": 1.0},
    "zcdp": {"measure": "zcdp", "budget": 0.5},
}


def opened(policy: dict[str, Any], parent: dict[str, Any] | None = None) -> tuple[Turnstile, Any]:
    turnstile = Turnstile.in_memory(partitions=2)
    if parent is not None:
        turnstile.create_dataset("outer", user_ids="mixed", **parent)
        policy = {**policy, "parents": ["outer"]}
    turnstile.create_dataset("d", user_ids="mixed", **policy)
    return turnstile, turnstile.run("d", "r", released=-1)


def assert_nothing_is_charged(turnstile: Turnstile, run: Any) -> None:
    assert run.step == 0
    assert run.charge(USERS, np.ones(4), noise_stddev=1.0).admitted.all()
    assert run.charge(USERS, np.full(4, 2.0**-20), noise_stddev=1.0).exhausted.all()


@pytest.mark.parametrize("step", [SAMPLED, Laplace(1.0), PureDP()], ids=str)
@pytest.mark.parametrize("policy", ["default", "gdp"])
def test_gdp_charges_gaussian_steps_only(policy, step):
    turnstile, run = opened(FITS_ONCE[policy])
    with turnstile:
        for charge in (run.charge, run.charge_ahead):
            with pytest.raises(UncoveredStep) as refused:
                charge(USERS, np.full(4, 0.5), mechanism=step)
            assert refused.value.measure == "gdp"
            assert set(refused.value.covered_by) == COVERED_BY[step]
        assert_nothing_is_charged(turnstile, run)


@pytest.mark.parametrize("policy", FITS_ONCE)
def test_sampled_roster_step_needs_a_measure_that_covers_it(policy):
    turnstile, run = opened(FITS_ONCE[policy])
    with turnstile:
        roster = run.enrol(USERS, clip_norm=1.0)
        for sampled in (
            {"noise_stddev": 1.0, "sampling_rate": 0.01, "norms": np.full(4, 0.25)},
            {"mechanism": SAMPLED},
        ):
            for charge in (roster.charge, roster.charge_ahead):
                with pytest.raises(UncoveredStep) as refused:
                    charge(**sampled)
                assert set(refused.value.covered_by) == COVERED_BY[SAMPLED]
        assert run.step == 0
        step = roster.charge(noise_stddev=1.0)  # the levels are still the highest ones
        assert step.admitted.all()
        assert step.exhausted.all()


def test_the_measure_of_the_parent_counts_as_well():
    renyi = {"measure": "renyi", "orders": [2.0], "budget": [1.0]}
    turnstile, run = opened(renyi, parent=FITS_ONCE["gdp"])
    with turnstile:
        roster = run.enrol(USERS, clip_norm=1.0)
        with pytest.raises(UncoveredStep) as refused:
            roster.charge(noise_stddev=1.0, sampling_rate=0.5)
        assert refused.value.measure == "gdp"
        assert roster.charge(noise_stddev=1.0).admitted.all()


@pytest.mark.parametrize("sampling_rate", [0.1, 1.0])
def test_counted_steps_charge_banded_rows_at_rate_one_only(sampling_rate):
    (step, *_) = banded_steps(np.array([1.0, 0.5]), 2.0, min_separation=2, steps=4)
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset(
            "d", measure="steps", budget=5, sampling_rate=sampling_rate, noise_multiplier=1.0
        )
        run = turnstile.run("d", "r", min_separation=2)
        if sampling_rate == 1.0:
            assert run.charge([1], [1.0], mechanism=step).admitted.all()
        else:
            with pytest.raises(UncoveredStep):
                run.charge([1], [1.0], mechanism=step)
            assert run.step == 0
