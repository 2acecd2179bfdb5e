"""Private steps with JAX and optax themselves. Noise comes from seeds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from streams.sdk.errors import InvalidRequest
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.examples import ExamplesByUser
from streams.trainers.jax import arrays_of, private_grad, tree_of
from streams.trainers.steps import OpenStep, PrivateSteps
from tests.unit.trainers.rosters import FilterService
from tests.unit.trainers.test_steps import silenced

USERS = np.repeat(np.arange(40), [1, 2, 3, 2] * 10)
ROWS = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
LABELS = (ROWS[:, 0] > 0).astype(np.float32)
PARAMS = {"weights": jnp.array([0.1, -0.2, 0.3]), "bias": jnp.array(0.05)}


def loss(params: Any, row: Any, label: Any) -> Any:
    score = row @ params["weights"] + params["bias"]
    return jnp.logaddexp(0.0, score) - label * score


def private(service: FilterService, rate: float = 1.0, noise: float = 1.0) -> PrivateSteps:
    return PrivateSteps(
        service.open(),
        np.arange(40),
        clip_norm=1.0,
        noise_multiplier=noise,
        sampling_rate=rate,
        expected_batch=10.0,
        not_private_generator=np.random.default_rng(1),
    )


@cache
def by_user() -> list[Any]:
    """Gradients of each user, one example after the other."""
    gradients: list[Any] = [jax.tree.map(jnp.zeros_like, PARAMS) for _ in range(40)]
    of_one = jax.jit(jax.grad(loss))
    for user, row, label in zip(USERS, ROWS, LABELS, strict=True):
        one = of_one(PARAMS, row, label)
        gradients[user] = jax.tree.map(jnp.add, gradients[user], one)
    return gradients


def clipped_mean() -> dict[str, Any]:
    total = {"weights": np.zeros(3), "bias": np.zeros(())}
    for gradient in by_user():
        norm = float(np.sqrt(np.sum(gradient["weights"] ** 2) + gradient["bias"] ** 2))
        for name in total:
            total[name] += np.asarray(gradient[name]) * min(1.0, 1.0 / norm) / 10.0
    return total


@pytest.mark.slow
@pytest.mark.parametrize("examples_at_once", [1, 7, 256])
def test_private_gradient_is_the_clipped_mean_over_users(examples_at_once: int) -> None:
    steps = private(FilterService())
    silenced(steps)
    gradient = private_grad(
        loss, steps, ExamplesByUser.of(USERS), examples_at_once=examples_at_once
    )
    found = gradient(PARAMS, ROWS, LABELS)
    for name, value in clipped_mean().items():
        assert np.asarray(found[name]) == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert found[name].dtype == PARAMS[name].dtype


@pytest.mark.slow
def test_what_a_user_adds_does_not_depend_on_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, where all batches have one shape; whether it is so depends on the library."""
    seen: dict[int, np.ndarray] = {}
    add, sizes = OpenStep.add, set()

    def watched(step: OpenStep, rows: Any, places: Any) -> None:
        sizes.add(len(step.positions))
        for user, row in zip(step.positions[places].tolist(), rows, strict=True):
            assert np.array_equal(seen.setdefault(user, row), row)
        add(step, rows, places)

    monkeypatch.setattr(OpenStep, "add", watched)
    steps = private(FilterService(epsilon=1e4), rate=0.5)
    gradient = private_grad(loss, steps, ExamplesByUser.of(USERS), examples_at_once=16)
    for _ in range(60):
        gradient(PARAMS, ROWS, LABELS)
    assert len(sizes) > 10
    assert len(seen) == 40


@pytest.mark.slow
def test_training_continues_from_a_checkpoint(tmp_path: Path) -> None:
    service, checkpoint = FilterService(epsilon=50.0), Checkpoint(tmp_path / "jax.npz")
    optimizer = optax.adam(0.1)
    for seen in (15, 30):
        params, state = PARAMS, optimizer.init(PARAMS)
        steps = private(service, rate=0.5, noise=0.8)
        saved = steps.resume(checkpoint)
        if saved is not None:
            params, state = tree_of(saved.arrays, like=(params, state))
        gradient = private_grad(loss, steps, ExamplesByUser.of(USERS))
        while steps.step < seen:
            updates, state = optimizer.update(gradient(params, ROWS, LABELS), state, params)
            params = optax.apply_updates(params, updates)
            steps.save(checkpoint, arrays_of((params, state)))
    assert int(state[0].count) == 30
    assert len(service.charges) == 30
    scores = ROWS @ params["weights"] + params["bias"]
    assert np.mean((scores > 0) == LABELS) > 0.8


def test_what_does_not_fit_is_refused() -> None:
    steps = private(FilterService())
    gradient = private_grad(loss, steps, ExamplesByUser.of(USERS))
    with pytest.raises(InvalidRequest):
        gradient(PARAMS, ROWS[1:], LABELS[1:])
    with pytest.raises(InvalidRequest):
        private_grad(loss, steps, ExamplesByUser.of(USERS), examples_at_once=0)
    with pytest.raises(InvalidRequest):
        tree_of(arrays_of(PARAMS), like=PARAMS["weights"])
