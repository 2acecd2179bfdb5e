"""The monitoring demo, and what it and the training draw and tabulate."""

from __future__ import annotations

import builtins
import io
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from streams import Turnstile
from streams.answerer.journal import MemoryJournal, Pages
from streams.answerer.questions import read_questions
from streams.demo.entry import _find, check_demo, run_demo
from streams.demo.errors import DemoError, demo_extra
from streams.demo.images import load_digits
from streams.demo.monitoring import (
    RUN,
    MonitoringResult,
    Settings,
    monitor_daily,
    write_events,
    write_queries,
)
from streams.demo.plots import plot_monitoring, plot_training
from streams.demo.purchases import Purchases, simulated_purchases
from streams.demo.table import (
    Seen,
    over_seeds,
    summary_of_monitoring,
    summary_of_training,
    table_of,
)
from streams.demo.training import Settings as TrainingSettings
from streams.demo.training import train_privately
from tests.unit.sdk.partitions import in_memory_run

SETTINGS = Settings(epsilon=1.0, delta=1e-5, norm_budget=4)
DAYS = 60


@pytest.fixture(scope="module")
def purchases() -> Purchases:
    """Customer 0 buys every day, the others on few days; on day 10 nobody else does."""
    random = np.random.default_rng(3)
    buyers = [np.flatnonzero(random.random(200) < 0.02) for _ in range(DAYS)]
    buyers[10] = np.empty(0, dtype=np.int64)
    buyers = [np.union1d(day, [0]) for day in buyers]
    return Purchases("a shop", date(1997, 1, 1), buyers, len(np.unique(np.concatenate(buyers))))


def monitor(purchases: Purchases, folder: Path, seed: int = 1) -> MonitoringResult:
    """What the answerer makes of purchases, on a service in memory."""
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", budget=SETTINGS.rho, user_ids="integer")
        questions = write_queries("d", purchases, SETTINGS, folder / "queries.toml")
        assert read_questions(folder / "queries.toml") == questions
        write_events(purchases, folder / "events.csv")
        return monitor_daily(
            lambda released: turnstile.run("d", RUN, released=released),
            MemoryJournal(Pages(), "d", RUN),
            questions,
            folder / "events.csv",
            purchases,
            SETTINGS,
            seed=seed,
            progress=lambda done, total: None,
        )


@pytest.fixture(scope="module")
def monitored(purchases: Purchases, tmp_path_factory: pytest.TempPathFactory) -> MonitoringResult:
    return monitor(purchases, tmp_path_factory.mktemp("shop"))


def test_every_day_is_answered_where_the_worst_case_stops_after_the_norm_budget(
    monitored: MonitoringResult,
) -> None:
    assert len(monitored.answers) == DAYS
    assert monitored.k0 == SETTINGS.norm_budget


def test_customers_count_on_as_many_days_as_the_norm_budget(
    monitored: MonitoringResult, purchases: Purchases
) -> None:
    days = np.bincount(np.concatenate(purchases.buyers), minlength=200)
    assert monitored.admitted.sum() == np.minimum(days, SETTINGS.norm_budget).sum()
    assert monitored.active[-1] == np.count_nonzero(days[days > 0] < SETTINGS.norm_budget)
    assert monitored.spent.max() <= SETTINGS.rho
    assert (monitored.buyers - monitored.admitted)[:4].sum() == 0


def test_answers_are_as_close_to_the_admitted_as_the_bound_says(
    monitored: MonitoringResult,
) -> None:
    errors = np.abs(monitored.answers - monitored.admitted)
    # Of 60 answers at 95 % each; 12 misses or more have probability below 1e-4.
    assert np.count_nonzero(errors > monitored.error_bound) < 12
    assert errors.min() > 0


def test_missing_buyers_are_reported(monitored: MonitoringResult) -> None:
    assert monitored.mean_missing == pytest.approx(
        (monitored.buyers.sum() - monitored.admitted.sum()) / DAYS
    )
    assert monitored.mean_error > 0


def test_the_bias_is_named_for_every_year(
    monitored: MonitoringResult, purchases: Purchases
) -> None:
    buyers, admitted = np.full(DAYS, 4), np.full(DAYS, 3)
    admitted[:31] = 4
    of_two_years = replace(
        monitored,
        purchases=replace(purchases, first_day=date(1997, 12, 1)),
        buyers=buyers,
        admitted=admitted,
    )
    assert of_two_years.missing_by_year == {1997: 0.0, 1998: 0.25}


def test_the_worst_case_of_equal_days_needs_the_root_of_their_number_in_noise(
    monitored: MonitoringResult,
) -> None:
    ratio = monitored.noise_stddev_equal_days / monitored.noise_stddev
    assert ratio == pytest.approx((DAYS / SETTINGS.norm_budget) ** 0.5)
    assert (len(monitored.same_noise), len(monitored.equal_days)) == (SETTINGS.norm_budget, DAYS)
    # The mean of a normal without its sign, from so many days; 5 standard errors.
    expected = monitored.noise_stddev_equal_days * (2.0 / np.pi) ** 0.5
    assert abs(monitored.mean_error_equal_days / expected - 1.0) < 5 * 0.76 / DAYS**0.5


