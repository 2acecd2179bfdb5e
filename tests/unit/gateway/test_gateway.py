"""A step is charged once over HTTP, and only a complete decision is a response with status 200."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from streams.gateway import http_operations
from streams.gateway.http_gateway import Gateway
from streams.gateway.problems import STATUSES, ProblemReason
from streams.ledger.outputs import Output
from streams.records import Reason
from tests.gateways import gateway_to
from tests.keys import private_key, public
from tests.unit.gateway.asking import STEP, ask, create, opened
from tests.unit.sdk.partitions import Partitions
from tests.waiting import HANGS_AFTER

SPENT = {1: 1 / 32, 2: 1 / 128, 3: 1 / 512}


@pytest.fixture
def service() -> Partitions:
    return Partitions()


@pytest.fixture
def gateway(service: Partitions) -> Iterator[Gateway]:
    with gateway_to(service, timeout=0.0) as served:  # what does not answer at once never does
        yield served


@pytest.fixture
def path(gateway: Gateway) -> str:
    """Return the path of an open attempt of a run of dataset d."""
    create(gateway)
    return opened(gateway)


def test_repeated_request_gets_the_same_decision_anywhere(
    service: Partitions, gateway: Gateway, path: str
) -> None:
    first = ask(gateway, "POST", f"{path}/steps/0", STEP)
    assert (first.status, first.body["admitted"]) == (200, [True] * 3)
    offsets = [len(log) - 1 for log in service.logs]
    ids = [f"{'0' * 32}/{p}/{offset}" for p, offset in enumerate(offsets)]
    assert first.body["decision_ids"] == ids
    with gateway_to(service) as other:
        again = ask(other, "POST", f"{path}/steps/0", STEP)
        assert again.body == first.body
        assert ask(other, "POST", f"{path}/steps/1", STEP).body["step"] == 1
    assert service.spent() == {user: 2 * spent for user, spent in SPENT.items()}


@pytest.mark.parametrize("lost", ["deaf", "mute"])
def test_incomplete_decision_is_completed_by_the_same_request(
    service: Partitions, gateway: Gateway, path: str, lost: str
) -> None:
    before = service.before_result
    # The question about the attempt is answered; then one partition is lost.
    service.before_result = lambda: setattr(service, lost, {2})
    late = ask(gateway, "POST", f"{path}/steps/0", STEP)
    assert (late.status, late.body["reason"]) == (504, "decision-timeout")
    assert int(late.headers["Retry-After"]) > 0
    assert "admitted" not in late.body
    service.before_result = before
    setattr(service, lost, set())
    assert ask(gateway, "POST", f"{path}/steps/0", STEP).status == 200
    assert service.spent() == SPENT


def test_identical_requests_at_the_same_time_charge_once(
    service: Partitions, gateway: Gateway, path: str
) -> None:
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(ask, gateway, "POST", f"{path}/steps/0", STEP) for _ in range(8)]
        responses = [each.result() for each in sent]
    assert [response.status for response in responses] == [200] * 8
    assert all(response.body == responses[0].body for response in responses)
    assert service.spent() == SPENT


@pytest.mark.usefixtures("path")
def test_number_of_an_attempt_without_its_token_charges_nothing(
    service: Partitions, gateway: Gateway
) -> None:
    guessed = f"/v1/datasets/d/runs/r/attempts/1-{'0' * 32}"
    assert ask(gateway, "POST", f"{guessed}/steps/0", STEP).status == 409
    assert service.spent() == {}


def test_halted_users_are_named_with_the_reason_and_listed(gateway: Gateway) -> None:
    create(gateway, budget=1 / 64)
    path = opened(gateway)
    decided = ask(gateway, "POST", f"{path}/steps/0", STEP).body
    assert decided["admitted"] == [False, True, True]
    assert decided["granted"] == [0.0, 0.5, 0.25]
    assert decided["halted"] == [{"position": 0, "reason": "budget", "refused_by": "d"}]
    listed = ask(gateway, "GET", f"{path}/halts").body
    assert [(halt["user"], halt["step"]) for halt in listed["halts"]] == [(1, 0)]
    assert listed["is_complete"]
    assert ask(gateway, "POST", "/v1/datasets/d/runs/r/close", {}).body["closed"]
    assert ask(gateway, "GET", f"{path}/halts").body == listed
    again = ask(gateway, "POST", "/v1/datasets/d/runs/r/attempts", {})
    assert (again.status, again.body["reason"]) == (409, "run-closed")


def test_list_of_halts_says_if_it_is_cut_off(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_operations, "MOST_HALTS", 2)
    create(gateway, budget=1 / 64)
    path = opened(gateway)
    for step, is_complete in ((0, True), (1, True), (2, False)):
        ask(gateway, "POST", f"{path}/steps/{step}", STEP)
        listed = ask(gateway, "GET", f"{path}/halts").body
        assert (len(listed["halts"]), listed["is_complete"]) == (min(step + 1, 2), is_complete)


# --- reading ------------------------------------------------------------------------------------


def budget(gateway: Gateway, dataset: str) -> dict[str, Any]:
    """Return the public part of each budget of a dataset, by name."""
    shown = ask(gateway, "GET", f"/v1/datasets/{dataset}/budget")
    assert shown.status == 200, shown.body
    return {one["policy"]["dataset"]: one for one in shown.body["budgets"]}


def test_datasets_are_listed_with_their_policies(service: Partitions, gateway: Gateway) -> None:
    assert ask(gateway, "GET", "/v1/datasets").body == {"datasets": []}
    made = [create(gateway, name=name, user_ids="integer").body for name in ("e", "d")]
    assert ask(gateway, "GET", "/v1/datasets").body == {"datasets": made[::-1]}
    service.turnstile.close_dataset("e")
    assert [one["closed"] for one in ask(gateway, "GET", "/v1/datasets").body["datasets"]] == [
        *(False, True),
    ]


def test_budget_shows_the_policies_and_the_run_that_holds_each(
    service: Partitions, gateway: Gateway
) -> None:
    create(gateway, name="outer")
    policy = create(gateway, parents=["outer"]).body
    assert {name: one["holder"] for name, one in budget(gateway, "d").items()} == {
        "d": None,
        "outer": None,
    }
    opened(gateway)
    shown = budget(gateway, "d")
    assert list(shown) == ["d", "outer"]
    assert shown["d"] == {"policy": policy, "worst_case_left": [1.0], "holder": None}
    assert shown["outer"]["holder"] == {"dataset": "d", "run": "r"}
    assert budget(gateway, "outer")["outer"] == shown["outer"]
    service.turnstile.close_run("d", "r")
    assert budget(gateway, "outer")["outer"]["holder"] is None
    unknown = ask(gateway, "GET", "/v1/datasets/e/budget")
    assert (unknown.status, unknown.body["reason"]) == (404, "unknown-dataset")


def test_public_part_of_a_budget_does_not_depend_on_the_norms_of_users(
    service: Partitions, gateway: Gateway
) -> None:
    path = opened_in(gateway, "d")
    step = {**STEP, "clip_norm": 2.0}
    assert ask(gateway, "POST", f"{path}/steps/0", step).status == 200
    other = Partitions()
    with gateway_to(other) as beside:
        beside_path = opened_in(beside, "d")
        ask(beside, "POST", f"{beside_path}/steps/0", {**step, "users": [9], "norms": [0.0]})
        assert budget(beside, "d") == budget(gateway, "d")
    assert service.spent() != other.spent()
    assert budget(gateway, "d")["d"]["worst_case_left"] == [1.0 - 4 / 32]
    ask(gateway, "POST", f"{path}/steps/1", STEP)
    assert budget(gateway, "d")["d"]["worst_case_left"] == [0.0]


def opened_in(gateway: Gateway, name: str) -> str:
    create(gateway, name=name)
    return opened(gateway)


def test_balances_are_for_the_curator_alone(service: Partitions) -> None:
    with gateway_to(service, curators=public("carol")) as gateway:
        create(gateway, name="outer", budget=2.0, user_ids="integer")
        create(gateway, parents=["outer"], user_ids="integer")
        ask(gateway, "POST", f"{opened(gateway)}/steps/0", STEP)
        asked: dict[str, Any] = {"users": [1, 3, 3, 77]}
        for key in (None, private_key("alice")):
            refused = ask(gateway, "POST", "/v1/datasets/d/balances", asked, key=key)
            assert (refused.status, refused.body["reason"]) == (403, "not-curator")
        curator = private_key("carol")
        found = ask(gateway, "POST", "/v1/datasets/d/balances", asked, key=curator)
        assert found.status == 200, found.body
        balances = {(one["user"], one["dataset"]): one for one in found.body["balances"]}
        assert len(balances) == len(found.body["balances"])
        assert balances.keys() == {(user, name) for user in (1, 3) for name in ("d", "outer")}
        for (user, name), one in balances.items():
            assert one["spent"] == [SPENT[user]]
            assert one["left"] == [(2.0 if name == "outer" else 1.0) - SPENT[user]]
            assert one["offset"] == len(service.logs[one["partition"]])
        unknown = ask(gateway, "POST", "/v1/datasets/e/balances", asked, key=curator)
        assert (unknown.status, unknown.body["reason"]) == (404, "unknown-dataset")


def test_gateway_without_curators_shows_nobody_a_balance(gateway: Gateway, path: str) -> None:
    ask(gateway, "POST", f"{path}/steps/0", STEP)
    for key in (None, private_key("carol")):
        refused = ask(gateway, "POST", "/v1/datasets/d/balances", {"users": [1]}, key=key)
        assert (refused.status, refused.body["reason"]) == (403, "not-curator")


def test_curator_is_served_beside_the_listed_callers(service: Partitions) -> None:
    with gateway_to(service, keys=public("alice"), curators=public("carol")) as gateway:
        create(gateway, key=private_key("alice"))
        for name, status in (("carol", 200), ("alice", 403), ("bob", 403)):
            asked = {"users": ["ada"]}
            key = private_key(name)
            response = ask(gateway, "POST", "/v1/datasets/d/balances", asked, key=key)
            assert response.status == status, (name, response.body)


# --- keys ---------------------------------------------------------------------------------------


def test_listed_dataset_is_charged_with_the_key_of_its_caller(service: Partitions) -> None:
    allow = {public("alice"): ["charge"], public("mary"): ["manage"]}
    with gateway_to(service) as gateway:
        assert create(gateway, allow=allow).status == 200
        path = opened(gateway, key=private_key("alice"))
        for caller in (None, "mary", "bob"):
            key = None if caller is None else private_key(caller)
            refused = ask(gateway, "POST", f"{path}/steps/0", STEP, key=key)
            assert (refused.status, refused.body["reason"]) == (403, "not-allowed"), caller
            assert ask(gateway, "GET", f"{path}/halts", key=key).status == 403
        assert service.spent() == {}
        assert ask(gateway, "POST", f"{path}/steps/0", STEP, key=private_key("alice")).status == 200
    assert service.spent() == SPENT


def test_only_known_callers_are_served_if_the_gateway_has_a_list(service: Partitions) -> None:
    with gateway_to(service, keys=public("alice")) as gateway:
        assert create(gateway, key=private_key("alice")).status == 200
        stranger = create(gateway, key=private_key("bob"))
        assert (stranger.status, stranger.body["reason"]) == (403, "unknown-caller")
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            unknown = ask(gateway, "GET", "/v1/datasets/d", headers=headers)
            assert (unknown.status, unknown.body["reason"]) == (401, "unauthenticated")
            assert "WWW-Authenticate" in unknown.headers


# --- limits -------------------------------------------------------------------------------------


@contextmanager
def held_results(service: Partitions) -> Iterator[threading.Event]:
    """Hold results of the service until the block ends; the event is set when there is one."""
    entered, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        may_end.wait(HANGS_AFTER)

    service.before_result = wait
    try:
        yield entered
    finally:
        service.before_result = lambda: None
        may_end.set()


def test_request_beyond_the_limit_is_rejected(service: Partitions) -> None:
    with gateway_to(service, most=1) as gateway:
        create(gateway)
        path = opened(gateway)
        with ThreadPoolExecutor(1) as threads:
            with held_results(service) as entered:
                held = threads.submit(ask, gateway, "POST", f"{path}/steps/0", STEP)
                entered.wait(HANGS_AFTER)
                refused = ask(gateway, "POST", f"{path}/steps/0", STEP)
            assert held.result().status == 200
        assert (refused.status, refused.body["reason"]) == (429, "too-many-requests")
        assert "Retry-After" in refused.headers
        assert ask(gateway, "POST", f"{path}/steps/0", STEP).status == 200


def test_disconnected_caller_keeps_its_place_until_a_decision(service: Partitions) -> None:
    """Otherwise its next request could publish the step beside the first one."""
    with gateway_to(service, most=1) as gateway:
        create(gateway)
        path = opened(gateway)
        with held_results(service) as entered:
            with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
                caller.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                entered.wait(HANGS_AFTER)
            assert ask(gateway, "GET", path).status == 429


def test_caller_that_hangs_up_leaves_nothing_in_the_log(
    service: Partitions, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    create(gateway)
    head = f"POST {opened(gateway)}/steps/0 HTTP/1.1\r\nHost: localhost\r\n"
    for length in ("Content-Length: 9", "Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(f"{head}{length}\r\nExpect: 100-continue\r\n\r\n".encode())
            assert caller.recv(100)  # the gateway waits for the body
    # Its requests are handled one after the other, so the others have ended after this one.
    assert ask(gateway, "POST", f"{opened(gateway)}/steps/0", STEP).status == 200
    assert not caplog.records


def test_large_body_is_refused_before_it_is_read(service: Partitions) -> None:
    with gateway_to(service, largest=2000) as gateway:
        create(gateway)
        step = {**STEP, "users": list(range(1000))}
        refused = ask(gateway, "POST", f"{opened(gateway)}/steps/0", step)
        assert (refused.status, refused.body["reason"]) == (413, "body-too-large")
    assert service.spent() == {}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"norms": None}, 400),
        ({"norms": [1.0, 1.0, -1.0]}, 400),
        ({"user": [1]}, 400),
        ({"mechanism": {"type": "uniform"}}, 400),
        ({"mechanism": {"type": "gaussian"}}, 400),
        ({"norms": [1.0]}, 422),
        ({"users": [1, 1, 2]}, 422),
        ({"users": [1, "a", 2]}, 422),
        ({"users": ["a", "b", "erased:i:00"]}, 422),
        ({"clip_norm": 0.5}, 422),
        ({"mechanism": {"type": "laplace", "scale": 1.0}, "reserve": 0.5}, 200),
    ],
    ids=str,
)
def test_unusable_step_is_refused_and_changes_nothing(
    service: Partitions, gateway: Gateway, path: str, change: Any, status: int
) -> None:
    response = ask(gateway, "POST", f"{path}/steps/0", {**STEP, **change})
    assert response.status == status, response.body
    if status != 200:
        assert service.spent() == {}
        assert ask(gateway, "POST", f"{path}/steps/0", STEP).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        *(
            ("POST", "/v1/datasets", body, 400, "malformed-request")
            for body in (b"", b"{", b"[]", b'{"users": [NaN]}', b"\xff", b"[" * 100_000)
        ),
        ("GET", "/v2", None, 404, "not-found"),
        ("GET", "/v1/datasets/e", None, 404, "unknown-dataset"),
        ("DELETE", "/v1/datasets/d", None, 405, "method-not-allowed"),
        ("GET", "/v1/datasets/%20", None, 400, "malformed-request"),
        ("GET", "/v1/datasets/d/runs/r/attempts/1", None, 400, "malformed-request"),
    ],
)
def test_errors_of_the_server_have_the_form_of_a_problem(
    gateway: Gateway, method: str, path: str, body: bytes | None, status: int, reason: str
) -> None:
    response = ask(gateway, method, path, body)
    assert (response.status, response.body["reason"]) == (status, reason)
    assert response.headers["Content-Type"] == "application/problem+json"


def test_unknown_field_is_refused_with_the_known_ones(gateway: Gateway, path: str) -> None:
    noise = {**STEP["mechanism"], "noise": 1.0}
    for change in ({"norm": 1.0}, {"mechanism": noise}):
        response = ask(gateway, "POST", f"{path}/steps/0", {**STEP, **change})
        assert response.status == 400
        for known in ("norms", "(type, noise_stddev, scale)", "clip_norm"):
            assert known in response.body["detail"]


def test_broken_connection_ends_the_gateway_and_decides_nothing(
    service: Partitions, gateway: Gateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(offset: int, value: bytes | None) -> list[Output]:
        raise KeyError("a defect")

    monkeypatch.setattr(service.ledgers[1], "apply", fail)
    failed = ask(gateway, "POST", f"{path}/steps/0", STEP)
    assert (failed.status, failed.body["reason"]) == (500, "failed")
    assert gateway.broken.is_set()


def test_every_reason_has_a_status() -> None:
    assert STATUSES.keys() == {*ProblemReason, *Reason}
    assert not {str(reason) for reason in ProblemReason} & {str(reason) for reason in Reason}
    assert all(400 <= status < 600 for status in STATUSES.values())
