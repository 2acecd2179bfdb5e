"""Plans admit whom the ledger admits, and say how far corrected answers are from the truth."""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import noise_for_norm_budget
from bench.corrections import policy_of
from bench.years import YEAR, daily
from streams import Turnstile
from streams.answerer.event_file import EventFile
from streams.answerer.event_input import EventInput
from streams.answerer.pricing import costs_of
from streams.answerer.query_file import parse_queries
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.query_plans import (
    QueryPlan,
    baseline,
    plan_of,
    population_of,
)
from streams.answerer.windows import Calendar
from streams.records import Policy
from tests.unit.answerer.asking import answered

POLICY: Policy = policy_of(1.0, 1e-6)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
CONTENT: dict[str, Any] = {
    "dataset": "d",
    "run": "r",
    "input": {
        "user": "user",
        "users": "integer",
        "time": "time",
        "start": FIRST,
        "end": FIRST + timedelta(days=60),
        "clock": "events",
    },
    "query": [
        {
            "name": "buyers",
            "kind": "distinct",
            "window": "1d",
            "active_windows": 8,
            "correct": True,
            "share": 0.6,
        },
        {
            "name": "mean",
            "kind": "mean",
            "column": "amount",
            "lower": 0,
            "upper": 80,
            "each": 1,
            "window": "2d",
            "noise": 40.0,
        },
    ],
}


def content_of(days: int) -> dict[str, Any]:
    """Return the file of queries up to another end."""
    ends = CONTENT["input"] | {"end": FIRST + timedelta(days=days)}
    return CONTENT | {"input": ends}


def events_file(path: Path, users: int = 100, days: int = 60) -> Path:
    """Write events of very different users: some buy every day."""
    random = np.random.default_rng(5)
    with path.open("w", newline="", encoding="ascii") as lines:
        out = csv.writer(lines)
        out.writerow(["user", "time", "amount", "shop"])
        for day in range(days):
            for user in range(users):
                for _ in range(random.poisson(min(1.5, 9.0 / (user + 1)))):
                    moment = FIRST + timedelta(days=day, hours=int(random.integers(24)))
                    amount = random.lognormal(3.0, 0.8)
                    out.writerow([user, moment.isoformat(), f"{amount:.2f}", "abc"[user % 3]])
    return path


def planned(
    path: Path, content: dict[str, Any], query: str | None = None, policy: Policy = POLICY
) -> QueryPlan:
    """Return the plan of a query for the events of a file."""
    events = EventFile(path, parse_queries(content).for_a_file()).events
    return plan_of(content, query, policy, events)


@pytest.mark.slow
def test_plan_has_the_errors_of_every_setting(tmp_path: Path) -> None:
    plan = planned(events_file(tmp_path / "events.csv"), CONTENT, "buyers")
    assert (plan.query, plan.unplanned) == ("buyers", ["mean"])
    modes = [(one.active_windows, one.block_windows > 0) for one in plan.settings]
    assert modes == sorted(set(modes))
    assert {(8.0, False), (8.0, True)} <= set(modes)
    active = sorted({active for active, _ in modes})
    assert active[-1] == 60.0
    assert plan.recommended in plan.settings
    holding = [one for one in plan.settings if not one.failing(0.9)]
    assert plan.recommended.rmse == min(setting.rmse for setting in holding)
    assert (plan.worst_case.halted_users, plan.worst_case.bias) == (0, 0.0)
    baselines = (plan.worst_case, plan.contribution_bounding, plan.whole_vector)
    for setting in (*plan.settings, *baselines):
        # One day of March is no month.
        assert [month.month for month in setting.months] == ["2026-01", "2026-02"]
        assert setting.rmse >= abs(setting.bias)
    noises = [setting.noise_stddev for setting in plan.settings]
    assert min(noises) == noises[0]
    (own,) = [one for one in plan.settings if one.active_windows == 8.0 and one.block_windows]
    noise = costs_of(parse_queries(CONTENT), [POLICY]).noises[0]
    assert own.noise_stddev == pytest.approx(noise)
    assert own.halted_users > plan.settings[-1].halted_users
    share = 0.6 * (POLICY.row.gaussian_rho(POLICY.budget[0]) or 0.0)
    assert plan.worst_case.noise_stddev == pytest.approx(noise_for_norm_budget(60.0, share))


