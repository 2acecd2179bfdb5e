"""A report is an upper bound from the history of each user; without certainty it is refused."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import (
    Gaussian,
    Laplace,
    Mechanism,
    NormGrid,
    PoissonGaussian,
    PureDP,
    ReportAccountant,
    gdp_risk,
)
from streams.records import User
from streams.replay.explain import AccountEvent, explain
from streams.replay.report import Losses, ReportRefused, report
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service, used

DELTA = 1e-5


def reported(archived: Archived, **options: Any) -> dict[tuple[str, User], dict[str, Any]]:
    """(dataset, user) -> row."""
    return {
        (part.dataset, user): {
            name: getattr(part, name)[row]
            for name in ("steps", "spent", "remaining", "order", "epsilon")
        }
        for part in losses(archived, **options)
        for row, user in enumerate(part.users)
    }


def losses(archived: Archived, **options: Any) -> list[Losses]:
    return list(report(archived, **{"delta": DELTA, **options}).losses)


def mechanism_of(event: AccountEvent) -> Mechanism:
    assert event.scale is not None or event.mechanism == "pure-dp"
    match event.mechanism:
        case "laplace":
            return Laplace(event.scale or 0.0)
        case "pure-dp":
            return PureDP()
        case "poisson-gaussian":
            return PoissonGaussian(event.scale or 0.0, event.sampling_rate or 0.0)
    return Gaussian(event.scale or 0.0)


def epsilon_step_by_step(archived: Archived, dataset: str, user: User, method: Any) -> float:
    """Return the explained steps of a user, one column for each step."""
    steps = [
        (mechanism_of(event), event.granted)
        for event in explain(archived, user, delta=DELTA, dataset=dataset).events
        if event.granted > 0
    ]
    if not steps:
        return 0.0
    accountant = ReportAccountant([m for m, _ in steps], [NormGrid(norm, 1) for _, norm in steps])
    return float(accountant.epsilon(np.ones(len(steps), dtype=np.int64), DELTA, method=method))


@pytest.fixture(scope="module")
def archived() -> Archived:
    return used()


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["d", "inner", "faces"])
def test_epsilon_is_of_the_explained_history(archived: Archived, dataset: str) -> None:
    rows = reported(archived, dataset=dataset, method="renyi")
    assert len(rows) == 40
    for user in range(0, 40, 5):
        exact = epsilon_step_by_step(archived, dataset, user, "renyi")
        assert exact <= rows[dataset, user]["epsilon"] * (1 + 1e-12)
        assert rows[dataset, user]["epsilon"] <= exact * 1.001 + 1e-9


@pytest.mark.slow
def test_steps_of_any_noise_scale_are_counted_together() -> None:
    archived, turnstile = new_service()
    turnstile.create_dataset("e", measure="zcdp", budget=50.0)
    run = turnstile.run("e", "r")
    users = np.arange(4)
    for step in range(12):
        scale = 1.0 + step / 7
        norms = np.linspace(0.0, 1.3, 4)
        if step % 3 == 0:
            run.charge(users, norms, mechanism=Laplace(scale))
        elif step % 3 == 1:
            run.charge(users, norms / 5, mechanism=PureDP())
        else:
            run.charge(users, norms, noise_stddev=scale, clip_norm=2.0)
    rows = reported(archived, method="renyi")
    for user in users.tolist():
        exact = epsilon_step_by_step(archived, "e", user, "renyi")
        assert exact * (1 - 1e-9) <= rows["e", user]["epsilon"] <= exact * 1.2 + 0.02
    assert rows["e", 0]["epsilon"] == 0.0
    assert rows["e", 0]["steps"] == 0


def test_growing_and_closed_rosters_are_counted() -> None:
    archived, turnstile = new_service()
    turnstile.create_dataset("f", measure="renyi", epsilon=6.0, delta=1e-5)
    run = turnstile.run("f", "s")
    roster = run.enrol(np.arange(20), clip_norm=1.0, levels=8)
    for noise in (2.0, 2.0, 3.0):
        roster.charge(noise_stddev=noise, sampling_rate=0.2)
    roster = run.enrol(np.arange(30), clip_norm=1.0, levels=8)
    for rate in (0.2, 1.0, 0.2):
        roster.charge(noise_stddev=3.0, sampling_rate=rate)
    run.close()
    rows = reported(archived, method="renyi")
    assert {rows["f", user]["steps"] for user in range(20)} == {6}
    assert {rows["f", user]["steps"] for user in range(20, 30)} == {3}
    for user in (0, 25):
        exact = epsilon_step_by_step(archived, "f", user, "renyi")
        assert exact <= rows["f", user]["epsilon"] * (1 + 1e-12) <= exact * 1.001


def test_risk_is_of_each_history_and_of_the_budget() -> None:
    archived, turnstile = new_service(1)
    policy = turnstile.create_dataset("f", measure="gdp", budget=1.0)
    run = turnstile.run("f", "r")
    for norm in (1.0, 0.5):
        run.charge([1, 2, 3], [norm, 0.5, 0.0], noise_stddev=4.0)
    for rate in (0.01, 0.1):
        (part,) = losses(archived, false_positive_rate=rate)
        mus = [math.sqrt(1.25) / 4.0, math.sqrt(0.5) / 4.0, 0.0]
        for row, mu in enumerate(mus):
            exact = gdp_risk(mu, rate)
            assert part.advantage[row] == pytest.approx(exact.advantage, rel=1e-4)
            ratio = part.true_positive_rate[row] / exact.true_positive_rate
            assert 1 - 1e-9 <= ratio <= 1.1
        assert part.budget_risk == policy.risk(rate) == pytest.approx(gdp_risk(1.0, rate))


@pytest.mark.parametrize("method", ["tightest", "pld", "renyi", "saddlepoint"])
def test_every_method_is_an_upper_bound(method: str) -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("f", measure="renyi", epsilon=2.0, delta=DELTA)
    roster = turnstile.run("f", "s").enrol([1, 2, 3], clip_norm=1.0, levels=4)
    for _ in range(12):
        roster.charge(noise_stddev=1.0, sampling_rate=0.1)
    (part,) = losses(archived, method=method)
    assert len(set(part.epsilon.tolist())) == 1
    lower = epsilon_step_by_step(archived, "f", 1, "pld") * 0.98
    assert lower <= part.epsilon[0] <= 2.0


# --- where no report would hold ---


def test_report_is_refused_if_the_method_proves_no_bound() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("f", measure="renyi", epsilon=200.0, delta=DELTA)
    roster = turnstile.run("f", "s").enrol([1, 2, 3], clip_norm=1.0, levels=4)
    roster.charge(noise_stddev=0.3, sampling_rate=0.5)
    with pytest.raises(ReportRefused):
        losses(archived, method="saddlepoint")
    assert losses(archived, method="pld")[0].users
    done = command_on(archived, "report", "--method", "saddlepoint")
    assert (done.code, done.out) == (1, "")


def sampled(archived_and_turnstile: Any, move: Any, **stated: Any) -> Archived:
    archived, turnstile = archived_and_turnstile
    turnstile.create_dataset("person", epsilon=9.0, delta=DELTA)
    terms = {"measure": "renyi", "epsilon": 8.0, "delta": DELTA, **stated}
    turnstile.create_dataset("f", assume_independent_timing=True, **terms)
    turnstile.create_dataset("other", measure="zcdp", budget=1.0)
    run = turnstile.run("f", "s")
    roster = run.enrol([1, 2, 3], clip_norm=1.0, levels=4)
    roster.set_norms([0.3, 0.6, 0.9])  # no coin has fallen yet
    roster.charge(noise_stddev=2.0, sampling_rate=0.1)
    move(turnstile, roster)
    roster.charge(noise_stddev=2.0, sampling_rate=0.1)
    return archived


MOVES = {
    "levels that were observed": lambda turnstile, roster: roster.observe([0], [0.1]),
    "norms of those who were drawn": lambda turnstile, roster: turnstile.run("f", "r").charge(
        [2], [0.5], noise_stddev=4.0
    ),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_report_is_refused_if_levels_may_follow_coins(move: Any) -> None:
    archived = sampled(new_service(1), move)
    with pytest.raises(ReportRefused):
        losses(archived)
    assert not losses(archived, dataset="other")[0].users  # nothing of it is in doubt
    done = command_on(archived, "report")
    assert (done.code, done.out) == (1, "")


def charge_other(turnstile: Any, _: Any) -> None:
    turnstile.run("other", "r").charge([2], [0.5], noise_stddev=4.0)


def move_level(_: Any, roster: Any) -> None:
    roster.set_norms([0.2], [0])


@pytest.mark.parametrize(
    ("move", "stated"),
    [(lambda *_: None, {}), (charge_other, {}), (move_level, {"sampled_levels": False})],
    ids=["nothing moved", "a dataset with nothing in common", "denied"],
)
def test_report_is_made_if_levels_cannot_follow_coins(move: Any, stated: Any) -> None:
    archived = sampled(new_service(1), move, **stated)
    rows = reported(archived, dataset="f")
    assert [rows["f", user]["steps"] for user in (1, 2, 3)] == [2, 2, 2]
    assert rows["f", 1]["epsilon"] < rows["f", 2]["epsilon"] < rows["f", 3]["epsilon"]


def test_report_is_refused_if_a_shared_budget_has_coins() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("person", epsilon=9.0, delta=DELTA, measure="renyi")
    turnstile.create_dataset("a", epsilon=8.0, delta=DELTA, measure="renyi", parents="person")
    turnstile.create_dataset("b", measure="zcdp", budget=1.0, parents="person")
    roster = turnstile.run("a", "s").enrol([1, 2], clip_norm=1.0, levels=4)
    roster.charge(noise_stddev=2.0, sampling_rate=0.1)
    turnstile.run("b", "r", take_over=True).charge([2], [0.5], noise_stddev=4.0)
    for name in ("person", "b"):
        with pytest.raises(ReportRefused):
            losses(archived, dataset=name)
    assert (losses(archived, dataset="a")[0].epsilon > 0).all()


def test_report_of_a_trimmed_log_is_refused() -> None:
    archived = used()
    archived.trim("norms", 1, 4)
    with pytest.raises(ReportRefused):
        losses(archived)


# --- files ---


@pytest.fixture
def mixed() -> Archived:
    archived, turnstile = new_service()
    turnstile.create_dataset("m", measure="zcdp", budget=1.0, user_ids="mixed")
    turnstile.run("m", "r").charge([7, "7", 'a,"b"'], [1.0, 0.5, 0.2], noise_stddev=4.0)
    return archived


def test_csv_has_every_user_and_is_private(mixed: Archived, tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    done = command_on(mixed, "report", "--output", str(path), "--json")
    assert done.code == 0
    compared = [{"redis": 3, "snapshot": None}] * 2
    summary = {"dataset": "m", "users": 3, "file": str(path), "compared": compared}
    assert done.lines == [{"type": "report", **summary}]
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as file:
        rows = {(row["id_kind"], row["user"]): row for row in csv.DictReader(file)}
    assert rows.keys() == {("integer", "7"), ("string", "7"), ("string", 'a,"b"')}
    row = rows["integer", "7"]
    assert (row["dataset"], row["steps"], row["delta"], row["order"]) == ("m", "1", "1e-05", "")
    assert float(row["spent"]) + float(row["remaining"]) == pytest.approx(1.0)
    assert [one.name for one in tmp_path.iterdir()] == ["report.csv"]


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "1=1", "a-b"]


def test_csv_ids_are_no_formulas_and_can_be_read_back(tmp_path: Path) -> None:
    archived, turnstile = new_service()
    turnstile.create_dataset("m", measure="zcdp", budget=1.0, user_ids="mixed")
    turnstile.run("m", "r").charge([-7, *FORMULAS], [0.5] * 10, noise_stddev=4.0)
    path = tmp_path / "report.csv"
    command_on(archived, "report", "--output", str(path))
    with path.open(newline="") as file:
        rows = {(row["id_kind"], row["user"]) for row in csv.DictReader(file)}
    assert ("integer", "-7") in rows
    strings = {user for kind, user in rows if kind == "string"}
    assert not [user for user in strings if user[0] in "=+-@\t\r"]
    assert {user.removeprefix("'") for user in strings} == set(FORMULAS)


def test_parquet_equals_csv(mixed: Archived, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "report.parquet"
    assert command_on(mixed, "report", "--output", str(path)).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    lines = command_on(mixed, "report", "--json").lines
    found = parquet.read_table(path).to_pylist()
    more = {"type": "loss", "compared": {"redis": 3, "snapshot": None}}
    assert [{**row, **more} for row in found] == [
        {**line, "user": str(line["user"])} for line in lines
    ]
    assert len(found) == 3


@pytest.mark.parametrize(
    "name",
    ["report.txt", "gone/report.csv"],
)
def test_unwritable_file_is_rejected_before_the_replay(
    mixed: Archived, tmp_path: Path, name: str
) -> None:
    done = command_on(mixed, "report", "--output", str(tmp_path / name))
    assert done.code == 2, done.said
