"""The SDK refuses what makes no sense before anything is published; the run goes on as it was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, Mechanism, PureDP
from streams.sdk.errors import InvalidRequest, PolicyChanged
from tests.unit.sdk.partitions import Partitions

NAN, INF = math.nan, math.inf

BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "norm NaN": {"norms": [NAN, 1.0]},
    "norm infinite": {"norms": [1.0, INF]},
    "norm negative": {"norms": [1.0, -1.0]},
    "norms of words": {"norms": ["one", "two"]},
    "norms a matrix": {"norms": [[1.0, 1.0]]},
    "norms too few": {"norms": [1.0]},
    "norm above clip_norm": {"clip_norm": 0.5},
    "clip_norm NaN": {"clip_norm": NAN},
    "clip_norm negative": {"clip_norm": -1.0},
    "noise 0": {"noise_stddev": 0.0},
    "noise negative": {"noise_stddev": -1.0},
    "noise NaN": {"noise_stddev": NAN},
    "noise infinite": {"noise_stddev": INF},
    "no noise": {"noise_stddev": None},
    "noise twice": {"mechanism": Gaussian(1.0)},
    "integer user twice": {"users": [7, 7]},
    "array user twice": {"users": np.array([7, 7])},
    "string user twice": {"users": ["a", "a"]},
    "user twice among both types": {"users": ["1", 1, "1"], "norms": [1.0] * 3},
    "user empty": {"users": ["", "a"]},
    "user too long": {"users": ["x" * 257, "a"]},
    "user not UTF-8": {"users": ["\ud800", "a"]},
    "user a float": {"users": [1.0, 2]},
    "user a bool": {"users": [True, 2]},
    "user None": {"users": [None, 2]},
    "user above 64 bits": {"users": [2**63, 2]},
    "array user above 64 bits": {"users": np.array([2**63, 2], dtype=np.uint64)},
    "users a string": {"users": "ab"},
    "users a matrix": {"users": np.array([[1, 2]])},
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
def test_a_mechanism_that_the_policy_cannot_charge_is_refused(
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


BAD_DATASETS: dict[str, dict[str, Any]] = {
    "no budget": {},
    "budget and epsilon": {"budget": 1.0, "epsilon": 1.0, "delta": 1e-6},
    "epsilon without delta": {"epsilon": 1.0},
    "delta 0": {"epsilon": 1.0, "delta": 0.0},
    "budget 0": {"budget": 0.0},
    "budget negative": {"budget": -1.0},
    "budget NaN": {"budget": NAN},
    "budget infinite": {"budget": INF},
    "budget below one unit": {"budget": 2.0**-45},
    "budget above the range": {"budget": 1e9},
    "odometer_step 0": {"budget": 1.0, "odometer_step": 0.0},
    "renyi without orders": {"measure": "renyi", "budget": [1.0]},
    "renyi with one budget too few": {
        "measure": "renyi",
        "budget": [1.0],
        "orders": [2.0, 4.0],
    },
    "order 1": {"measure": "renyi", "budget": [1.0], "orders": [1.0]},
    "order NaN": {"measure": "renyi", "budget": [1.0], "orders": [NAN]},
    "unknown measure": {"measure": "vibes", "budget": 1.0},
    "unknown on_exhaustion": {"budget": 1.0, "on_exhaustion": "beg"},
}


@pytest.mark.parametrize("arguments", BAD_DATASETS.values(), ids=BAD_DATASETS)
def test_a_policy_that_makes_no_sense_is_refused_and_publishes_nothing(
    arguments: dict[str, Any],
) -> None:
    service = Partitions()
    with pytest.raises(InvalidRequest):
        service.create(**{"budget": None, **arguments})
    assert not any(service.logs)


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "-a", "a" * 129, "a\n", "ü"])
def test_names_that_the_wire_does_not_allow_are_refused(bad: str) -> None:
    service = Partitions()
    service.create()
    before = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.create(bad)
    with pytest.raises(InvalidRequest):
        service.open(bad)
    with pytest.raises(InvalidRequest):
        service.open(dataset=bad)
    assert [len(log) for log in service.logs] == before


OTHER_POLICIES: list[dict[str, Any]] = [
    {"budget": 2.0},
    {"odometer_step": 0.5},
    {"measure": "gdp"},
    {"measure": "approx-dp"},
    {"on_exhaustion": "clip"},
    {"user_ids": "mixed"},
    {"budget": [1.0], "orders": [2.0], "measure": "renyi"},
]


@pytest.mark.parametrize("other", OTHER_POLICIES, ids=str)
def test_a_policy_never_changes_after_the_first_charge(other: dict[str, Any]) -> None:
    service = Partitions()
    service.create()
    run = service.open()
    run.charge([1, 2], [1.0, 0.5], noise_stddev=4.0)
    before = service.spent()
    with pytest.raises(PolicyChanged):
        service.create(**other)
    assert service.spent() == before
    service.create()  # the same one is no change
    assert run.charge([1, 2], [1.0, 0.5], noise_stddev=4.0).step == 1
