"""An owner is told no less than was spent, in epsilon, and nothing where the id is another's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from streams.operations.status import DatasetStatus
from streams.records import Policy, User
from streams.sdk.dataset_requests import policy_from
from streams.web.links import Claims
from streams.web.owner import Owners
from streams.web.user_records import Account, Episode, Point, UserRecords

DELTA = 1e-5


def policy(name: str, **given: Any) -> Policy:
    unset = dict.fromkeys(("budget", "orders", "odometer_step", "user_ids"))
    terms: dict[str, Any] = {"partitions": 2, "measure": "zcdp", "epsilon": 1.0, "delta": DELTA}
    return policy_from(name, **{**unset, **terms, "on_exhaustion": "halt", **given})


def spent(policy: Policy, part: float, at: int | None = None) -> Point:
    """An odometer record of a part of the budget."""
    units = [int(part * number) for number in policy.budget]
    stated = policy.row.stated(np.array(units)).tolist()
    bound = stated if at is None else [stated[at]]
    order = None if at is None else policy.orders[at]
    return Point(int(100 * part), 50.0, tuple(bound), order)


@dataclass
class Reader:
    """A reader of the records of one user, who is also the database."""

    policies: dict[str, Policy]
    accounts: dict[str, Account] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    closed: bool = False
    is_known: bool = True
    is_away: bool = False
    as_of: float | None = 60.0
    halts_since: float | None = 1.0
    done: float = 0.25

    @property
    def records(self) -> Reader:
        return self

    @property
    def datasets(self) -> dict[str, DatasetStatus]:
        known = self.policies.items()
        return {name: DatasetStatus(policy, closed=self.closed) for name, policy in known}

    def of(self, user: User) -> UserRecords | None:
        assert user == "ada"
        return UserRecords(self.accounts, self.episodes) if self.is_known else None


def told(reader: Reader, *datasets: str, **claimed: Any) -> dict[str, Any]:
    claims = Claims.new(user="ada", ends=100, datasets=datasets, **claimed)
    return Owners(reader, DELTA, lambda: 60.0).content(claims)


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "renyi"])
def test_the_epsilons_of_a_spend_and_of_the_budget_are_shown(measure: str) -> None:
    dataset = policy("d", measure=measure, sampled_levels=False)
    at = 3 if measure == "renyi" else None
    account = Account((spent(dataset, 0.25, at), spent(dataset, 1.0, at)))
    (shown,) = told(Reader({"d": dataset}, {"d": account}))["datasets"]
    quarter, whole = shown["points"]
    assert shown["budget"] <= dataset.epsilon(DELTA) * (1 + 1e-9)
    # At any time the whole budget has the epsilon of the budget only at one Rényi order.
    factor = 1.0 if measure == "renyi" else 1.2
    assert shown["budget"] * (1 - 1e-9) <= whole["epsilon"] <= factor * shown["budget"] * (1 + 1e-9)
    assert 0 < quarter["epsilon"] < shown["budget"]
    assert quarter["share"] == pytest.approx(0.25)
    assert (shown["state"], shown["spent"]) == ("nearly", whole)
    assert shown["only_budget"] is False


@pytest.mark.parametrize(
    ("measure", "orders"), [("gdp", None), ("renyi", None), ("renyi", [64.0, 128.0])]
)
def test_only_the_budget_has_an_epsilon_if_levels_are_sampled(
    measure: str, orders: list[float] | None
) -> None:
    dataset = policy("d", measure=measure, orders=orders, sampled_levels=True)
    at = 3 if dataset.per_user_order is True else None
    account = Account((spent(dataset, 0.25, at), spent(dataset, 0.5, at)))
    (shown,) = told(Reader({"d": dataset}, {"d": account}))["datasets"]
    assert shown["only_budget"] is True
    assert 0 < shown["budget"] <= dataset.epsilon(DELTA) * (1 + 1e-9)
    assert [point["epsilon"] for point in shown["points"]] == [None, None]
    assert [point["share"] for point in shown["points"]] == pytest.approx([0.25, 0.5])
    assert shown["spent"] == shown["points"][-1]
    (unspent,) = told(Reader({"d": dataset}), "d")["datasets"]
    assert unspent["spent"]["epsilon"] is None


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "renyi", "pure-dp"])
def test_the_risk_that_is_shown_is_that_of_the_whole_budget(measure: str) -> None:
    dataset = policy("d", measure=measure)
    at = 3 if measure == "renyi" else None
    records = Reader({"d": dataset}, {"d": Account((spent(dataset, 0.25, at),))})
    (shown,) = told(records)["datasets"]
    (unspent,) = told(Reader({"d": dataset}), "d")["datasets"]
    own, anybody = shown["risk"], unspent["risk"]
    assert own["false_positive_rate"] == 0.01 < own["true_positive_rate"] < 0.05
    assert 0.0 < own["advantage"] < 0.5
    assert anybody == dataset.risk()._asdict()
    # A user with an order of its own has that order's budget, which allows no more than the worst.
    assert own["true_positive_rate"] <= anybody["true_positive_rate"]
    assert (own == anybody) == (measure != "renyi")


def test_the_state_of_a_dataset() -> None:
    dataset = policy("d")
    for account, states in (
        # While the dataset is open, after the user was halted permanently, and once it is closed.
        (Account((spent(dataset, 0.5),)), ("open", "spent", "closed")),
        (Account((spent(dataset, 1.0),)), ("nearly", "spent", "closed")),
        (Account(), ("open", "spent", "closed")),
        (Account(is_erased=True), ("erased", "erased", "erased")),
    ):
        for state, exhausted, closed in zip(states, (0, 1, 0), (0, 0, 1), strict=True):
            records = Reader({"d": dataset}, {"d": account}, closed=bool(closed))
            records.episodes = [episode(exhausted=bool(exhausted))]
            (shown,) = told(records, "d")["datasets"]
            assert shown["state"] == state
            assert (shown["halts"] == []) == (state == "erased")


def episode(dataset: str = "d", *, exhausted: bool = False) -> Episode:
    return Episode(dataset, "r", 1, 2, 10.0, 20.0, 2, False, "budget", exhausted, "d")


def test_only_the_datasets_of_the_link_are_shown() -> None:
    policies = {name: policy(name) for name in ("a", "b", "c", "e")}
    known = {name: Account((spent(policies[name], 0.5),)) for name in ("a", "b")}
    records = Reader(policies, known, [episode("c")])
    for datasets, shown in (((), ["a", "b", "c"]), (("b",), ["b"]), (("e", "a"), ["e", "a"])):
        assert [one["dataset"] for one in told(records, *datasets)["datasets"]] == shown


def test_an_id_of_another_user_in_a_dataset_is_shown_nothing() -> None:
    key, other = "0" * 16, "1" * 16
    policies = {
        "ids": policy("ids"),
        "named": policy("named", pseudonyms=key),
        "others": policy("others", pseudonyms=other),
    }
    known = {name: Account((spent(found, 0.5),)) for name, found in policies.items()}
    known["unknown"] = known["ids"]
    for pseudonyms, shown in ((None, "ids"), (key, "named"), (other, "others")):
        seen = told(Reader(policies, known), pseudonyms=pseudonyms)
        assert [one["dataset"] for one in seen["datasets"]] == [shown]
        assert seen["not_shown"] == 3
        assert not any(name in str(seen) for name in known if name != shown)


ONE_ORDER = {"measure": "renyi", "orders": [2.0], "budget": [1.0], "epsilon": None, "delta": None}


@pytest.mark.parametrize("sampled_levels", [True, False])
@pytest.mark.parametrize(
    ("given", "account"),
    [
        (ONE_ORDER, Account((Point(1, 1.0, (0.1, 0.2), None),))),
        ({"measure": "renyi"}, Account((Point(1, 1.0, (0.01,), 7.25),))),
        ({"measure": "zcdp"}, Account((Point(1, 1.0, (1.0,), None),))),
        ({"measure": "zcdp"}, Account(is_doubtful=True)),
    ],
)
def test_an_odometer_of_another_policy_or_writer_is_not_told_as_less(
    sampled_levels: bool, given: dict[str, Any], account: Account
) -> None:
    other = policy("d", **given, sampled_levels=sampled_levels)
    for datasets in ((), ("d",)):
        seen = told(Reader({"d": other}, {"d": account}), *datasets)
        assert (seen["datasets"], seen["not_shown"]) == ([], 1)


def test_nothing_is_told_while_not_everything_is_known() -> None:
    for is_away in (False, True):
        seen = told(Reader({"d": policy("d")}, is_known=False, is_away=is_away))
        assert (seen["state"], seen["is_away"], seen["done"]) == ("reading", is_away, 0.25)
        assert "datasets" not in seen


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "renyi"])
def test_a_user_without_odometer_is_told_the_first_tick(measure: str) -> None:
    dataset = policy("d", measure=measure, sampled_levels=False)
    (shown,) = told(Reader({"d": dataset}), "d")["datasets"]
    assert shown["points"] == []
    assert shown["spent"]["share"] == pytest.approx(1 / 8)
    ladder = range(len(dataset.orders)) if dataset.orders else [None]
    for at in ladder:
        account = Account((spent(dataset, 1 / 8, at),))
        (counted,) = told(Reader({"d": dataset}, {"d": account}), "d")["datasets"]
        assert counted["spent"]["epsilon"] <= shown["spent"]["epsilon"] * (1 + 1e-6)
