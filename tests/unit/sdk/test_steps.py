"""Datasets with the measure `steps`, through the SDK."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from accounting import InvalidInput
from streams import Turnstile
from streams.sdk.errors import InvalidRequest

SHAPE: dict[str, Any] = {"measure": "steps", "sampling_rate": 0.1, "noise_multiplier": 2.0}


def test_a_guarantee_becomes_a_number_of_steps() -> None:
    with Turnstile.in_memory() as turnstile:
        policy = turnstile.create_dataset("d", epsilon=1.5, delta=1e-5, **SHAPE)
        other = turnstile.create_dataset("other", measure="gdp", budget=1.0)
    with pytest.raises(InvalidInput):
        _ = other.steps
    assert policy.steps > 10
    assert policy.epsilon(1e-5) <= 1.5
    assert policy.has_sampled_levels
    assert replace(policy, budget=[policy.budget[0] + 2**44]).epsilon(1e-5) > 1.5


def test_users_pay_for_the_steps_in_which_they_take_part() -> None:
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", budget=3, **SHAPE)
        run = turnstile.run("d", "r")
        roster = run.enrol([1, 2, 3], clip_norm=1.0)
        roster.set_norms([1.0, 0.25, 0.0])
        first = [
            roster.charge(noise_stddev=2.0, sampling_rate=0.1).admitted.tolist() for _ in range(3)
        ]
        last = roster.charge(noise_stddev=4.0, sampling_rate=0.05).admitted.tolist()
        roster.set_norms([1.0, 1.0, 1.0])
        after = roster.charge(noise_stddev=2.0, sampling_rate=0.1).admitted.tolist()
    assert first == [[True] * 3] * 3
    assert last == [False, False, True]
    assert after == [False, False, True]


@pytest.mark.parametrize("noise", [1.99, 0.5])
def test_noise_too_low_for_the_clip_norm_is_rejected(noise: float) -> None:
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", budget=3, **SHAPE)
        roster = turnstile.run("d", "r").enrol([1, 2], clip_norm=1.0)
        with pytest.raises(InvalidRequest):
            roster.charge(noise_stddev=noise, sampling_rate=0.1)
        decision = roster.charge(noise_stddev=2.0, sampling_rate=0.1)
    assert decision.step == 0
    assert decision.admitted.all()


def test_a_rate_above_that_of_the_policy_is_refused() -> None:
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", budget=3, **SHAPE)
        run = turnstile.run("d", "r")
        roster = run.enrol([1, 2], clip_norm=1.0)
        with pytest.raises(InvalidRequest):
            roster.charge(noise_stddev=9.0, sampling_rate=0.11)
        with pytest.raises(InvalidRequest):
            run.charge([1], [1.0], noise_stddev=9.0, clip_norm=1.0)


def test_steps_without_sampling_are_charged_by_norm() -> None:
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", measure="steps", noise_multiplier=4.0, budget=2)
        run = turnstile.run("d", "r")
        norms = [0.0, 0.5, 1.0]
        found = [run.charge([1, 2, 3], norms, noise_stddev=4.0, clip_norm=1.0) for _ in range(3)]
        with pytest.raises(InvalidRequest):
            run.charge([1], [1.0], noise_stddev=3.9, clip_norm=1.0)
        too_long = run.charge([4], [1.0], noise_stddev=3.9)
    assert [decision.admitted.tolist() for decision in found] == [
        [True, True, True],
        [True, True, True],
        [True, False, False],
    ]
    assert not too_long.admitted.any()


def test_budget_is_a_whole_number_of_steps() -> None:
    with Turnstile.in_memory() as turnstile:
        with pytest.raises(InvalidRequest):
            turnstile.create_dataset("half", budget=2.5, **SHAPE)
        whole = turnstile.create_dataset("d", budget=5, **SHAPE)
        share = turnstile.create_dataset("s", share_of=whole, share=0.5)
        assert share.budget == [2 * whole.budget[0] // 5]
        with pytest.raises(InvalidRequest):
            turnstile.create_dataset("t", share_of=whole, share=0.1)
        assert (share.sampling_rate, share.noise_multiplier) == (0.1, 2.0)
        thirds = turnstile.create_dataset("thirds", budget=3, **SHAPE)
        third = turnstile.create_dataset("third", share_of=thirds, share=1 / 3)
        assert third.steps == 1
