"""The SDK refuses what makes no sense before anything is published; the run goes on as it was."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, Mechanism, PureDP
from streams.sdk.dataset_requests import policy_from
from streams.sdk.errors import InvalidRequest
from tests.unit.sdk.partitions import Partitions

NAN, INF = math.nan, math.inf

BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "norm NaN": {"norms": [NAN, 1.0]},
    "norms of words": {"norms": ["one", "two"]},
    "norm above clip_norm": {"clip_norm": 0.5},
    "noise 0": {"noise_stddev": 0.0},
    "noise negative": {"noise_stddev": -1.0},
    "noise NaN": {"noise_stddev": NAN},
    "noise infinite": {"noise_stddev": INF},
    "no noise": {"noise_stddev": None},
    "noise twice": {"mechanism": Gaussian(1.0)},
    "integer user twice": {"users": [7, 7]},
    "string user twice": {"users": ["a", "a"]},
    "user twice among both types": {"users": ["1", 1, "1"], "norms": [1.0] * 3},
    "user empty": {"users": ["", "a"]},
    "user reserved": {"users": ["a", "erased:s:00"]},
    "user not UTF-8": {"users": ["\ud800", "a"]},
    "users a string": {"users": "ab"},
}
LONG = "x" * 10**6
LONG_ARGUMENTS: dict[str, dict[str, Any]] = {
    "user": {"users": [LONG, "a"]},
    "user twice": {"users": [LONG[:256]] * 2},
    "users": {"users": LONG},
    "norms": {"norms": [LONG, 1.0]},
    "noise": {"noise_stddev": LONG},
    "mechanism": {"mechanism": LONG, "noise_stddev": None},
    "digits": {"users": [10**6000, 1]},
}
TOO_MANY = {"users": range(3_000_000), "norms": np.ones(3_000_000)}


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, id=name) for name, change in BAD_ARGUMENTS.items()),
        pytest.param(TOO_MANY, id="more than fits in a request", marks=pytest.mark.slow),
    ],
)
def test_bad_arguments_of_a_charge_publish_nothing(change: dict[str, Any]) -> None:
    service = Partitions()
    service.create(user_ids="mixed")
    run = service.open()
    before = [len(log) for log in service.logs]
    arguments = {"users": [1, 2], "norms": [1.0, 1.0], "noise_stddev": 4.0, **change}
    users, norms = arguments.pop("users"), arguments.pop("norms")
    with pytest.raises(InvalidRequest):
        run.charge(users, norms, **arguments)
    assert [len(log) for log in service.logs] == before
    assert run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0).step == 0
    assert service.spent() == {1: 1 / 32, 2: 1 / 32}


@pytest.mark.parametrize("policy", [{"measure": "gdp"}, {"on_exhaustion": "clip"}], ids=str)
@pytest.mark.parametrize("mechanism", [Laplace(1.0), PureDP()], ids=str)
def test_unsupported_mechanism_publishes_nothing(
    policy: dict[str, Any], mechanism: Mechanism
) -> None:
    service = Partitions()
    service.create(**policy)
    run = service.open()
    before = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        run.charge([1], [0.5], mechanism=mechanism)
    assert [len(log) for log in service.logs] == before
    assert run.charge([1], [0.5], noise_stddev=1.0).step == 0


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "-a", "a" * 129, "a\n", "ü"])
def test_invalid_names_publish_nothing(bad: str) -> None:
    service = Partitions()
    service.create()
    before = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.create(bad)
    with pytest.raises(InvalidRequest):
        service.open(bad)
    with pytest.raises(InvalidRequest):
        service.open(dataset=bad)
    for call in (service.withdraw, service.close_run):
        with pytest.raises(InvalidRequest):
            call(bad)
    assert [len(log) for log in service.logs] == before


@pytest.mark.parametrize("arguments", [{}, {"budget": NAN}], ids=str)
def test_invalid_policy_publishes_nothing(arguments: dict[str, Any]) -> None:
    service = Partitions()
    with pytest.raises(InvalidRequest):
        service.create(**{"budget": None, **arguments})
    assert not any(service.logs)


@pytest.mark.parametrize("change", LONG_ARGUMENTS.values(), ids=LONG_ARGUMENTS)
def test_error_quotes_only_the_beginning_of_a_long_value(change: dict[str, Any]) -> None:
    service = Partitions()
    service.create(user_ids="mixed")
    run = service.open()
    arguments = {"users": ["a", "b"], "norms": [1.0, 1.0], "noise_stddev": 4.0, **change}
    with pytest.raises(InvalidRequest) as refused:
        run.charge(arguments.pop("users"), arguments.pop("norms"), **arguments)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("measure", "epsilon"),
    [*((m, 1e7) for m in ("gdp", "zcdp", "renyi", "pure-dp")), ("pure-dp", 1e-20)],
)
def test_budget_out_of_range_is_reported_as_its_epsilon(measure: Any, epsilon: float) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"epsilon is {epsilon:g} ")):
        policy_from("d", partitions=1, measure=measure, epsilon=epsilon, delta=1e-6)
