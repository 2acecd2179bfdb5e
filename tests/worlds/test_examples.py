"""The examples and the training of the documentation do the same with one user and without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.demo.purchases import load_purchases
from tests.readme import TOP, example
from tests.worlds.neighbours import SEED, Fact, Noisy, check_neighbours

pytestmark = pytest.mark.slow
USER = 99


# --- continual_training.py ------------------------------------------------------------

CONTINUAL = example("continual_training")
SHOP = {"first_day": date(1997, 1, 1), "days": 150}  # public


def continual(lines: list[str]) -> Iterator[Fact]:
    """Train every month on the purchases of a file, and publish the models."""
    Path("shop.txt").write_text("\n".join(["customer date CDs dollars", *lines]))
    months = CONTINUAL.months_of(load_purchases(Path("shop.txt"), **SHOP))
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("shop", measure="gdp", epsilon=0.5, delta=1e-5)
        run = turnstile.run("shop", "refreshes")
        refreshes = CONTINUAL.train(run, months, np.random.default_rng(SEED))
        for refresh in refreshes:
            yield Fact("step", run.step)
            yield Fact("model", Noisy(refresh.model))


def purchase(customer: int, day: str, dollars: float) -> str:
    return f"{customer} {day} 1 {dollars}"


_random = np.random.default_rng(0)
PURCHASES = [
    purchase(customer, f"1997{month:02}{day:02}", round(float(dollars), 2))
    for customer in range(1, 15)
    for month, day, dollars in zip(
        _random.integers(1, 6, 5),
        _random.integers(1, 29, 5),
        _random.gamma(2.0, 15.0, 5),
        strict=True,
    )
]
BUYERS = {
    "one purchase": [purchase(USER, "19970310", 20.0)],
    "the first purchase of all": [purchase(USER, "19970101", 20.0)],
    "before the first day": [purchase(USER, "19500101", 20.0)],
    "after the last day": [purchase(USER, "19990101", 20.0), purchase(USER, "99991231", 20.0)],
    "the largest amount": [purchase(USER, "19970310", 1e308)],
    "the smallest amount": [purchase(USER, "19970310", -1e308)],
    "every day": [purchase(USER, f"199703{day:02}", 20.0) for day in range(1, 29)],
    "a large number": [purchase(10**6, "19970310", 20.0)],
}


@pytest.mark.parametrize("name", BUYERS)
def test_one_customer_of_a_shop_decides_nothing(name: str) -> None:
    check_neighbours(continual, PURCHASES, BUYERS[name])


# --- examples/dp_ftrl.py --------------------------------------------------------

WHOLE = (TOP / "examples" / "dp_ftrl.py").read_text(encoding="utf-8")
SETUP, TRAINING = WHOLE.split("\nwith Turnstile", 1)


def correlated_noise(data: list[tuple[list[float], float]]) -> Iterator[Fact]:
    """Train as the example does, on other users; some cohorts have none."""
    names: dict[str, Any] = {}
    exec(SETUP.replace("PASSES, RATE = 10, 6,", "PASSES, RATE = 10, 2,"), names)
    features, targets = map(np.array, zip(*data, strict=True))
    names |= {"users": np.arange(len(data)), "features": features, "targets": targets}
    exec(f"with Turnstile{TRAINING}", names)
    yield Fact("steps", names["run"].step)
    yield Fact("noise", names["steps"].noise_multiplier)
    yield Fact("model", Noisy(names["model"]))


PHONES = [(row.tolist(), float(row[0])) for row in np.random.default_rng(0).normal(size=(20, 3))]
PHONE = {
    "usual": [([0.5, 0.5, 0.5], 1.0)],
    "zeros": [([0.0, 0.0, 0.0], 0.0)],
    "large numbers": [([1e100, 1e100, -1e100], 1.0)],
}


@pytest.mark.parametrize("name", PHONE)
def test_one_user_of_correlated_noise_decides_nothing(name: str) -> None:
    check_neighbours(correlated_noise, PHONES, PHONE[name])
