"""Valid charges end to end: decisions agree with rational arithmetic and never change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from tests.audit.auditor_state import home
from tests.integration.service import Service


@pytest.fixture(autouse=True)
def everything_is_as_audited(shared: Service) -> Iterator[None]:
    yield
    shared.audit()


MEASURES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "zcdp": ({"measure": "zcdp", "budget": 0.3}, [Gaussian(1.7), Laplace(3.1), PureDP()]),
    "zcdp from epsilon": (
        {"measure": "zcdp", "epsilon": 2.0, "delta": 1e-6, "odometer_step": 0.013},
        [Gaussian(3.3)],
    ),
    "zcdp clip": (
        {"measure": "zcdp", "budget": 0.3, "on_exhaustion": "clip"},
        [Gaussian(1.7), Gaussian(0.9)],
    ),
    "gdp": ({"measure": "gdp", "budget": 1.1}, [Gaussian(1.3), Gaussian(2.1)]),
    "gdp from epsilon": ({"measure": "gdp", "epsilon": 1.0, "delta": 1e-5}, [Gaussian(2.0)]),
    "gdp clip": (
        {"measure": "gdp", "budget": 1.1, "odometer_step": 0.2, "on_exhaustion": "clip"},
        [Gaussian(1.3)],
    ),
    "renyi, one order": (
        {"measure": "renyi", "orders": [1.1], "budget": [0.7], "odometer_step": [0.01]},
        [Gaussian(1.7), Laplace(2.3), PureDP()],
    ),
    "renyi, three orders": (
        {
            "measure": "renyi",
            "orders": [1.5, 3.7, 32],
            "budget": [0.7, 0.9, 6.0],
            "odometer_step": [0.1, 0.09, 0.7],
        },
        [Gaussian(2.7), Laplace(4.3), PureDP()],
    ),
    "renyi, three orders, clip": (
        {
            "measure": "renyi",
            "orders": [1.5, 3.7, 32.1],
            "budget": [0.7, 0.9, 6.0],
            "on_exhaustion": "clip",
        },
        [Gaussian(2.7), Gaussian(1.1)],
    ),
    "steps": (
        {"measure": "steps", "noise_multiplier": 0.4, "budget": 4},
        [Gaussian(2.7), Gaussian(1.3)],
    ),
}


@pytest.mark.parametrize(("policy", "mechanisms"), MEASURES.values(), ids=MEASURES)
def test_every_measure_decides_as_rational_arithmetic_does(
    shared: Service, name: str, policy: dict[str, Any], mechanisms: list[Any]
) -> None:
    shared.client.create_dataset(name, **policy)
    run = shared.client.run(name, "r")
    random = np.random.default_rng(2024)
    halted = admitted = 0
    for step in range(24):
        users = random.choice(60, size=40, replace=False)
        norms = np.round(random.gamma(2.0, 0.35, size=40), 3) * (random.random(40) < 0.9)
        mechanism = mechanisms[step % len(mechanisms)]
        decision = run.charge(users, norms, mechanism=mechanism, clip_norm=float(norms.max()))
        halted += int(decision.halted.sum())
        admitted += int(decision.admitted.sum())
        assert (decision.granted <= norms).all()
        assert not decision.granted[decision.halted].any()
    assert halted  # some users' budgets are exhausted
    assert admitted > 100


IDS = {
    "integers": [0, 1, -1, 2**63 - 1, -(2**63), 7],
    "strings": ["a", "ü", "名前", "x" * 256, "1", " ", "\x00", "🦊" * 63],
    "mixed": [1, "1", -1, "-1", 2**40, "b", "\n"],
}


@pytest.mark.parametrize("users", IDS.values(), ids=IDS)
def test_every_kind_of_user_id_is_charged_on_its_own(
    shared: Service, name: str, users: list[int | str]
) -> None:
    kinds = {type(user) for user in users}
    shared.client.create_dataset(
        name, measure="zcdp", budget=1.0, user_ids="mixed" if len(kinds) == 2 else "one-kind"
    )
    run = shared.client.run(name, "r")
    norms = np.arange(1, len(users) + 1) / 4
    for order in (users, users[::-1], users):
        values = norms if order == users else norms[::-1]
        decision = run.charge(order, values, noise_stddev=2.0)
        last = order == users and decision.step == 2
        assert decision.admitted.all() or last
    assert decision.admitted.tolist() == [3 * norm**2 <= 8 for norm in norms]
    state = shared.state(name)
    assert set(state) == set(users)
    partitions = {p for p in range(shared.partitions) for u in users if home(u, 3) == p}
    assert len(partitions) > 1