def test_the_whole_vector_of_a_user_is_scaled_to_a_norm(tmp_path: Path) -> None:
    """One user buys on 9 days, one on 1; a norm of the root of 4 is released once."""
    path, days = tmp_path / "e.csv", [*range(9), 0]
    rows = [
        f"{number // 9},{(FIRST + timedelta(days=day)).date()},1,a"
        for number, day in enumerate(days)
    ]
    path.write_text("\n".join(["user,time,amount,shop", *rows]))
    buyers = {"name": "buyers", "kind": "distinct", "window": "1d", "active_windows": 4}
    query_file = parse_queries(content_of(9) | {"query": [buyers]})
    people = population_of(query_file, EventFile(path, query_file).events)
    whole = baseline(query_file, 0, 0.5, people, 4, is_whole=True)
    first = baseline(query_file, 0, 0.5, people, 4, is_whole=False)
    assert whole.noise_stddev == first.noise_stddev == pytest.approx(2.0)
    assert (whole.bias, first.bias) == (pytest.approx(-1 / 3), pytest.approx(-5 / 9))
    assert whole.halted_users == first.halted_users == 1


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_recommended_setting_holds_in_every_month(epsilon: float, tmp_path: Path) -> None:
    buyers = {"name": "buyers", "kind": "distinct", "window": "1d", "active_windows": 8}
    content = CONTENT | {"query": [buyers]}
    plan = planned(events_file(tmp_path / "e.csv"), content, policy=policy_of(epsilon, 1e-6))
    assert not plan.recommended.failing(plan.least_coverage)
    least = min(plan.settings, key=lambda one: one.rmse)
    if least != plan.recommended:
        assert least.failing(plan.least_coverage)
    assert {one.block_windows > 0 for one in plan.settings} == {False, True}


RATIO = {
    "name": "clicks",
    "kind": "ratio",
    "window": "2d",
    "numerator": {"where": {"shop": "b"}, "each": 1},
    "denominator": {"each": 2},
}


def ratio_content(active_windows: int, days: int = 60) -> dict[str, Any]:
    return content_of(days) | {"query": [RATIO | {"active_windows": active_windows}]}


