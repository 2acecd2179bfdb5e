"""examples/continual_training.py runs as it stands, and its models learn."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

from accounting import gdp_budget
from streams import Turnstile
from streams.demo.purchases import simulated_purchases
from tests.readme import TOP

PATH = TOP / "examples" / "continual_training.py"


@pytest.mark.slow
def test_the_example_trains_every_month(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(PATH), "--seed", "1"])
    runpy.run_path(str(PATH), run_name="__main__")
    _, *lines, decisions = capsys.readouterr().out.splitlines()
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
