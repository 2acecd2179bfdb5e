"""examples/continual_training.py: the real service decides as the service in memory."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import gdp_budget
from streams import Run, Turnstile
from streams.demo.purchases import simulated_purchases
from tests.integration.service import Service

EXAMPLE = runpy.run_path(
    str(Path(__file__).parents[2] / "examples" / "continual_training.py"), run_name="example"
)


@pytest.fixture(scope="module")
def months() -> list[Any]:
    return EXAMPLE["months_of"](simulated_purchases(2_000, 365))


def refreshes(turnstile: Turnstile, dataset: str, months: list[Any]) -> list[tuple]:
    """Train with a fixed noise seed."""
    turnstile.create_dataset(
        dataset,
        measure="gdp",
        epsilon=EXAMPLE["EPSILON"],
        delta=EXAMPLE["DELTA"],
        on_exhaustion="clip",
    )
    run: Run = turnstile.run(dataset, "refreshes")
    return list(EXAMPLE["train"](run, months, np.random.default_rng(1)))


def test_the_service_trains_the_same_models_as_in_memory(
    shared: Service, months: list[Any], name: str
) -> None:
    real = refreshes(shared.client, name, months)
    with Turnstile.in_memory() as turnstile:
        in_memory = refreshes(turnstile, name, months)
    for first, second in zip(real, in_memory, strict=True):
        np.testing.assert_array_equal(first.granted, second.granted)
        np.testing.assert_array_equal(first.model, second.model)
    assert any((refresh.granted == 0.0).any() for refresh in real)  # so that budgets decide
    shared.audit()


def test_no_customer_contributes_more_than_the_guarantee(months: list[Any]) -> None:
    with Turnstile.in_memory() as turnstile:
        trained = refreshes(turnstile, "shop", months)
    squares: dict[int, float] = {}
    for month, refresh in zip(months, trained, strict=True):
        for user, one in zip(month.users.tolist(), (refresh.granted**2).sum(axis=0), strict=True):
            squares[user] = squares.get(user, 0.0) + one
    mu = max(squares.values()) ** 0.5 / EXAMPLE["NOISE"]
    assert mu == pytest.approx(gdp_budget(EXAMPLE["EPSILON"], EXAMPLE["DELTA"]), rel=1e-6)
