"""Over HTTP, a caller hears what a trainer hears of the same steps from the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from streams import CollectTerms, Turnstile
from streams.gateway.http_gateway import Gateway
from streams.sdk.memory_connection import MemoryConnection
from tests.conformance.turnstile import PARTITIONS
from tests.gateways import gateway_to
from tests.unit.gateway.asking import OTHER_STEP, STEP, ask, create, opened
from tests.waiting import HANGS_AFTER

RUN = "/v1/datasets/d/runs/r"
GAUSSIAN = Gaussian(1.7), {"type": "gaussian", "noise_stddev": 1.7}
CLIPS = {"orders": [1.5, 32.0], "budget": [0.7, 6.0], "on_exhaustion": "clip"}
STEPS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"measure": "zcdp", "budget": 0.3}, *GAUSSIAN),
    ({"measure": "zcdp", "budget": 0.3}, Laplace(3.1), {"type": "laplace", "scale": 3.1}),
    ({"measure": "pure-dp", "budget": 2.0}, PureDP(), {"type": "pure-dp"}),
    ({"measure": "gdp", "budget": None, "epsilon": 1.0, "delta": 1e-5}, *GAUSSIAN),
    ({"measure": "renyi", **CLIPS}, *GAUSSIAN),
    ({"measure": "steps", "noise_multiplier": 1.7, "budget": 4}, *GAUSSIAN),
]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with gateway_to(MemoryConnection(PARTITIONS, HANGS_AFTER)) as served:
        yield served


@pytest.fixture
def sdk() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=PARTITIONS) as turnstile:
        yield turnstile


def told(gateway: Gateway, path: str, body: Any) -> Any:
    response = ask(gateway, "POST", path, body)
    assert response.status == 200, response.body
    return response.body


def refused(gateway: Gateway, path: str, body: Any) -> Any:
    response = ask(gateway, "POST", path, body)
    assert response.status == 409, response.body
    return response.body


def is_same(over_http: Any, decision: Any, *fields: str) -> None:
    for field in ("admitted", "exhausted", *fields):
        assert over_http[field] == np.asarray(getattr(decision, field)).tolist(), field


@pytest.mark.parametrize(("policy", "mechanism", "described"), STEPS)
def test_steps_over_http_are_decided_as_by_the_sdk(
    gateway: Gateway, sdk: Turnstile, policy: dict[str, Any], mechanism: Any, described: Any
) -> None:
    assert create(gateway, **policy).status == 200
    path = opened(gateway)
    sdk.create_dataset("d", **policy)
    run = sdk.run("d", "r")
    random, halted = np.random.default_rng(1), 0
    for step in range(9):
        users = random.permutation(12)[:9].tolist()
        norms = random.exponential(0.7, 9).tolist()
        body = {"users": users, "norms": norms, "mechanism": described}
        over_http = told(gateway, f"{path}/steps/{step}", body)
        decision = run.charge(users, norms, mechanism=mechanism)
        is_same(over_http, decision, "granted")
        halted += len(over_http["halted"])
    assert halted


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rosters_over_http_are_charged_as_by_the_sdk(
    gateway: Gateway, sdk: Turnstile, rate: float
) -> None:
    policy = {"measure": "renyi", "orders": [4.0, 16.0], "budget": [0.7, 2.8]}
    create(gateway, **policy)
    path = opened(gateway)
    sdk.create_dataset("d", **policy)
    users, random = list(range(8)), np.random.default_rng(1)
    grid = {"users": users, "clip_norm": 1.0, "levels": 10}
    assert told(gateway, f"{path}/roster", grid) == {"members": 8}
    roster = sdk.run("d", "r").enrol(users, clip_norm=1.0, levels=10)
    halted = 0
    for step in range(9):
        norms = random.random(8).tolist() if step else None
        noise = {"type": "gaussian", "noise_stddev": 1.5}
        if rate < 1.0:
            noise = {"type": "poisson-gaussian", "noise_stddev": 1.5, "sampling_rate": rate}
        body = {**grid, "mechanism": noise, "norms": norms}
        over_http = told(gateway, f"{path}/roster/steps/{step}", body)
        decision = roster.charge(noise_stddev=1.5, sampling_rate=rate, norms=norms)
        is_same(over_http, decision, "clip_norms", "halted", "readmitted")
        halted += len(over_http["halted"])
    assert halted


def test_collected_norms_over_http_are_charged_as_by_the_sdk(
    gateway: Gateway, sdk: Turnstile
) -> None:
    policy = {"measure": "zcdp", "budget": 0.3, "user_ids": "mixed"}
    create(gateway, **policy)
    path = opened(gateway, collect={"clip_norm": 1.0})
    sdk.create_dataset("d", **policy)
    run = sdk.run("d", "r", collect=CollectTerms(clip_norm=1.0))
    users, random = [1, "a", 2, "b"], np.random.default_rng(1)
    for step in range(6):
        norms = random.random(4).tolist()
        sent = {"users": users, "norms": norms, "attempt": None}
        assert told(gateway, f"{RUN}/steps/{step}/norms", sent) == {"users": 4}
        sdk.send_norms("d", "r", step, users, norms)
        described = {"mechanism": {"type": "gaussian", "noise_stddev": 1.7}}
        over_http = told(gateway, f"{path}/steps/{step}/collected", described)
        decision = run.charge_collected(noise_stddev=1.7)
        is_same(over_http, decision, "granted")
        assert over_http["users"] == decision.users
    assert over_http["halted"]


def test_unreleased_steps_are_handed_back_over_http(gateway: Gateway) -> None:
    create(gateway)
    first = opened(gateway)
    decided = [told(gateway, f"{first}/steps/{step}", STEP) for step in range(2)]
    unknown = refused(gateway, f"{RUN}/attempts", {"released": -1})
    assert (unknown["reason"], unknown["released"], unknown["newest"]) == (
        *("release-unknown", -1, 1),
    )
    again = told(gateway, f"{RUN}/attempts", {"released": 0})
    assert (again["number"], again["step"], again["interrupted"]) == (3, 1, True)
    path = f"{RUN}/attempts/{again['attempt']}"
    assert refused(gateway, f"{path}/steps/1", OTHER_STEP)["reason"] == "step-content-changed"
    given_back = told(gateway, f"{path}/steps/1", STEP)
    assert given_back == {**decided[1], "attempt": again["attempt"]}
    assert refused(gateway, f"{first}/steps/2", STEP)["current_attempt"] == 3
    last = told(gateway, f"{RUN}/attempts", {"released": 0})
    given_up = told(gateway, f"{RUN}/attempts/{last['attempt']}/steps/1/abandon", {})
    assert (given_up["step"], given_up["interrupted"]) == (2, False)


def test_one_run_at_a_time_charges_a_budget_over_http(gateway: Gateway) -> None:
    create(gateway)
    first = opened(gateway, min_separation=3)
    told(gateway, f"{first}/steps/0", STEP)
    soon = told(gateway, f"{first}/steps/1", STEP)["halted"]
    assert [halt["reason"] for halt in soon] == ["too-soon"] * 3
    changed = refused(gateway, f"{RUN}/attempts", {"min_separation": 4})
    assert changed["reason"] == "separation-changed"
    second = "/v1/datasets/d/runs/s/attempts"
    held = refused(gateway, second, {})
    assert (held["reason"], held["holder"]) == ("budget-held", {"dataset": "d", "run": "r"})
    assert told(gateway, second, {"take_over": True})["step"] == 0
    fenced = refused(gateway, f"{first}/steps/2", STEP)
    assert (fenced["reason"], fenced["holder"]["run"]) == ("budget-held", "s")
