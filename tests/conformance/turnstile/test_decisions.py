"""What is decided of steps, and how a step is described."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from accounting import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    PureDP,
)
from streams import (
    InvalidRequest,
    Turnstile,
)
from streams.records.decision_ids import DecisionId
from tests.conformance.turnstile import PARTITIONS
from tests.waiting import eventually

POLICIES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "zcdp": ({"measure": "zcdp", "budget": 0.3}, [Gaussian(1.7), Laplace(3.1), PureDP()]),
    "zcdp, clip": (
        {"measure": "zcdp", "budget": 0.3, "on_exhaustion": "clip"},
        [Gaussian(1.7), Gaussian(0.9)],
    ),
    "gdp": ({"measure": "gdp", "epsilon": 1.0, "delta": 1e-5}, [Gaussian(2.0)]),
    "gdp, clip": (
        {"measure": "gdp", "budget": 1.1, "odometer_step": 0.2, "on_exhaustion": "clip"},
        [Gaussian(1.3)],
    ),
    "renyi": (
        {"measure": "renyi", "orders": [1.5, 32], "budget": [0.7, 6.0]},
        [Gaussian(2.7), Laplace(4.3), PureDP()],
    ),
    "renyi, clip": (
        {
            "measure": "renyi",
            "orders": [1.5, 3.7, 32.1],
            "budget": [0.7, 0.9, 6.0],
            "odometer_step": [0.1, 0.09, 0.7],
            "on_exhaustion": "clip",
        },
        [Gaussian(2.7), Gaussian(1.1)],
    ),
    "steps": ({"measure": "steps", "noise_multiplier": 2.0, "budget": 4}, [Gaussian(2.0)]),
}


def told(turnstile: Turnstile, name: str, policy: dict[str, Any], mechanisms: list[Any]) -> Any:
    """Everything that a client hears of two runs that take turns, the halts too."""
    random = np.random.default_rng(1)
    turnstile.create_dataset(name, user_ids="mixed", assume_independent_timing=True, **policy)
    population = [*range(20), *(f"user {number}" for number in range(20))]
    runs = itertools.cycle([turnstile.run(name, "a"), turnstile.run(name, "b")])
    heard: list[Any] = []
    for step, run in zip(range(12), runs, strict=False):
        chosen = random.permutation(40)[: random.integers(0, 40)]
        users = [population[position] for position in chosen]
        norms = random.exponential(0.7, len(users))
        decision = run.charge(users, norms, mechanism=mechanisms[step % len(mechanisms)])
        arrays = decision.admitted, decision.granted, decision.exhausted, decision.halted
        heard.append((decision.step, *(array.tolist() for array in arrays)))
    return heard, halts_of(turnstile, name)


def test_a_step_has_one_id_per_partition_which_halts_share(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=0.5, user_ids="integer")
    users = list(range(8))
    run = turnstile.run(name, "r")
    steps: list[Any] = [run.charge(users, [1.0] * 8, noise_stddev=1.0) for _ in range(2)]
    again = turnstile.run(name, "r", released=0)
    assert again.interrupted
    repeated = again.charge(users, [1.0] * 8, noise_stddev=1.0)
    assert repeated.decision_ids == steps[1].decision_ids
    again.close()
    roster = turnstile.run(name, "s").enrol(users, clip_norm=1.0)
    steps.append(roster.charge(noise_stddev=1.0))
    every = [DecisionId.of(text) for step in steps for text in step.decision_ids]
    assert len({log for log, *_ in every}) == 1
    assert [partition for _, partition, _ in every] == [*range(PARTITIONS)] * len(steps)
    assert len(set(every)) == len(every)
    halted = {(halt.partition, halt.offset) for halt in turnstile.halts(name, follow=False)}
    assert halted
    assert halted <= {(partition, offset) for _, partition, offset in every}


def halts_of(turnstile: Turnstile, name: str, **options: Any) -> set[tuple[Any, ...]]:
    found = [
        (halt.run, halt.step, halt.user, halt.exhausted, halt.partition)
        for halt in turnstile.halts(name, follow=False, **options)
    ]
    assert len(set(found)) == len(found), "each once"
    return set(found)


def bounds_of(turnstile: Turnstile, name: str) -> dict[int | str, list[float]]:
    """The newest odometer record of each user: of older ones the service may have dropped some."""
    return {seen.user: seen.bound for seen in turnstile.odometer(name, follow=False)}


@pytest.mark.parametrize(("policy", "mechanisms"), POLICIES.values(), ids=POLICIES)
def test_both_decide_the_same(
    turnstile: Turnstile, name: str, policy: dict[str, Any], mechanisms: list[Any]
) -> None:
    with Turnstile.in_memory(partitions=PARTITIONS) as other:
        heard = told(turnstile, name, policy, mechanisms)
        assert heard == told(other, name, policy, mechanisms)
        bounds = bounds_of(other, name)
    decisions, halts = heard
    assert len(halts) == sum(sum(halted) for *_, halted in decisions) > 0
    assert bounds
    # Decisions do not wait for odometer records.
    eventually(lambda: bounds_of(turnstile, name) == bounds)


def test_the_budget_is_spent_to_its_last_unit(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    for step in range(32):
        decision = run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0)
        assert (decision.step, decision.admitted.all()) == (step, True)
    assert decision.exhausted.all()
    after = run.charge([1, 2, 3], [5e-324, 0.0, 1.0], noise_stddev=4.0)
    assert after.admitted.tolist() == [False, True, True]
    assert after.granted.tolist() == [0.0, 0.0, 1.0]
    assert halts_of(turnstile, name, run="r") == {("r", 32, 1, True, home_of(1))}
    assert halts_of(turnstile, name, run="s") == halts_of(turnstile, name, since="latest") == set()


def home_of(user: int) -> int:
    with Turnstile.in_memory(partitions=PARTITIONS) as other:
        other.create_dataset("d", measure="zcdp", budget=2.0**-44)
        other.run("d", "r").charge([user], [1.0], noise_stddev=1.0)
        (halt,) = other.halts("d", follow=False)
        return halt.partition


def test_events_of_dp_accounting_are_charged_as_their_steps(
    turnstile: Turnstile, name: str
) -> None:
    fine = {"budget": [5.0, 20.0], "odometer_step": [2.0**-30, 2.0**-28]}
    turnstile.create_dataset(
        name, measure="renyi", orders=[4.0, 16.0], assume_independent_timing=True, **fine
    )
    sampled = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.5))
    for user, mechanism in enumerate((sampled, PoissonGaussian(3.0, 0.02))):  # at a clip norm of 2
        roster = turnstile.run(name, f"roster-{user}").enrol([user], clip_norm=2.0, levels=10)
        assert roster.charge(mechanism=mechanism).sampling_rate == 0.02
    run = turnstile.run(name, "by-norms")
    for user, noise in enumerate((dp_event.GaussianDpEvent(4.0), Gaussian(2.0))):
        assert run.charge([user], [0.5], mechanism=noise, clip_norm=0.5).admitted.all()
    bounds = bounds_of(turnstile, name)
    assert bounds[0] == bounds[1]
    assert bounds[0][0] > 4 * 0.25**2 / 2  # more than the step by norms alone
    with pytest.raises(InvalidRequest):
        run.charge([0], [0.5], mechanism=dp_event.GaussianDpEvent(4.0))
    with pytest.raises(InvalidRequest):
        run.charge([0], [0.5], mechanism=dp_event.SelfComposedDpEvent(sampled, 3), clip_norm=0.5)
    with pytest.raises(InvalidRequest):
        run.charge([0], [0.5], mechanism=sampled, clip_norm=0.5)
