"""Trainings that end because of a noisy count of users, which was charged before them."""

from __future__ import annotations

from runpy import run_path
from typing import Any

import numpy as np
import pytest

from streams import InvalidRequest, Turnstile
from streams.trainers import Descent, PrivateSteps, PrivateStop, PrivateTrainer
from tests.readme import TOP

USERS, STEPS = 400, 60
NORMS = np.where(np.arange(USERS) < 250, 1.0, 0.1)  # the first 250 can pay for some steps only
COUNTS = {"threshold": 300.0, "noise_stddev": 5.0, "every": 5, "counts": 8}


def stop_of(service: Turnstile, users: Any = range(USERS), **changes: Any) -> PrivateStop:
    generator = np.random.default_rng(2)
    settings = {**COUNTS, "not_private_generator": generator, **changes}
    return PrivateStop(service, "d", "count", list(users), **settings)


def steps_of(service: Turnstile, users: Any = range(USERS), **changes: Any) -> PrivateSteps:
    steps = PrivateSteps(
        service.run("d", "train"),
        list(users),
        clip_norm=1.0,
        noise_multiplier=4.0,
        sampling_rate=1.0,
        expected_batch=400.0,
        not_private_generator=np.random.default_rng(1),
        levels="clip_norm",
        **changes,
    )
    steps.roster.set_norms(NORMS[list(users)])
    return steps


def service_with(mu: float = 1.0, **policy: Any) -> Turnstile:
    service = Turnstile.in_memory(partitions=2)
    service.create_dataset("d", **{"measure": "gdp", "budget": mu, **policy})
    return service


def affordable(service: Turnstile) -> list[bool]:
    """Check that the share left is close to 1 - 8 / 25: the rest paid for the counts."""
    run = service.run("d", "others")
    norms = np.sqrt([1.0 - 8.0 / 25.0 - 0.001, 1.0 - 8.0 / 25.0 + 0.001])
    admitted = run.charge([0, USERS - 1], norms, noise_stddev=1.0, clip_norm=1.0).admitted
    run.close()
    return [bool(one) for one in admitted]


def ended_at(service: Turnstile, steps: PrivateSteps) -> int:
    trainer = PrivateTrainer(
        steps, lambda model, users: 0.05 * np.ones((len(users), 2)), Descent(0.1)
    )
    trainer.run(np.zeros(2), STEPS)
    return steps.step


def test_a_training_ends_by_the_first_count_below_the_threshold() -> None:
    """mu = 1 pays for the counts (8 / 25) and for ten steps of norm 1 and noise 4 (10 / 16)."""
    with service_with() as service:
        stop = stop_of(service)
        steps = steps_of(service, stop=stop)
        assert ended_at(service, steps) == 15
        assert [step for step, _ in stop.counted] == [4, 9, 14]
        assert [count for _, count in stop.counted] == pytest.approx([400, 400, 150], abs=25.0)
        assert steps.stopped
        with pytest.raises(InvalidRequest):
            steps.begin()


def test_noise_of_counts_is_that_which_was_charged() -> None:
    with service_with(2.0) as service:
        stop = stop_of(service, counts=400, every=1, noise_stddev=20.0, threshold=1.0)
        everybody = np.ones(USERS, dtype=np.bool_)
        for step in range(500):
            assert not stop.ends_after(step, everybody)
        noise = np.array([count for _, count in stop.counted]) - USERS
        assert len(noise) == 400, "no count is made that is not paid for"
        assert np.std(noise) == pytest.approx(20.0, rel=0.15)
        assert len(np.unique(noise)) == 400


def test_counts_of_neighbours_differ_by_one_at_most() -> None:
    """With the same noise. The user can pay for few steps, or for all, or not for the counts."""
    for mu, last in ((1.0, 0), (1.0, USERS - 1), (0.5, 0)):
        counted = []
        for users in (range(USERS), [user for user in range(USERS) if user != last]):
            with service_with(mu) as service:
                stop = stop_of(service, users, threshold=1.0)
                ended_at(service, steps_of(service, users, stop=stop))
                counted.append(stop.counted)
        assert [step for step, _ in counted[0]] == [step for step, _ in counted[1]]
        differences = {one - two for (_, one), (_, two) in zip(*counted, strict=True)}
        assert differences <= {0.0, 1.0}
        assert (1.0 in differences) == (mu == 1.0), "who cannot pay for the counts is not counted"


def test_several_trainings_get_no_more_counts_than_are_paid_for() -> None:
    with service_with() as service:
        stop = stop_of(service, threshold=1.0)
        everybody = np.ones(USERS, dtype=np.bool_)
        for begin in (10, 0, 0, 5):
            for step in range(begin, 200):
                stop.ends_after(step, everybody)
        assert len(stop.counted) == 8


def test_after_a_restart_the_training_makes_all_its_steps() -> None:
    with service_with() as service:
        assert stop_of(service).counted == []
        again = stop_of(service)  # nothing is charged a second time
        assert affordable(service) == [True, False]
        assert ended_at(service, steps_of(service, stop=again)) == STEPS
        assert again.counted == []


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 0.0},
        {"threshold": float("nan")},
        {"noise_stddev": 0.0},
        {"noise_stddev": 2.0**30},
        {"every": 0},
        {"counts": 0},
        {"counts": 2.5},
    ],
)
def test_invalid_counts_are_charged_to_no_user(changes: dict[str, Any]) -> None:
    with service_with() as service:
        with pytest.raises(InvalidRequest):
            stop_of(service, **changes)
        assert service.run("d", "count").step == 0


@pytest.mark.parametrize(
    "policy",
    [
        {"measure": "renyi", "epsilon": 4.0, "delta": 1e-5},  # the first charge binds an order
        {"measure": "steps", "budget": 50, "sampling_rate": 0.1, "noise_multiplier": 1.0},
        {"measure": "pure-dp", "budget": 1.0},
    ],
)
def test_datasets_that_cannot_charge_counts_are_refused(policy: dict[str, Any]) -> None:
    with Turnstile.in_memory() as service:
        service.create_dataset("d", **policy)
        with pytest.raises(InvalidRequest):
            stop_of(service)
        assert service.run("d", "train").step == 0, "nothing is charged, and no run is left open"


def test_other_users_than_those_who_have_paid_are_refused() -> None:
    with service_with() as service:
        stop = stop_of(service)
        with pytest.raises(InvalidRequest):
            steps_of(service, range(1, USERS), stop=stop)


def test_the_example_ends_by_its_count() -> None:
    names = run_path(str(TOP / "examples" / "private_stop.py"))
    (*counts, (step, last)), steps = names["stop"].counted, names["steps"]
    assert steps.stopped
    assert (step + 1, step + 1 < 200) == (steps.step, True)
    assert last < 1_000 <= min(count for _, count in counts)
    assert names["model"] == pytest.approx(names["rows"].mean(axis=0), abs=0.1)
