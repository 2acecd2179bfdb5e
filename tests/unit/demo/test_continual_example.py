"""examples/continual_training.py runs as it stands, and its models learn."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accounting import gdp_budget
from streams import Turnstile
from streams.demo.purchases import load_purchases, simulated_purchases
from tests.readme import TOP

PATH = TOP / "examples" / "continual_training.py"

Printed = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that runs the example and returns the lines that it prints."""

    def run(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(PATH), "--seed", "1", *options])
        runpy.run_path(str(PATH), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a file of customers who are trained on; none of them buys in the last months."""
    example = runpy.run_path(str(PATH), run_name="example")
    path = tmp_path / "shop.txt"
    rows = [f"{customer} 19970{month}05 1 20.0" for customer in range(1, 30) for month in (1, 3)]
    path.write_text("\n".join(["customer date CDs dollars", *rows]))
    months = example["hold_out"](example["months_of"](load_purchases(path)))[1]
    assert len(months[-1].users) == 0 < len(months[0].users)
    return path


def test_only_months_and_noisy_models_are_printed(shop: Path, printed: Printed) -> None:
    example = runpy.run_path(str(PATH), run_name="example")
    months = example["hold_out"](example["months_of"](load_purchases(shop)))[0]
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset(
            "shop", epsilon=example["EPSILON"], delta=example["DELTA"], on_exhaustion="clip"
        )
        run = turnstile.run("shop", "refreshes")
        models = [one.model for one in example["train"](run, months, np.random.default_rng(1))]
    _, *lines = printed("--data", str(shop))
    expected = [
        f"{number} {' '.join(f'{weight:.3f}' for weight in model)}"
        for number, model in enumerate(models, start=1)
    ]
    assert [" ".join(line.split()) for line in lines] == expected


@pytest.mark.slow
def test_the_example_trains_every_month(printed: Printed) -> None:
    _, _, *lines, decisions = printed("--show-private")
    months = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines]
    assert [month[0] for month in months] == list(range(1, 18))
    assert 0.0 == months[0][2] < months[-1][2] < months[-1][1]
    assert sum(month[3] for month in months[5:]) / len(months[5:]) > 0.68
    assert len(decisions.split()[-1]) == 16


@pytest.mark.slow
def test_no_customer_contributes_more_than_the_guarantee() -> None:
    example = runpy.run_path(str(PATH), run_name="example")
    months = example["months_of"](simulated_purchases(2_000, 365))
    epsilon, delta = example["EPSILON"], example["DELTA"]
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset(
            "shop", measure="gdp", epsilon=epsilon, delta=delta, on_exhaustion="clip"
        )
        run = turnstile.run("shop", "refreshes")
        trained = list(example["train"](run, months, np.random.default_rng(1)))
    squares: dict[int, float] = {}
    for month, refresh in zip(months, trained, strict=True):
        for user, one in zip(month.users.tolist(), (refresh.granted**2).sum(axis=0), strict=True):
            squares[user] = squares.get(user, 0.0) + one
    mu = max(squares.values()) ** 0.5 / example["NOISE"]
    assert mu == pytest.approx(gdp_budget(epsilon, delta), rel=1e-6)
