"""The demo on a service in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streams import Turnstile
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.query_file import read_query_file
from streams.demo import revenue
from streams.demo.plots import DailyAnswers, plot_revenue
from streams.demo.purchases import Purchases, simulated_purchases
from streams.demo.revenue import compare_accountings, mean_and_error
from streams.demo.revenue_plans import ACCOUNTINGS, contributions, errors

DAYS, SEEDS = 40, 3

Answers = Mapping[str, DailyAnswers]


@pytest.fixture(scope="module")
def shop() -> Purchases:
    return simulated_purchases(1_000, DAYS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def compared(shop: Purchases, folder: Path) -> tuple[dict[str, Any], Answers]:
    """The figures, and what was plotted."""
    plotted: list[Answers] = []

    def plot(_: Purchases, answers: Answers, gain: str, path: Path) -> Path:
        plotted.append(answers)
        return path

    with Turnstile.in_memory() as turnstile, pytest.MonkeyPatch.context() as patch:
        patch.setattr(revenue, "plot_revenue", plot)
        journal = MemoryJournal(MemoryTopics(), "shop")
        summary = compare_accountings(turnstile, "shop", journal, shop, folder, seeds=SEEDS)
    return msgspec.json.decode(msgspec.json.encode(summary)), plotted[0]


def test_the_service_admits_what_the_choice_of_the_plan_assumed(
    shop: Purchases, folder: Path, compared: tuple[dict[str, Any], Answers]
) -> None:
    summary, answers = compared
    found, service = answers["individual"], summary["service"]
    (query,) = read_query_file(folder / "revenue-queries.toml").queries
    assert (query.each, query.active_windows) == (found.plan.cap, found.plan.active_days)
    assert sum(1 for _ in (folder / "purchases.csv").open()) == 1 + len(shop.values)
    sums = shop.sum_by_day(contributions(shop, found.plan))
    expected = errors(sums, shop, found.plan.noise_stddev, SEEDS)
    assert found.errors == pytest.approx(expected, rel=1e-4)
    assert service["admitted"] + service["halted"] == len(shop.values)
    assert service["halt_events"] == service["halted"] > 0
    assert service["odometer_records"] > 0
    # With the noise of a fixed seed.
    assert np.abs(found.values - sums).max() < 6.0 * found.plan.noise_stddev


def test_the_summary_has_means_with_their_standard_errors(
    compared: tuple[dict[str, Any], Answers],
) -> None:
    summary, answers = compared
    assert [row["accounting"] for row in summary["results"]] == list(ACCOUNTINGS)
    ours, theirs = (
        np.array(answers[name].errors) for name in ("individual", "contribution bounding")
    )
    assert summary["individual_less_contribution_bounding"] == pytest.approx(np.mean(ours - theirs))
    for row, found in zip(summary["results"], answers.values(), strict=True):
        assert row["root_mean_square_error"] == pytest.approx(np.mean(found.errors))
        assert row["root_mean_square_error_standard_error"] == pytest.approx(
            np.std(found.errors, ddof=1) / SEEDS**0.5
        )
    assert summary["seeds"] == SEEDS
    assert mean_and_error("error", [2.0]) == {"error": 2.0}


@pytest.mark.slow
def test_the_plot_is_a_picture(
    shop: Purchases, compared: tuple[dict[str, Any], Answers], tmp_path: Path
) -> None:
    path = plot_revenue(shop, compared[1], "it gains", tmp_path / "plot.svg")
    assert path.read_text(encoding="utf-8").count("<path ") > 20
