"""Plans: what a budget pays for, and what is rejected. On the real service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streams import InvalidRequest, Turnstile, UncoveredStep
from streams.sdk.roster_steps import RosterStep
from streams.trainers import Descent, PrivateSteps, PrivateTrainer, noise_for_steps
from streams.trainers.planning import Plan

STEPS = 40
SIZES = np.linspace(0.0, 2.0, 50)
RATE = 0.4


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("digits", measure="renyi", epsilon=4.0, delta=1e-5)
        yield turnstile


def steps_of(service: Turnstile, lasting: int = STEPS, name: str = "a", **changes: Any) -> Any:
    """With noise at which the clip norm lasts so many steps."""
    run = service.run("digits", name)
    noise = changes.get("noise_multiplier") or noise_for_steps(
        [run.policy], lasting, sampling_rate=RATE
    )
    arguments: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": noise,
        "sampling_rate": RATE,
        "expected_batch": 20.0,
        "steps": STEPS,
        "not_private_generator": np.random.default_rng(1),
        **changes,
    }
    return PrivateSteps(run, np.arange(50), **arguments)


def train(steps: PrivateSteps, until: int) -> tuple[list[int], np.ndarray]:
    """Return how many users were admitted to each step, and the largest level of each user."""
    admitted: list[int] = []
    highest = np.zeros(50)
    charge = steps.roster.charge

    def watched(**arguments: float) -> RosterStep:
        decision = charge(**arguments)
        admitted.append(int(np.count_nonzero(decision.admitted)))
        np.maximum(highest, decision.clip_norms, out=highest)
        return decision

    steps.roster.charge = watched
    while steps.step < until:
        step = steps.begin()
        grown = 0.1 if step.step < STEPS // 2 else 1.0
        step.add(grown * SIZES[step.positions, None])
        step.release(1)
    return admitted, highest


def test_restarted_training_lasts_until_the_end(service: Turnstile) -> None:
    first, _ = train(steps_of(service), 17)
    rest, highest = train(steps_of(service), STEPS)
    assert first + rest == [50] * STEPS
    assert highest.max() == 1.0


def test_counted_steps_last_at_the_noise_of_the_policy(service: Turnstile) -> None:
    shape = {"sampling_rate": RATE, "noise_multiplier": 1.3}
    policy = service.create_dataset("steps", measure="steps", budget=STEPS, **shape)
    run = service.run("steps", "a")
    assert noise_for_steps([policy], STEPS, sampling_rate=RATE) == 1.3
    assert noise_for_steps([policy], STEPS, sampling_rate=lambda step: RATE / (step + 1)) == 1.3
    settings = {"clip_norm": 0.7, "sampling_rate": RATE, "expected_batch": 20.0}
    for changes, error in (
        ({"steps": STEPS + 1}, InvalidRequest),
        ({"noise_multiplier": 1.29}, InvalidRequest),
        ({"sampling_rate": 0.5}, UncoveredStep),
    ):
        with pytest.raises(error):
            PrivateSteps(
                run,
                np.arange(50),
                **{**settings, "noise_multiplier": 1.3, "steps": STEPS, **changes},
            )
    with pytest.raises(InvalidRequest):
        noise_for_steps([policy], STEPS + 1, sampling_rate=RATE)
    steps = PrivateSteps(run, np.arange(50), **settings, noise_multiplier=1.3, steps=STEPS)
    admitted, highest = train(steps, STEPS)
    assert admitted == [50] * STEPS
    assert set(highest) == {0.7}, "lower levels would save nothing"


def test_too_low_noise_is_rejected_before_users_are_enrolled(service: Turnstile) -> None:
    with pytest.raises(InvalidRequest):
        steps_of(service, lasting=15)
    assert service.run("digits", "a").step == 0
    # The same noise lasts for the steps that were said to last.
    admitted, _ = train(steps_of(service, lasting=15, steps=15), 15)
    assert admitted == [50] * 15


@pytest.mark.parametrize("lasting", [1, 15, 39])
def test_a_rejected_plan_knows_the_lasting_steps_and_noise(
    service: Turnstile, lasting: int
) -> None:
    run = service.run("digits", "a")
    noise = noise_for_steps([run.policy], lasting, sampling_rate=RATE)
    plan = Plan([run.policy], noise, RATE, STEPS)
    assert not plan.lasts()
    assert plan.lasting_steps() == lasting
    schedule = Plan([run.policy], lambda n: noise if n < lasting else noise / 2.0, RATE, STEPS)
    assert schedule.lasting_steps() == lasting
    with pytest.raises(InvalidRequest):
        plan.check()
    enough = noise_for_steps([run.policy], STEPS, sampling_rate=RATE)
    assert noise * plan.lasting_factor() == pytest.approx(enough, rel=2e-4)


def test_a_parent_budget_limits_the_plan() -> None:
    with Turnstile.in_memory(partitions=1) as turnstile:
        turnstile.create_dataset("person", measure="renyi", epsilon=1.0, delta=1e-5)
        turnstile.create_dataset(
            "digits", measure="renyi", epsilon=4.0, delta=1e-5, parents="person"
        )
        run = turnstile.run("digits", "a")
        alone, both = (
            noise_for_steps(policies, STEPS, sampling_rate=RATE)
            for policies in ([run.policy], [run.policy, *run.outer])
        )
        assert both > 2.0 * alone
        with pytest.raises(InvalidRequest):
            steps_of(turnstile)
        admitted, _ = train(steps_of(turnstile, noise_multiplier=both), STEPS)
    assert admitted == [50] * STEPS


def test_steps_without_admitted_users_release_noise_to_the_end(service: Turnstile) -> None:
    first = steps_of(service, levels="clip_norm")
    train(first, 30)
    first._run.close()
    second = steps_of(service, name="b", levels="clip_norm")
    admitted, _ = train(second, STEPS)
    made = admitted.index(0)
    assert 8 <= made <= 12
    assert admitted == [50] * made + [0] * (STEPS - made)


@pytest.mark.parametrize("measure", ["gdp", "zcdp", "renyi"])
def test_a_budget_that_pays_for_no_step_is_refused(measure: Any) -> None:
    with Turnstile.in_memory(partitions=1) as turnstile:
        turnstile.create_dataset("digits", measure=measure, epsilon=0.01, delta=1e-5)
        changes = {"sampling_rate": 1.0, "steps": None}
        with pytest.raises(InvalidRequest):
            steps_of(turnstile, noise_multiplier=0.5, **changes)
        assert turnstile.run("digits", "a").step == 0
        steps_of(turnstile, noise_multiplier=50.0, **changes)  # pays for steps of low norms


def test_no_step_is_charged_beyond_the_plan(service: Turnstile) -> None:
    steps = steps_of(service)
    with pytest.raises(InvalidRequest):
        PrivateTrainer(steps, lambda model, users: SIZES[users, None], Descent(0.1)).run(
            np.zeros(1), STEPS + 1
        )
    assert steps.step == 0
    train(steps, STEPS)
    with pytest.raises(InvalidRequest):
        steps.begin()
    assert service.run("digits", "a").step == STEPS


RATES = [{"sampling_rate": rate} for rate in (0.0, lambda step: 0.4 if step < 39 else -1.0)]


@pytest.mark.parametrize(
    "changes", [*({"steps": bad} for bad in (0, 2.5, True)), {"levels": 100}, *RATES]
)
def test_invalid_plans_are_rejected(service: Turnstile, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        steps_of(service, **changes)
    with pytest.raises(InvalidRequest):
        noise_for_steps([service.run("digits", "a").policy], 0)