@pytest.mark.slow
def test_another_seed_is_other_noise_and_the_same_charges(
    monitored: MonitoringResult, purchases: Purchases, tmp_path: Path
) -> None:
    again, other = (monitor(purchases, tmp_path, seed) for seed in (1, 2))
    np.testing.assert_array_equal(again.answers, monitored.answers)
    np.testing.assert_array_equal(again.equal_days, monitored.equal_days)
    assert not np.any(other.answers == monitored.answers)
    np.testing.assert_array_equal(other.admitted, monitored.admitted)


def test_the_simulated_shop_is_like_the_one_that_its_model_was_fitted_to() -> None:
    """CDNOW: 123.8 buyers a day, 51 % of whom on one day only, 0.8 % on more than 20."""
    shop, again = simulated_purchases(), simulated_purchases()
    assert [day.tolist() for day in shop.buyers[:9]] == [day.tolist() for day in again.buyers[:9]]
    assert (shop.customers, len(shop.buyers)) == (23_570, 546)
    days = np.bincount(np.concatenate(shop.buyers), minlength=shop.customers)
    assert days.sum() / 546 == pytest.approx(123.8, rel=0.1)
    assert np.mean(days == 1) == pytest.approx(0.51, abs=0.03)
    assert np.mean(days > 20) == pytest.approx(0.008, abs=0.003)
    assert days.min() == 1


@pytest.mark.slow
def test_plots_and_table_of_both_demos_are_made(
    monitored: MonitoringResult, tmp_path: Path
) -> None:
    settings = TrainingSettings(
        3.0, 1e-5, population=1_438, worst_case_steps=4, steps=16, learning_rate=10.0
    )
    trainings = [
        train_privately(
            in_memory_run(settings.rho, on_exhaustion="clip")[1],
            load_digits(),
            settings,
            seed=seed,
            progress=lambda done, total: None,
        )
        for seed in (1, 2)
    ]
    plots = plot_training(trainings, tmp_path / "new") + plot_monitoring(
        [monitored, monitored], tmp_path / "new"
    )
    assert len({path.name for path in plots}) == 4
    for path in plots:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert path.stat().st_size > 10_000
    seen = Seen("demo", halts=5, checkpoints=6)
    summaries = [
        over_seeds([summary_of_training(training, seen) for training in trainings]),
        over_seeds([summary_of_monitoring(monitored, seen)]),
    ]
    assert summaries[0]["worst_case_steps"] == 4
    assert summaries[0]["epsilon"] == pytest.approx(3.0)
    accuracy = [training.accuracy for training in trainings]
    assert summaries[0]["accuracy"] == pytest.approx(np.mean(accuracy))
    assert summaries[0]["standard_errors"]["accuracy"] == pytest.approx(
        np.std(accuracy, ddof=1) / 2**0.5
    )
    text = io.StringIO()
    Console(file=text, width=200).print(table_of(summaries))
    for row in ("worst case, same noise", "worst case, same steps", "worst case, same days"):
        assert row in text.getvalue()
    assert "±" in text.getvalue()
    assert table_of(summaries[1:]).row_count < table_of(summaries).row_count


def test_one_seed_has_no_standard_error(monitored: MonitoringResult) -> None:
    assert over_seeds([summary_of_monitoring(monitored, Seen("d", 0, 0))])["standard_errors"] == {}


def test_gains_are_compared_seed_by_seed() -> None:
    accuracies = [(0.8, 0.7), (0.9, 0.81), (0.7, 0.62)]
    summary = over_seeds(
        [{"dataset": "d", "accuracy": a, "gain_over_equal_steps": a - b} for a, b in accuracies]
    )
    assert summary["gain_over_equal_steps"] == pytest.approx(0.09)
    assert summary["standard_errors"]["gain_over_equal_steps"] == pytest.approx(0.01 / 3**0.5)


def test_epsilon_by_worst_case_is_larger_than_the_guarantee(monitored: MonitoringResult) -> None:
    summary = summary_of_monitoring(monitored, Seen("demo", 0, 0))
    worst, guaranteed = summary["epsilon_worst_case_same_steps"], summary["epsilon"]
    assert isinstance(worst, float)
    assert isinstance(guaranteed, float)
    assert worst > 2 * guaranteed


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rich(name: str, *rest: object) -> object:
        if name.split(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    with pytest.raises(DemoError, match=r"rich: `pip install -e '.*\[demo\]'`"), demo_extra():
        import rich.nothing  # noqa: F401


def test_data_that_is_not_there_is_refused_before_the_service_is_asked(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="there is no"):
        run_demo("all", "localhost:1", tmp_path / "nothing", tmp_path)


def test_plots_that_cannot_be_written_are_refused_before_the_service_is_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="--out"):
        run_demo("mnist", "localhost:1", None, tmp_path / "file")


def test_a_demo_whose_data_are_not_in_the_folder_is_refused_at_once(tmp_path: Path) -> None:
    check_demo("all", tmp_path, tmp_path / "out")
    with pytest.raises(DemoError, match="CDNOW_master"):
        check_demo("cdnow", tmp_path, tmp_path / "out")


def test_data_is_found_in_folders_and_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "data.txt"
    file.parent.mkdir()
    file.touch()
    for data in (tmp_path, file.parent, file):
        assert _find(data, "data.txt", required=True) == file
    assert _find(None, "data.txt", required=True) is None
    assert _find(tmp_path, "other.txt", required=False) is None
    for data in (tmp_path, file):
        with pytest.raises(DemoError, match=r"other\.txt"):
            _find(data, "other.txt", required=True)
