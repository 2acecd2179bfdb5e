"""Trainings with numpy, scikit-learn's interface and JAX do the same with one user and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from streams import Turnstile
from streams.trainers import (
    Checkpoint,
    Descent,
    ExamplesByUser,
    IndividualDPClassifier,
    PrivateSteps,
    PrivateStop,
    PrivateTrainer,
)
from streams.trainers.classifier import logistic_gradients
from streams.trainers.examples import SumsByUser
from streams.trainers.jax import private_grad
from tests.worlds.examples import (
    BROKEN,
    FEATURES,
    OTHERS,
    UNKNOWN,
    USER,
    USUAL,
    Example,
    arrays,
    saved,
)
from tests.worlds.neighbours import SEED, Fact, Noisy, Program, check_neighbours, flat

pytestmark = pytest.mark.slow
BATCH, STEPS = 6.0, 5


def private(turnstile: Turnstile, users: Any, rate: float = 1.0, **settings: Any) -> PrivateSteps:
    turnstile.create_dataset("d", measure="renyi", epsilon=8.0, delta=1e-5, sampled_levels=True)
    return PrivateSteps(
        turnstile.run("d", "r"),
        users,
        clip_norm=1.0,
        noise_multiplier=2.0,
        sampling_rate=rate,
        expected_batch=BATCH,
        steps=STEPS,
        not_private_generator=np.random.default_rng(SEED),
        **settings,
    )


def plain_steps(data: list[Example], rate: float = 1.0) -> Iterator[Fact]:
    """Release the sums of users' rows, as a loop of one's own does."""
    users, rows, _ = arrays(data)
    grouped = ExamplesByUser.of(users)
    with Turnstile.in_memory(partitions=2) as turnstile:
        steps = private(turnstile, grouped.users, rate)
        for number in range(STEPS):
            step = steps.begin()
            chosen, counts = grouped.select(step.positions)
            users, sums = SumsByUser(counts).add([rows[chosen]])
            step.add(sums[0], users)
            moved = 1.0 / BATCH if rate == 1.0 and number == 0 else None
            yield Fact("noise", (step.step, step.noise_stddev, step.exponent))
            yield Fact("mean", Noisy(step.release(3), moved))


def sampled_steps(data: list[Example]) -> Iterator[Fact]:
    """Do the same with coins: in some steps nobody is drawn."""
    return plain_steps(data, rate=0.1)


def trainer(data: list[Example]) -> Iterator[Fact]:
    """Train a vector with a checkpoint, and publish it after every second step."""
    users, features, labels = arrays(data)
    grouped = ExamplesByUser.of(users)
    shown: list[Fact] = []
    with Turnstile.in_memory(partitions=2) as turnstile:
        made = PrivateTrainer(
            private(turnstile, grouped.users, rate=0.5),
            logistic_gradients(features, labels, 2, grouped),
            Descent(0.5, momentum=0.5),
            checkpoint=Checkpoint("model.npz"),
            checkpoint_every=2,
        )
        model = made.run(
            np.zeros(6), STEPS, released=lambda step, model: shown.append(Fact("model", step))
        )
        yield from shown
        yield Fact("last model", Noisy(model))
        yield from saved("model.npz")


def listed(data: list[Example]) -> tuple[list[int], Any, list[Any]]:
    """Return users, features and labels of any type."""
    features = np.array([one.features for one in data], dtype=float).reshape(-1, FEATURES)
    return [one.user for one in data], features, [one.label for one in data]


def classifier(data: list[Example]) -> Iterator[Fact]:
    """Fit a classifier whose dataset is its own."""
    users, features, labels = listed(data)
    made = IndividualDPClassifier(
        epsilon=4.0,
        population=10,
        classes=[0, 1],
        steps=1,
        sampling_rate=1.0,
        learning_rate=1.0,
        not_private_seed=SEED,
    ).fit(features, labels, users)
    yield Fact("settings", (made.noise_multiplier_, made.n_iter_, made.classes_.tolist()))
    yield Fact("model", Noisy(flat([made.coef_, made.intercept_]), 1.0 / 10))


def loss(params: Any, features: Any, label: Any) -> Any:
    score = features @ params["weights"] + params["bias"]
    return jnp.logaddexp(0.0, score) - label * score


PARAMS = {"weights": jnp.array([0.1, -0.2, 0.3]), "bias": jnp.array(0.05)}


def jax_gradients(data: list[Example]) -> Iterator[Fact]:
    """Let JAX compute the gradients of examples."""
    users, features, labels = arrays(data)
    grouped = ExamplesByUser.of(users)
    with np.errstate(over="ignore"):
        given = features.astype(np.float32), labels.astype(np.float32)
    with Turnstile.in_memory(partitions=2) as turnstile:
        steps = private(turnstile, grouped.users)
        gradient = private_grad(loss, steps, grouped, examples_at_once=64)
        for number in range(STEPS):
            found = gradient(PARAMS, *given)
            yield Fact("step", (steps.step, sorted(found)))
            moved = 1.0 / BATCH if number == 0 else None
            yield Fact("gradient", Noisy(flat([found["weights"], found["bias"]]), moved))


def second_month(data: list[Example]) -> Iterator[Fact]:
    """Train again. The user is new, and nobody else has budget left."""
    with Turnstile.in_memory(partitions=2) as turnstile:
        settings = {"sampling_rate": 0.5, "noise_multiplier": 2.0}
        policy = turnstile.create_dataset("d", measure="steps", epsilon=3.0, delta=1e-5, **settings)
        steps = policy.budget[0] >> 44  # what a budget pays for
        for name, present in (("one", [one for one in data if one.user != USER]), ("two", data)):
            users, features, labels = listed(present)
            run = turnstile.run("d", name)
            made = IndividualDPClassifier(
                population=10,
                classes=[0, 1],
                steps=steps,
                not_private_seed=SEED,
                **settings,
            ).fit(features, labels, users, run=run)
            yield Fact("fitted", (name, made.n_iter_, made.coef_.shape))
            run.close()


def stopped(data: list[Example]) -> Iterator[Fact]:
    """Count the users who are left, as was charged before. In the end all are halted."""
    users, rows, _ = arrays(data)
    grouped = ExamplesByUser.of(users)
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("d", measure="gdp", budget=1.1)  # seven steps
        stop = PrivateStop(
            turnstile,
            "d",
            "count",
            grouped.users,
            threshold=0.001,  # so low that no count is below it
            noise_stddev=2.0,
            every=2,
            counts=3,
            not_private_generator=np.random.default_rng(SEED),
        )
        steps = PrivateSteps(
            turnstile.run("d", "r"),
            grouped.users,
            clip_norm=1.0,
            noise_multiplier=4.0,
            sampling_rate=1.0,
            expected_batch=BATCH,
            stop=stop,
            not_private_generator=np.random.default_rng(SEED),
        )
        for _ in range(10):
            step = steps.begin()
            chosen, counts = grouped.select(step.positions)
            users, sums = SumsByUser(counts).add([rows[chosen]])
            step.add(sums[0], users)
            yield Fact("mean", Noisy(step.release(3)))
        for at, value in stop.counted:
            yield Fact("count after", at)
            yield Fact("count", Noisy(value, 1.0))


PROGRAMS: list[Callable[[list[Example]], Iterator[Fact]]] = [
    plain_steps,
    sampled_steps,
    trainer,
    classifier,
    jax_gradients,
    second_month,
    stopped,
]
CLASSIFIERS = [classifier, second_month]


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_user_of_a_training_decides_nothing(program: Program[Example], name: str) -> None:
    check_neighbours(program, OTHERS, USUAL[name])


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_that_are_not_finite_are_no_secret_channel(
    program: Program[Example], name: str
) -> None:
    check_neighbours(program, OTHERS, BROKEN[name])


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("program", CLASSIFIERS, ids=lambda program: program.__name__)
def test_labels_of_one_user_decide_nothing(program: Program[Example], name: str) -> None:
    check_neighbours(program, OTHERS, UNKNOWN[name])


def test_the_only_user_of_a_classifier_decides_nothing() -> None:
    check_neighbours(classifier, [], USUAL["one example"])
