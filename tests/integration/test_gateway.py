"""`turnstile gateway` on a real broker: its steps are charged once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from streams.failures import Exit
from streams.local.server_process import free_ports
from tests.integration.service import Service
from tests.keys import private_key, public
from tests.unit.gateway.asking import STEP, ask, create
from tests.waiting import HANGS_AFTER

SPENT = [1 / 32, 1 / 128, 1 / 512]


@contextmanager
def gateway(service: Service, *command: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a program that serves a gateway; yield its URL and its process."""
    environment = {**os.environ, **service.environment}
    words = [sys.executable, *map(str, command)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline().strip()
            yield json.loads(first)["page"] if first.startswith("{") else first, process
        finally:
            process.kill()


def command() -> list[str]:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    return ["-m", "streams.cli", "gateway", "--listen", listen, "--json"]


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Start `turnstile gateway`, and end it with SIGTERM."""
    with gateway(service, *command()) as (url, process):
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_AFTER) == Exit.OK


@pytest.fixture(scope="module")
def url(shared: Service) -> Iterator[str]:
    with served(shared) as address:
        yield address


def opened(url: str, name: str) -> str:
    """Create a dataset and open an attempt of a run; return its path."""
    assert create(url, name=name).status == 200
    response = ask(url, "POST", f"/v1/datasets/{name}/runs/r/attempts", {})
    return f"/v1/datasets/{name}/runs/r/attempts/{response.body['attempt']}"


def spent(service: Service, name: str) -> list[float]:
    """Return what users 1, 2 and 3 have spent."""
    rows = service.state(name)
    return [rows[user][0][0] / 2**44 for user in (1, 2, 3)]


def test_gateways_side_by_side_charge_a_step_once(shared: Service, url: str, name: str) -> None:
    path = f"{opened(url, name)}/steps/0"
    with served(shared) as other, ThreadPoolExecutor(8) as threads:
        sent = [
            threads.submit(ask, (url, other)[number % 2], "POST", path, STEP) for number in range(8)
        ]
        responses = [each.result() for each in sent]
    assert {response.status for response in responses} == {200}
    assert all(response.body == responses[0].body for response in responses)
    assert spent(shared, name) == SPENT


def test_step_without_decisions_is_not_answered_and_is_decided_later(
    shared: Service, name: str
) -> None:
    with gateway(shared, *command(), "--timeout", "2") as (impatient, _):
        path = opened(impatient, name)
        with shared.paused_worker():
            late = ask(impatient, "POST", f"{path}/steps/0", STEP)
            assert (late.status, late.body["reason"]) == (504, "decision-timeout")
        decided = ask(impatient, "POST", f"{path}/steps/0", STEP)
    assert (decided.status, decided.body["step"]) == (200, 0)
    assert spent(shared, name) == SPENT


def test_budgets_balances_and_decisions_are_read_from_the_service(
    shared: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_CURATOR_KEYS", public("carol"))
    with served(shared) as url:
        path, step = opened(url, name), {**STEP, "clip_norm": 1.0}
        decided = ask(url, "POST", f"{path}/steps/0", step).body
        shared.settle()
        listed = ask(url, "GET", "/v1/datasets").body["datasets"]
        (budget,) = ask(url, "GET", f"/v1/datasets/{name}/budget").body["budgets"]
        asked, balances = {"users": [1, 2, 3]}, f"/v1/datasets/{name}/balances"
        refused = ask(url, "POST", balances, asked, key=private_key("alice"))
        found = ask(url, "POST", balances, asked, key=private_key("carol")).body["balances"]
    assert name in [one["dataset"] for one in listed]
    assert budget["worst_case_left"] == [1.0 - SPENT[0]]
    assert budget["holder"] == {"dataset": name, "run": "r"}
    assert (refused.status, refused.body["reason"]) == (403, "not-curator")
    assert {one["user"]: one["spent"] for one in found} == {
        user: [amount] for user, amount in enumerate(SPENT, start=1)
    }
    rows = {}
    for decision in decided["decision_ids"]:
        done = shared.command("explain", "--decision", decision, "--json")
        assert done.code == Exit.OK, done.said
        rows |= {line["user"]: (line["granted"], line["decision"]) for line in done.lines}
    assert rows.keys() == {1, 2, 3}
    for one in found:
        granted, decision = rows[one["user"]]
        assert granted == decided["granted"][one["user"] - 1]
        partition, offset = map(int, decision.split("/")[1:])
        assert (partition, offset + 1) == (one["partition"], one["offset"])
