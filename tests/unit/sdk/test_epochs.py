"""Series of epochs: names by the events' own time, datasets, and releases over several epochs."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import (
    BudgetHeld,
    Epochs,
    InvalidRequest,
    PolicyChanged,
    RunIsClosed,
    StepContentChanged,
    Turnstile,
)
from tests.readme import blocks_of_epochs

WEEKS = ["2026-W12", "2026-W13", "2026-W14"]
PARTS = {week: ([1, 2], [1.0, 0.5]) for week in WEEKS}
TERMS: dict[str, Any] = {"measure": "zcdp", "budget": 0.5}


def weeks(turnstile: Turnstile, **terms: Any) -> Epochs:
    return Epochs(turnstile, "ads", **{**TERMS, **terms})


def test_events_belong_to_the_week_in_which_they_happened() -> None:
    times = np.array([["2025-12-28", "2025-12-29"], ["2026-01-04T23:59", "2026-01-05"]])
    found = weeks(Turnstile.in_memory()).of(times.astype("datetime64[s]"))
    assert found.tolist() == [["2025-W52", "2026-W01"], ["2026-W01", "2026-W02"]]


@given(st.dates(date(1, 1, 1), date(9998, 12, 31)), st.sampled_from(["day", "week", "month"]))
def test_an_epoch_has_the_days_between_its_neighbours_and_a_valid_name(
    day: date, period: Any
) -> None:
    epochs = Epochs(Turnstile.in_memory(), "ads", period=period)
    before, here = epochs.of([day, day + timedelta(days=1)]).tolist()
    starts = {
        "day": True,
        "week": day.isoweekday() == 7,
        "month": (day + timedelta(days=1)).day == 1,
    }
    assert (before != here) == starts[period]
    assert before <= here
    assert epochs.dataset(here) == f"ads.{here}"


@pytest.mark.parametrize(
    "times",
    [["NaT"], ["yesterday"], [object()], [1.5], [1774000000], [b"2026-03-25"], ["12026-03-25"]],
)
def test_times_that_are_none_are_rejected(times: list[Any]) -> None:
    with pytest.raises(InvalidRequest):
        weeks(Turnstile.in_memory()).of(times)


@pytest.mark.parametrize("period", ["7 days", "rolling week", "refill", None, timedelta(7)])
def test_sliding_and_refilling_budgets_are_rejected(period: Any) -> None:
    with pytest.raises(InvalidRequest):
        Epochs(Turnstile.in_memory(), "ads", period=period, **TERMS)


@pytest.mark.parametrize("epoch", ["2026-13", "2026-W1", "2026-W13 ", "", "W13", "../2026-W13"])
def test_names_of_other_periods_are_rejected(epoch: str) -> None:
    with pytest.raises(InvalidRequest):
        weeks(Turnstile.in_memory()).create(epoch)


def test_the_dataset_of_an_epoch_is_created_once_under_the_terms_of_the_series() -> None:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("person", measure="zcdp", budget=4.0)
    first = weeks(turnstile, parents="person").create("2026-W13")
    assert (first.dataset, first.parents, first.measure) == ("ads.2026-W13", ["person"], "zcdp")
    assert weeks(turnstile, parents="person").create("2026-W13") == first
    for other in ({}, {"parents": "person", "budget": 1.0}):
        with pytest.raises(PolicyChanged):
            weeks(turnstile, **other).create("2026-W13")


@pytest.mark.parametrize("nested", [False, True])
def test_a_release_charges_each_epoch_for_its_own_events(nested: bool) -> None:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("person", measure="zcdp", budget=1.25)
    terms = {"parents": "person"} if nested else {}
    series = weeks(turnstile, **terms)
    decisions = series.charge("first", PARTS, noise_stddev=1.0)
    assert [*decisions] == WEEKS
    admitted = [decisions[week].admitted.tolist() for week in WEEKS]
    # User 1 pays 0.5 in each epoch, and 1.5 is more than a lifetime allows.
    assert admitted == [[True, True], [True, True], [not nested, True]]
    series.close("first", WEEKS)
    again = weeks(turnstile, **terms).charge("second", PARTS, noise_stddev=1.0)
    assert [decision.admitted[0] for decision in again.values()] == [False] * 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_release_that_is_asked_for_again_gets_the_same_decisions(nested: bool) -> None:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("person", measure="zcdp", budget=1.25)
    series = weeks(turnstile, **({"parents": "person"} if nested else {}))
    charged = dict(list(PARTS.items())[:2])
    series.charge("first", charged, noise_stddev=1.0)  # then the program ended
    first = series.charge("first", PARTS, noise_stddev=1.0)
    second = series.charge("first", PARTS, noise_stddev=1.0)
    assert [d.admitted.tolist() for d in first.values()] == [
        d.admitted.tolist() for d in second.values()
    ]
    assert len({decision.admitted.tobytes() for decision in first.values()}) == 1 + nested
    with pytest.raises(StepContentChanged):
        series.charge("first", PARTS, noise_stddev=2.0)
    series.close("first", WEEKS)
    with pytest.raises(RunIsClosed):
        series.charge("first", PARTS, noise_stddev=1.0)


@pytest.mark.parametrize("nested", [False, True])
def test_two_releases_do_not_charge_a_budget_in_turns(nested: bool) -> None:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("person", measure="zcdp", budget=4.0)
    series = weeks(turnstile, **({"parents": "person"} if nested else {}))
    series.charge("first", PARTS, noise_stddev=4.0)
    with pytest.raises(BudgetHeld) as refused:
        series.charge("second", PARTS, noise_stddev=4.0)
    assert refused.value.holder == (f"ads.{WEEKS[-1 if nested else 0]}", "first")
    series.close("first", WEEKS)
    assert [*series.charge("second", PARTS, noise_stddev=4.0)] == WEEKS


def test_epochs_are_charged_side_by_side() -> None:
    series = weeks(Turnstile.in_memory())
    runs = [series.run(week, "r") for week in WEEKS]
    assert [run.charge([1], [1.0], noise_stddev=1.0).admitted.all() for run in runs] == [True] * 3


def test_the_example_of_the_documentation_charges_two_epochs() -> None:
    (example,) = blocks_of_epochs()
    with Turnstile.in_memory() as turnstile:
        names: dict[str, Any] = {"t": turnstile}
        exec(example, names)
    assert names["epoch"].tolist() == ["2026-W12", "2026-W13", "2026-W13"]
    parts = {week: users.tolist() for week, (users, _) in names["parts"].items()}
    assert parts == {"2026-W12": [7], "2026-W13": [7, 8]}
    assert [*names["decisions"]] == [*parts]
    assert all(decision.admitted.all() for decision in names["decisions"].values())


def test_times_of_python_are_read() -> None:
    series = weeks(Turnstile.in_memory())
    assert series.of([datetime(2026, 3, 25, 23)]).tolist() == ["2026-W13"]
    assert series.of("2026-03-25").tolist() == "2026-W13"
