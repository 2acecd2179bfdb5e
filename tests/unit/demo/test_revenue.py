"""The demo on a service in memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from accounting import gdp_budget
from streams import Turnstile
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.query_file import read_query_file
from streams.demo.means import mean_and_error, with_error
from streams.demo.plots import plot_revenue
from streams.demo.purchases import simulated_purchases
from streams.demo.revenue import RevenueResult, answer_revenue
from streams.demo.revenue_plans import ACCOUNTINGS, DELTA, EPSILON, contributions, errors
from streams.demo.revenue_summary import show_summary, summary_of

DAYS, SEEDS = 40, 3


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RevenueResult:
    """The revenue of 1,000 customers."""
    steps: list[None] = []
    with Turnstile.in_memory() as turnstile:
        found = answer_revenue(
            turnstile,
            "shop",
            lambda dataset: MemoryJournal(MemoryTopics(), dataset),
            simulated_purchases(1_000, DAYS),
            tmp_path_factory.mktemp("shop"),
            seeds=SEEDS,
            progress=lambda: steps.append(None),
        )
    assert len(steps) == DAYS
    return found


def test_the_service_admits_what_the_choice_of_the_plan_assumed(result: RevenueResult) -> None:
    answers, purchases = result.answers["individual"], result.purchases
    sums = purchases.sum_by_day(contributions(purchases, answers.plan))
    expected = errors(sums, purchases, answers.noise_stddev, SEEDS)
    assert answers.errors == pytest.approx(expected, rel=1e-4)
    assert result.charged["admitted"] + result.charged["halted"] == len(purchases.values)
    # With the noise of a fixed seed.
    assert np.abs(answers.values - sums).max() < 6.0 * answers.noise_stddev


def test_every_halt_is_published(result: RevenueResult) -> None:
    assert result.charged["halt_events"] == result.charged["halted"] > 0
    assert result.charged["odometer_records"] > 0


def test_the_noise_is_that_of_the_plan(result: RevenueResult) -> None:
    for answers in result.answers.values():
        assert answers.noise_stddev == pytest.approx(answers.plan.noise_stddev, rel=1e-6)
        assert len(answers.values) == DAYS
        assert len(answers.errors) == SEEDS
    assert result.answers["worst case"].plan.active_days == DAYS
    policy_mu = gdp_budget(EPSILON, DELTA)
    plan = result.answers["individual"].plan
    assert plan.noise_stddev == pytest.approx(plan.cap * plan.active_days**0.5 / policy_mu)


def test_the_file_of_the_query_can_be_answered_again(result: RevenueResult) -> None:
    query_file = read_query_file(result.queries)
    plan = result.answers["individual"].plan
    (query,) = query_file.queries
    assert (query.each, query.active_windows) == (plan.cap, plan.active_days)
    assert sum(1 for _ in result.events.open()) == 1 + len(result.purchases.values)


def test_the_summary_is_an_object_with_a_row_for_each_accounting(result: RevenueResult) -> None:
    summary = msgspec.json.decode(msgspec.json.encode(summary_of(result)))
    assert [row["accounting"] for row in summary["results"]] == list(ACCOUNTINGS)
    ours, theirs = (
        np.array(result.answers[name].errors) for name in ("individual", "contribution bounding")
    )
    assert summary["individual_less_contribution_bounding"] == pytest.approx(np.mean(ours - theirs))
    for row, answers in zip(summary["results"], result.answers.values(), strict=True):
        assert row["root_mean_square_error"] == pytest.approx(np.mean(answers.errors))
        assert row["root_mean_square_error_standard_error"] == pytest.approx(
            np.std(answers.errors, ddof=1) / SEEDS**0.5
        )
    assert summary["seeds"] == SEEDS
    table, *_ = show_summary(summary)
    assert table.row_count == len(ACCOUNTINGS)


def test_one_seed_has_no_standard_error() -> None:
    assert mean_and_error("error", [2.0]) == {"error": 2.0}
    assert with_error("{:.1f}", [2.0]) == "2.0"


@pytest.mark.slow
def test_the_plot_is_a_picture(result: RevenueResult, tmp_path) -> None:
    path = plot_revenue(result, tmp_path / "new")
    assert path.read_text(encoding="utf-8").count("<path ") > 20