def bounded_ratios(path: Path, days: int) -> list[float]:
    """Return the ratio of the bounded sums of all users, by window."""
    counts: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    with path.open(encoding="ascii") as lines:
        for row in csv.DictReader(lines):
            window = (datetime.fromisoformat(row["time"]) - FIRST).days // 2
            counts[window, row["user"]][0] += row["shop"] == "b"
            counts[window, row["user"]][1] += 1
    sums = np.zeros((days // 2, 2))
    for (window, _), found in counts.items():
        sums[window] += np.minimum(found, [1, 2])
    return list(sums[:, 0] / sums[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize("active", [6, 30])
def test_plan_of_a_ratio_has_the_errors_of_its_answers(active: int, tmp_path: Path) -> None:
    path = events_file(tmp_path / "events.csv", users=300)  # fewer leave ratios without ends
    content, truth = ratio_content(active), bounded_ratios(path, 60)
    query_file = parse_queries(content).for_a_file()
    file, off, holds = EventFile(path, query_file), [], []
    for seed in range(12):
        with Turnstile.in_memory() as turnstile:
            policy = turnstile.create_dataset("d", user_ids="integer", epsilon=6.0, delta=1e-6)
            records = answered(query_file, turnstile, EventInput([file]), seed=seed)
        for answer, true in zip(records, truth, strict=True):
            off.append(np.subtract(answer.value, true))
            holds.append(answer.lower <= true <= answer.upper)
    plan = plan_of(content, None, policy, file.events)
    (own,) = [setting for setting in plan.settings if setting.active_windows == active]
    assert own.rmse == pytest.approx(np.sqrt(np.mean(np.square(off))), rel=0.2)
    assert own.bias == pytest.approx(np.mean(off), abs=4.0 * np.std(off) / np.sqrt(len(off)))
    assert own.coverage == pytest.approx(np.mean(holds), abs=0.06)
    assert (own.halted_users > 0) == (active < 30)
    assert plan.worst_case.bias == 0.0


@pytest.mark.parametrize("end", [20, 60, 90])
def test_a_plan_is_about_the_windows_up_to_the_public_end(end: int, tmp_path: Path) -> None:
    path = events_file(tmp_path / "events.csv", users=20)
    with path.open("a") as file:
        file.write("5,9999-12-31T00:00:00Z,3.0,a\n")
    query_file = parse_queries(content_of(end))
    people = population_of(query_file, EventFile(path, query_file).events)
    assert [people.windows(number) for number in range(2)] == [end, end // 2]


def test_windows_of_a_plan_without_a_ratio_do_not_count(tmp_path: Path) -> None:
    path = events_file(tmp_path / "events.csv", users=1, days=10)
    plan = planned(path, ratio_content(2, 10), policy=policy_of(0.1, 1e-6))
    for setting in (*plan.settings, plan.worst_case, plan.contribution_bounding):
        assert setting.unbounded > 0.5
        assert setting.coverage > 0.9


def test_plan_names_the_queries_that_it_cannot_be_about(tmp_path: Path) -> None:
    buyers, *_ = CONTENT["query"]
    rest = {"window": "1d", "by": "shop", "active_windows": 20, "groups": 1}
    keys = {"name": "keys", "kind": "count", "key_bytes": 8, "each": 1, **rest}
    top = {"name": "top", "kind": "top", "labels": ["a", "b"], "k": 1, "each": 1, **rest}
    noise = {**buyers, "name": "noise", "noise": 9.0}
    del noise["active_windows"], noise["share"], noise["correct"]
    content = content_of(4) | {"query": [keys, top, noise, RATIO | {"active_windows": 9}, buyers]}
    plan = planned(events_file(tmp_path / "e.csv", 30, 4), content)
    assert (plan.query, plan.unplanned) == ("clicks", ["keys", "top", "noise"])


@pytest.mark.slow
def test_plan_is_about_the_dataset_without_its_parents(tmp_path: Path) -> None:
    path = events_file(tmp_path / "e.csv", 30, 9)
    alone: dict[str, Any] = {"measure": "zcdp", "budget": 0.3, "user_ids": "string"}
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("all", measure="zcdp", budget=0.1, user_ids="string")
        policies = (
            turnstile.create_dataset("nested", parents="all", **alone),
            turnstile.create_dataset("alone", **alone),
        )
    nested, found = (planned(path, content_of(9), "buyers", policy) for policy in policies)
    assert nested == found


@pytest.mark.parametrize("query", ["mean", "other"])
def test_queries_without_active_windows_are_not_planned(query: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableQueries):
        planned(events_file(tmp_path / "e.csv", 3, 9), CONTENT, query)


@pytest.mark.parametrize("choice", [29.5, 30, 60, 100, 125, 150, 183])
def test_blocks_divide_the_windows_evenly(choice: float) -> None:
    query_file = daily("distinct", choice)
    (blocks,), calendar = query_file.blocks, Calendar(query_file)
    assert calendar.block_end(0, blocks.number - 1) == calendar.window(0, YEAR - 1).end
    assert blocks.size <= choice
    assert blocks.number == -(-YEAR // choice)
    assert 0 <= blocks.size * blocks.number - YEAR < blocks.number
    assert blocks.windows == YEAR


AMOUNTS = {1: [5.0, 10.0], 2: [40.0], 3: [20.0, 20.0, 20.0], 4: [-40.0]}
"""The amounts of each user on one day."""
SCALES: list[tuple[dict[str, Any], float, int, float]] = [
    ({"kind": "sum", "column": "amount", "each": 20}, 15 + 20 + 20 - 20, 3, 80 / 155),
    ({"kind": "sum", "column": "amount", "each": 60}, 15 + 40 + 60 - 40, 0, 0.0),
    ({"kind": "sum", "column": "amount", "clip": 40}, 15 + 40 + 40 - 40, 1, 20 / 155),
    ({"kind": "count", "each": 2}, 2 + 1 + 2 + 1, 1, 1 / 7),
    ({"kind": "distinct"}, 4, 0, 0.0),
    ({"kind": "mean", "column": "amount", "each": 1, "lower": 0, "upper": 40}, 16.9, 2, 3 / 7),
    ({"kind": "quantiles", "column": "amount", "each": 2, "lower": 0, "upper": 64,
      "quantiles": [0.5]}, 10.0, 1, 1 / 7),
    ({"kind": "ratio", "numerator": {"column": "amount", "each": 40},
      "denominator": {"of": "distinct"}}, 55 / 4, 1, 0.5 / (155 / 40 + 4)),
]  # fmt: skip


@pytest.mark.parametrize(("query", "answer", "users", "share"), SCALES)
def test_plan_has_the_mean_answer_and_what_bounds_cut(
    query: dict[str, Any], answer: float, users: int, share: float, tmp_path: Path
) -> None:
    path = tmp_path / "e.csv"
    rows = [f"{user},2026-01-01,{amount}" for user, list_ in AMOUNTS.items() for amount in list_]
    path.write_text("\n".join(["user,time,amount", *rows]))
    asked = {"name": "q", "window": "1d", "active_windows": 1, **query}
    content = content_of(1) | {"query": [asked]}
    scale = planned(path, content).scale
    assert scale.labels == (["0.5"] if query["kind"] == "quantiles" else None)
    assert scale.mean_answers == pytest.approx([answer], rel=0.01)
    assert (scale.windows, scale.filled_windows) == (1, 1)
    assert (scale.users, scale.cut_users) == (4, users)
    assert scale.cut_share == pytest.approx(share)


def test_plan_has_the_mean_answer_of_each_label(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("user,time,shop\n1,2026-01-01,a\n1,2026-01-01,b\n2,2026-01-01,b\n")
    asked = CONTENT["query"][0] | {"by": "shop", "labels": ["a", "b", "c"], "groups": 1}
    content = content_of(2) | {"query": [asked]}
    scale = planned(path, content, "buyers").scale
    assert (scale.labels, scale.mean_answers) == (["a", "b", "c"], [0.5, 0.5, 0.0])
    assert (scale.windows, scale.filled_windows) == (2, 1)
    assert (scale.users, scale.cut_users, scale.cut_share) == (2, 1, pytest.approx(1 / 3))
