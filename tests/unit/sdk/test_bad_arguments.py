"""The SDK refuses invalid arguments before anything is published; the run continues unchanged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian
from streams.sdk.errors import InvalidRequest
from tests.unit.sdk.partitions import Partitions

LONG = "x" * 10**6
BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "norms of long words": {"norms": [LONG, 1.0]},
    "noise 0": {"noise_stddev": 0.0},
    "noise a long word": {"noise_stddev": LONG},
    "no noise": {"noise_stddev": None},
    "noise twice": {"mechanism": Gaussian(1.0)},
    "mechanism a long word": {"mechanism": LONG, "noise_stddev": None},
    "user twice among both types": {"users": ["1", 1, "1"], "norms": [1.0] * 3},
    "user too long": {"users": [LONG, "a"]},
    "user with many digits": {"users": [10**6000, 1]},
    "user reserved": {"users": ["a", "erased:s:00"]},
    "reserve 1": {"reserve": 1.0},
    "reserve NaN": {"reserve": math.nan},
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
    with pytest.raises(InvalidRequest) as refused:
        run.charge(users, norms, **arguments)
    assert len(str(refused.value)) < 500  # a long value is quoted by its beginning
    assert [len(log) for log in service.logs] == before
    assert run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0).step == 0
    assert service.spent() == {1: 1 / 32, 2: 1 / 32}


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "-a", "a" * 129, "a\n", "ü"])
def test_invalid_names_publish_nothing(bad: str) -> None:
    service = Partitions()
    service.create()
    before = [len(log) for log in service.logs]
    calls = service.create, service.open, service.withdraw, service.close_run
    for call in (*calls, lambda name: service.open(dataset=name)):
        with pytest.raises(InvalidRequest):
            call(bad)
    assert [len(log) for log in service.logs] == before
