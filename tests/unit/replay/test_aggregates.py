"""Statistics of all users are charged to each of them, and to no other user."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from accounting import InvalidInput
from streams.replay.aggregates import NoAggregate, aggregate, shares_of
from streams.sdk.errors import InvalidRequest
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service

USERS = np.arange(400)
SPENT = {
    "zcdp": {"measure": "zcdp", "budget": 1.0},
    "gdp": {"measure": "gdp", "budget": 1.5},
    "per-user orders": {"measure": "renyi", "epsilon": 6.0, "delta": 1e-5},
    "orders": {"measure": "renyi", "budget": [2.0, 6.0], "orders": [2.0, 6.0]},
}


def served(**policy: Any) -> tuple[Archived, Any]:
    archived, client = new_service(3)
    client.create_dataset("d", **policy)
    run = client.run("d", "r")
    for _ in range(3):
        run.charge(USERS, np.linspace(0.0, 2.0, len(USERS)), noise_stddev=4.0)
    run.close()
    return archived, client


def spent(archived: Archived) -> dict[int, Any]:
    return {
        int(user): np.atleast_1d(units)
        for ledger in archived.ledgers
        for user, units in zip(*ledger.state.datasets["d"].spent_units(), strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("policy", SPENT.values(), ids=SPENT)
def test_all_users_pay_and_the_release_is_accurate(policy: Any) -> None:
    archived, client = served(**policy)
    before, shares = spent(archived), shares_of(archived, "d")
    assert sorted(shares.users) == USERS.tolist()
    assert 0.0 == shares.spent.min() < shares.spent.max() < 1.0
    released = aggregate(
        client.run("d", "aggregates"),
        shares,
        rho=0.05,
        quantiles=[0.25, 0.75],
        generator=np.random.default_rng(1),
    )
    after = spent(archived)
    assert all((after[user] > before[user]).all() for user in before)
    mean, quantiles = released.mean, released.quantiles
    assert abs(mean.estimate - shares.spent.mean()) < 5 * mean.standard_error
    assert abs(mean.count - len(USERS)) < 5 * mean.count_standard_error
    true = np.quantile(shares.spent, [0.25, 0.75])
    assert (abs(quantiles.estimates - true) < 5 * quantiles.standard_errors + 0.01).all()
    assert 0.049 < mean.cost.rho + quantiles.cost.rho <= 0.05


def test_interrupted_release_is_charged_and_can_be_repeated() -> None:
    archived, client = served(budget=1.0)
    run = client.run("d", "aggregates")
    run.charge(USERS, np.ones(len(USERS)), noise_stddev=20.0)
    run = client.run("d", "aggregates", released=-1)
    assert run.interrupted
    before = spent(archived)
    aggregate(run, shares_of(archived, "d"), rho=0.05, quantiles=[0.5])
    assert run.step == 3
    assert all((units > before[user]).all() for user, units in spent(archived).items())


@pytest.mark.parametrize(("measure", "rho_per_unit"), [("zcdp", 2**-44), ("gdp", 2**-45)])
def test_release_costs_at_most_rho(measure: str, rho_per_unit: float) -> None:
    archived, client = served(measure=measure, budget=1.0)
    before, shares = spent(archived), shares_of(archived, "d")
    aggregate(client.run("d", "a"), shares, rho=0.02, quantiles=[0.5])
    after = spent(archived)
    charged = np.array([(after[u] - before[u])[0] for u in before]) * rho_per_unit
    assert 0.0 < charged.min() < charged.max() <= 0.02 * (1 + 1e-9)


def test_users_without_budget_are_left_out_and_erased_ones_not_charged() -> None:
    archived, client = new_service(2)
    client.create_dataset("d", measure="zcdp", budget=0.1)
    run = client.run("d", "r")
    norms = np.where(USERS < 200, 1.0, 0.1)
    while run.charge(USERS, norms, noise_stddev=4.0).admitted[0]:
        pass
    run.close()
    client.erase(399)
    shares = shares_of(archived, "d")
    assert len(shares.users) == 399
    released = aggregate(
        client.run("d", "a"),
        shares,
        rho=0.02,
        quantiles=[0.5],
        generator=np.random.default_rng(2),
    )
    assert abs(released.mean.count - 199) < 5 * released.mean.count_standard_error
    assert released.mean.estimate < 0.2


def test_clipped_users_are_left_out() -> None:
    archived, client = new_service(2)
    client.create_dataset("d", measure="zcdp", budget=0.1, on_exhaustion="clip")
    run = client.run("d", "r")
    run.charge(USERS, np.where(USERS < 200, 1.7, 0.1), noise_stddev=4.0)
    run.close()
    released = aggregate(
        client.run("d", "a"),
        shares_of(archived, "d"),
        rho=0.06,
        quantiles=[0.5],
        generator=np.random.default_rng(3),
    )
    assert abs(released.mean.count - 200) < 5 * released.mean.count_standard_error


def test_unusable_release_charges_nothing() -> None:
    archived, client = served(budget=1.0)
    before, shares = spent(archived), shares_of(archived, "d")
    run = client.run("d", "a")
    for rho, quantiles in ((0.0, [0.5]), (0.1, []), (0.1, [1.0]), (float("nan"), [0.5])):
        with pytest.raises(InvalidInput):
            aggregate(run, shares, rho=rho, quantiles=quantiles)
    assert all((units == before[user]).all() for user, units in spent(archived).items())
    with pytest.raises(NoAggregate):
        shares_of(archived, "nobody")
    client.create_dataset("pure", measure="pure-dp", budget=1.0)
    pure = client.run("pure", "a")
    with pytest.raises(InvalidRequest):
        aggregate(pure, shares, rho=0.1, quantiles=[0.5])


@pytest.mark.slow
def test_command_reports_release_and_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archived, client = served(budget=1.0)
    monkeypatch.setattr("streams.cli.replay.Turnstile", lambda config: nullcontext(client))
    asked = ("report", "--dataset", "d", "--aggregate", "--rho", "0.05")
    done = command_on(archived, *asked, "--json")
    assert done.code == 0, done
    (line,) = done.lines
    assert line["quantiles"] == [0.1, 0.5, 0.9]
    assert 0.049 < line["charged_rho_at_most"] <= 0.05
    assert command_on(archived, *asked, "--quantiles", "0.5").code == 0
    for wrong in (["--aggregate"], ["--aggregate", "--dataset", "d"], ["--rho", "1"]):
        assert command_on(archived, "report", *wrong).code == 2
    assert command_on(archived, "report", *asked[1:2], "nobody", *asked[3:]).code == 2
