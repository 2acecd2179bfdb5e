"""Bad input is refused with its reason, changes no budget and stops nothing.

Here it goes through Kafka, a worker and Redis. Every value in every field of every request is tried
without them, in ``tests/unit/ledger/test_bad_requests.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from streams.sdk.errors import (
    Fenced,
    InvalidRequest,
    PolicyChanged,
    RequestRejected,
    TurnstileError,
)
from streams.sdk.run import Run
from tests.audit.auditor import home
from tests.integration.service import Service

NAN, INF = math.nan, math.inf
Change = Callable[[list[int]], dict[str, Any]]


@dataclass
class Lane:
    """A dataset with one run that has charged step 0, seen from partition 0."""

    service: Service
    dataset: str
    run: Run
    users: list[int]  # they live in partition 0; the last two are not charged yet

    def charge(self, step: int = 1, **changes: Any) -> dict[str, Any]:
        """A charge that the worker must accept, unless the changes spoil it."""
        return {
            "type": "charge",
            "v": 2,
            "dataset": self.dataset,
            "run": self.run.name,
            "attempt": self.run.attempt,
            "step": step,
            "users": self.users,
            "norms": [1.0] * len(self.users),
            "scale": 4.0,
            **changes,
        }

    def assert_rejected(self, reason: str, value: bytes | dict[str, Any] | None) -> None:
        """The record goes to `rejects` with this reason, and no account moves."""
        before = self.service.state(self.dataset)
        offset = self.service.publish(0, value)
        audit = self.service.audit()  # which compares the original bytes too
        assert audit.rejects[0, offset][0] == reason
        assert self.service.state(self.dataset) == before

    def assert_goes_on(self, step: int = 1) -> None:
        """A good charge after the bad one is decided, and paid."""
        before = self.service.state(self.dataset)
        offset = self.service.publish(0, self.charge(step))
        audit = self.service.audit()
        assert audit.charged[0, offset]["admitted"] == [True] * len(self.users)
        after = self.service.state(self.dataset)
        for user in self.users:
            spent = before[user][0][0] if user in before else 0
            assert after[user][0][0] == spent + 2**44 // 32


@pytest.fixture
def lane(shared: Service, name: str) -> Lane:
    return open_lane(shared, name)


def open_lane(service: Service, name: str, **policy: Any) -> Lane:
    service.client.create_dataset(name, **{"budget": 1.0, "user_ids": "mixed", **policy})
    run = service.client.run(name, f"run-{name}")
    users = service.users(4, partition=0)
    run.charge(users[:2], [1.0, 0.5], noise_stddev=4.0)
    return Lane(service, name, run, users)


def fill(user: int | str) -> Change:
    return lambda users: {"users": [*users[:3], user]}


def elsewhere(candidates: Iterable[int | str]) -> int | str:
    """The first of these that does not live in partition 0."""
    return next(user for user in candidates if home(user, 3) != 0)


BAD_CHARGES: dict[str, tuple[str, Change]] = {
    "norm NaN": ("invalid-norm", lambda users: {"norms": [1.0, NAN, 1.0, 1.0]}),
    "norm infinite": ("invalid-norm", lambda users: {"norms": [1.0, INF, 1.0, 1.0]}),
    "norm negative": ("invalid-norm", lambda users: {"norms": [1.0, 1.0, 1.0, -1e-300]}),
    "packed norm NaN": (
        "invalid-norm",
        lambda users: {"norms": np.array([1.0, 1.0, 1.0, NAN]).tobytes()},
    ),
    "norm above clip_norm": ("norm-above-clip", lambda users: {"clip_norm": 0.9999}),
    "clip_norm NaN": ("invalid-norm", lambda users: {"clip_norm": NAN}),
    "clip_norm infinite": ("invalid-norm", lambda users: {"clip_norm": INF}),
    "clip_norm negative": ("invalid-norm", lambda users: {"clip_norm": -1.0}),
    "noise 0": ("invalid-mechanism", lambda users: {"scale": 0.0}),
    "noise negative": ("invalid-mechanism", lambda users: {"scale": -1.0}),
    "noise NaN": ("invalid-mechanism", lambda users: {"scale": NAN}),
    "noise infinite": ("invalid-mechanism", lambda users: {"scale": INF}),
    "Laplace scale 0": (
        "invalid-mechanism",
        lambda users: {"scale": 0.0, "mechanism": "laplace"},
    ),
    "noise 0, nobody charged": (
        "invalid-mechanism",
        lambda users: {"scale": 0.0, "users": [], "norms": []},
    ),
    "one norm too few": ("length-mismatch", lambda users: {"norms": [1.0] * 3}),
    "one norm too many": ("length-mismatch", lambda users: {"norms": [1.0] * 5}),
    "known user twice": ("duplicate-user", lambda users: {"users": [*users[:3], users[0]]}),
    "new user twice": ("duplicate-user", lambda users: {"users": [*users[:3], users[2]]}),
    "packed user twice": (
        "duplicate-user",
        lambda users: {"users": np.array([*users[:3], users[1]], dtype="<i8").tobytes()},
    ),
    "new user of another partition": (
        "wrong-partition",
        fill(elsewhere(range(10))),
    ),
    "string user of another partition": ("wrong-partition", fill(elsewhere("abcdef"))),
    "unknown dataset": ("unknown-dataset", lambda users: {"dataset": "nobody-created-this"}),
    "run never opened": ("unknown-run", lambda users: {"run": "nobody-opened-this"}),
    "attempt never opened": ("unknown-run", lambda users: {"attempt": 2}),
    "step left out": ("step-out-of-order", lambda users: {"step": 2}),
    "step far ahead": ("step-out-of-order", lambda users: {"step": 2**53}),
    "last step with other content": ("step-content-changed", lambda users: {"step": 0}),
    "version 3": ("unsupported-version", lambda users: {"v": 3}),
    "version 0": ("unsupported-version", lambda users: {"v": 0}),
    "name not in normal form": ("malformed", fill("e\u0308")),
    "name not in normal form, in version 1": (
        "mixed-users",
        lambda users: {"v": 1, **fill("e\u0308")(users)},
    ),
    "unknown type": ("malformed", lambda users: {"type": "refund"}),
    "unknown field": ("malformed", lambda users: {"discount": 1}),
    "dataset name with a slash": ("malformed", lambda users: {"dataset": "a/b"}),
    "dataset name empty": ("malformed", lambda users: {"dataset": ""}),
    "run name too long": ("malformed", lambda users: {"run": "r" * 129}),
    "run name with a line end": ("malformed", lambda users: {"run": "r\n"}),
    "attempt 0": ("malformed", lambda users: {"attempt": 0}),
    "attempt beyond 64 bits": ("malformed", lambda users: {"attempt": 2**63}),
    "attempt beyond 2**53 in version 1": (
        "malformed",
        lambda users: {"v": 1, "attempt": 2**53 + 1},
    ),
    "step negative": ("malformed", lambda users: {"step": -1}),
    "step a string": ("malformed", lambda users: {"step": "1"}),
    "step missing": ("malformed", lambda users: {"step": None}),
    "norms of strings": ("malformed", lambda users: {"norms": ["1"] * 4}),
    "norms a string": ("malformed", lambda users: {"norms": "1.0"}),
    "user a float": ("malformed", lambda users: {"users": [*users[:3], 1.5]}),
    "user a bool": ("malformed", lambda users: {"users": [*users[:3], True]}),
    "user an empty string": ("malformed", fill("")),
    "user of 257 characters": ("malformed", fill("x" * 257)),
    "user above 64 bits": ("malformed", fill(2**63)),
    "packed users cut off": ("malformed", lambda users: {"users": bytes(31)}),
    "packed norms cut off": ("malformed", lambda users: {"norms": bytes(31)}),
    "packed norms cut off, in version 1": (
        "malformed",
        lambda users: {"v": 1, "norms": bytes(31)},
    ),
    "unknown mechanism": ("malformed", lambda users: {"mechanism": "cauchy"}),
}


@pytest.mark.parametrize(("reason", "change"), BAD_CHARGES.values(), ids=BAD_CHARGES)
def test_a_bad_charge_is_rejected_and_the_stream_goes_on(
    lane: Lane, reason: str, change: Change
) -> None:
    lane.assert_rejected(reason, lane.charge(**change(lane.users)))
    lane.assert_goes_on()


@pytest.mark.parametrize("user_ids", ["one-kind", "integer"])
def test_ids_of_another_kind_are_rejected(shared: Service, name: str, user_ids: str) -> None:
    lane = open_lane(shared, name, user_ids=user_ids)
    for v in (1, 2):
        for users in (["a", *lane.users[1:]], ["a"] * 4):
            lane.assert_rejected("mixed-users", lane.charge(users=users, v=v))
    lane.assert_goes_on()


def test_what_a_worker_cannot_write_is_rejected_before_anybody_is_charged(
    shared: Service, name: str
) -> None:
    """256 orders x 140,000 users ended the worker, and the next one, for ever."""
    orders = [2.0 + i for i in range(256)]
    lane = open_lane(shared, name, measure="renyi", orders=orders, budget=orders)
    users = np.arange(140_000)
    norms = np.full(len(users), 0.1)
    lane.assert_rejected("too-large", lane.charge(users=users.tobytes(), norms=norms.tobytes()))
    offset = lane.service.publish(0, lane.charge())
    assert lane.service.audit().charged[0, offset]["admitted"] == [True] * 4


OTHER_REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "closed in version 1": ("malformed", "close-run", {"v": 1}),
    "closed in version 0": ("unsupported-version", "close-run", {"v": 0}),
    "closed under attempt 0": ("malformed", "close-run", {"attempt": 0}),
    "closed with a step": ("malformed", "close-run", {"step": 1}),
    "closed, never opened": ("unknown-run", "close-run", {"run": "never"}),
    "closed under an attempt never opened": ("unknown-run", "close-run", {"attempt": 9}),
    "closed in an unknown dataset": ("unknown-dataset", "close-run", {"dataset": "x"}),
    "opened under attempt 0 in version 1": ("malformed", "open-run", {"attempt": 0, "v": 1}),
    "opened under an attempt below 0": ("malformed", "open-run", {"attempt": -1}),
    "opened under what would be the last attempt": (
        "malformed",
        "open-run",
        {"attempt": 2**63 - 1},
    ),
    "opened under a string": ("malformed", "open-run", {"attempt": "0"}),
    "withdrawn in version 1": ("malformed", "withdraw-dataset", {"v": 1}),
    "withdrawn with a policy": ("malformed", "withdraw-dataset", {"policy": {}}),
    "withdrawn without a token": ("malformed", "withdraw-dataset", {"request": ""}),
    "withdrawn in use": ("dataset-in-use", "withdraw-dataset", {}),
}


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
@pytest.mark.parametrize(("reason", "kind", "change"), OTHER_REQUESTS.values(), ids=OTHER_REQUESTS)
def test_a_bad_request_about_a_run_or_a_dataset_is_rejected(
    lane: Lane, reason: str, kind: str, change: dict[str, Any], encode: Callable[[Any], bytes]
) -> None:
    request = {"type": kind, "v": 2, "dataset": lane.dataset, "request": uuid4().hex}
    if kind != "withdraw-dataset":
        request |= {"run": lane.run.name, "attempt": lane.run.attempt}
    value = encode({**request, **change})
    lane.assert_rejected(reason, value)
    lane.assert_rejected("malformed", value[:-1])
    lane.assert_goes_on()


def test_a_closed_run_is_charged_no_more(lane: Lane) -> None:
    for partition in range(lane.service.partitions):
        lane.service.publish(
            partition,
            {
                "type": "close-run",
                "v": 2,
                "dataset": lane.dataset,
                "run": lane.run.name,
                "attempt": lane.run.attempt,
                "request": uuid4().hex,
            },
        )
    for v in (1, 2):
        lane.assert_rejected("run-closed", lane.charge(v=v))
    assert lane.service.audit().runs[0][lane.dataset, lane.run.name].closed


def test_a_dataset_that_nobody_used_can_be_withdrawn(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, budget=8.0)
    for partition in range(shared.partitions):
        request = {"type": "withdraw-dataset", "v": 2, "dataset": name, "request": uuid4().hex}
        shared.publish(partition, request)
    assert all(name not in datasets for datasets in shared.audit().datasets)
    shared.client.create_dataset(name, budget=1.0)
    assert all(name in datasets for datasets in shared.audit().datasets)


def good(lane: Lane) -> bytes:
    return msgspec.msgpack.encode(lane.charge())


GARBAGE: dict[str, tuple[str, Callable[[Lane], bytes | None]]] = {
    "not UTF-8": ("malformed", lambda lane: b"\xff\xfe\xfd not UTF-8 \xc3\x28"),
    "JSON that is not UTF-8": ("malformed", lambda lane: b'{"type": "\xff\xfe"}'),
    "dataset not UTF-8": (
        "malformed",
        lambda lane: good(lane).replace(lane.dataset.encode(), b"\xff" * len(lane.dataset), 1),
    ),
    "too many users": (
        "too-large",
        lambda lane: msgspec.msgpack.encode(lane.charge(users=bytes(8 * (2**19 + 1)), norms=[])),
    ),
    "truncated": ("malformed", lambda lane: good(lane)[:-1]),
    "truncated in the middle": ("malformed", lambda lane: good(lane)[: len(good(lane)) // 2]),
    "truncated JSON": ("malformed", lambda lane: msgspec.json.encode(lane.charge())[:-1]),
    "one byte too many": ("malformed", lambda lane: good(lane) + b"\x00"),
    "empty": ("malformed", lambda lane: b""),
    "tombstone": ("malformed", lambda lane: None),
    "a number": ("malformed", lambda lane: msgspec.msgpack.encode(7)),
    "a deep nest": ("malformed", lambda lane: b"\x91" * 100_000),
    "a deep nest of JSON": ("malformed", lambda lane: b'{"a":' * 100_000),
    "an array that promises 4 billion users": ("malformed", lambda lane: b"\xdd\xff\xff\xff\xff"),
    "JSON with NaN": (
        "malformed",
        lambda lane: msgspec.json.encode(lane.charge(norms=[7.0])).replace(b"7.0", b"NaN"),
    ),
    "5 MB of garbage": ("malformed", lambda lane: np.random.default_rng(1).bytes(5_000_000)),
    "5 MB of text": ("malformed", lambda lane: b"a" * 5_000_000),
    "one byte above the limit": ("too-large", lambda lane: bytes(8 * 1024 * 1024 + 1)),
}


@pytest.mark.parametrize(("reason", "record"), GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_rejected_with_its_bytes_and_the_stream_goes_on(
    lane: Lane, reason: str, record: Callable[[Lane], bytes | None]
) -> None:
    lane.assert_rejected(reason, record(lane))
    lane.assert_goes_on()


MECHANISMS = {
    "laplace under gdp": ({"measure": "gdp"}, "laplace"),
    "pure-dp under gdp": ({"measure": "gdp"}, "pure-dp"),
    "laplace where norms are clipped": ({"on_exhaustion": "clip"}, "laplace"),
    "pure-dp where norms are clipped": ({"on_exhaustion": "clip"}, "pure-dp"),
}


@pytest.mark.parametrize(("policy", "mechanism"), MECHANISMS.values(), ids=MECHANISMS)
def test_a_mechanism_that_the_policy_cannot_charge_is_rejected(
    shared: Service, name: str, policy: dict[str, Any], mechanism: str
) -> None:
    lane = open_lane(shared, name, **policy)
    lane.assert_rejected("invalid-mechanism", lane.charge(mechanism=mechanism))
    with pytest.raises(InvalidRequest):
        lane.run.charge([1], [0.5], mechanism=Laplace(1.0) if mechanism == "laplace" else PureDP())
    lane.service.publish(0, lane.charge())
    assert lane.service.audit().runs[0][name, lane.run.name].step == 1


@pytest.mark.parametrize(
    "other",
    [
        {"budget": 2.0},
        {"budget": 1.0, "odometer_step": 0.5},
        {"budget": 1.0, "measure": "gdp"},
        {"budget": 1.0, "measure": "approx-dp"},
        {"budget": 1.0, "on_exhaustion": "clip"},
        {"budget": [1.0], "orders": [2.0], "measure": "renyi"},
    ],
    ids=str,
)
def test_a_policy_never_changes_after_the_first_charge(lane: Lane, other: dict[str, Any]) -> None:
    before = lane.service.state(lane.dataset)
    with pytest.raises(PolicyChanged):
        lane.service.client.create_dataset(lane.dataset, **other)
    audit = lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    assert "policy-changed" in {reason for reason, _ in audit.rejects.values()}
    lane.service.client.create_dataset(lane.dataset, budget=1.0)  # the same one is no change
    lane.assert_goes_on()


BAD_POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "renyi without orders": ("invalid-policy", {"measure": "renyi"}),
    "zcdp with orders": ("invalid-policy", {"orders": [2.0]}),
    "orders that do not increase": (
        "invalid-policy",
        {"measure": "renyi", "orders": [4.0, 2.0], "budget": [1, 1], "odometer_step": [1, 1]},
    ),
    "an order twice": (
        "invalid-policy",
        {"measure": "renyi", "orders": [2.0, 2.0], "budget": [1, 1], "odometer_step": [1, 1]},
    ),
    "an infinite order": ("invalid-policy", {"measure": "renyi", "orders": [INF]}),
    "one budget for two orders": (
        "invalid-policy",
        {"measure": "renyi", "orders": [2.0, 4.0], "odometer_step": [1, 1]},
    ),
    "two budgets for zcdp": ("invalid-policy", {"budget": [1, 1]}),
    "other partitions than the topic's": ("invalid-policy", {"partitions": 7}),
    "order 1": ("malformed", {"measure": "renyi", "orders": [1.0]}),
    "budget 0": ("malformed", {"budget": [0]}),
    "budget above the range": ("malformed", {"budget": [2**61 + 1]}),
    "unknown measure": ("malformed", {"measure": "vibes"}),
    "user_ids in version 1": ("malformed", {"user_ids": "mixed"}),
    "unknown user_ids": ("malformed", {"v": 2, "user_ids": "both"}),
    "user_ids null": ("malformed", {"v": 2, "user_ids": None}),
}


@pytest.mark.parametrize(("reason", "change"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_bad_policy_creates_nothing(lane: Lane, reason: str, change: dict[str, Any]) -> None:
    policy = {
        "dataset": f"{lane.dataset}-other",
        "partitions": lane.service.partitions,
        "measure": "zcdp",
        "budget": [2**44],
        "odometer_step": [2**40],
        **change,
    }
    version = {"v": policy.pop("v")} if "v" in policy else {}
    lane.assert_rejected(
        reason, {"type": "create-dataset", "request": uuid4().hex, "policy": policy, **version}
    )
    assert all(policy["dataset"] not in led.datasets for led in lane.service.ledgers().values())
    lane.assert_goes_on()


def test_a_run_of_an_unknown_dataset_is_refused(lane: Lane) -> None:
    with pytest.raises(RequestRejected, match="unknown-dataset"):
        lane.service.client.run("nobody-created-this", "r")
    lane.assert_goes_on()


def test_a_step_sent_twice_gets_the_same_decision_and_is_charged_once(lane: Lane) -> None:
    first = lane.service.publish(0, lane.charge())
    lane.service.audit()
    before = lane.service.state(lane.dataset)
    lane.service.publish(0, lane.charge())
    # Packed, or as JSON, it is the same content.
    packed = lane.charge(users=np.array(lane.users, dtype="<i8").tobytes())
    lane.service.publish(0, packed)
    lane.service.publish(0, msgspec.json.encode(lane.charge()))
    audit = lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    assert audit.runs[0][lane.dataset, lane.run.name].decision == audit.charged[0, first]
    lane.assert_goes_on(step=2)


OTHER_CONTENT: dict[str, Change] = {
    "a norm": lambda users: {"norms": [1.0, 1.0, 1.0, math.nextafter(1.0, 0.0)]},
    "the order of the users": lambda users: {"users": users[::-1]},
    "fewer users": lambda users: {"users": users[:3], "norms": [1.0] * 3},
    "nobody": lambda users: {"users": [], "norms": []},
    "the noise": lambda users: {"scale": 4.5},
    "the mechanism": lambda users: {"mechanism": "laplace"},
    "a clip_norm": lambda users: {"clip_norm": 1.0},
    "a bad norm": lambda users: {"norms": [1.0, 1.0, 1.0, NAN]},
}


@pytest.mark.parametrize("change", OTHER_CONTENT.values(), ids=OTHER_CONTENT)
def test_a_step_sent_again_with_other_content_is_rejected(lane: Lane, change: Change) -> None:
    lane.service.publish(0, lane.charge())
    lane.assert_rejected("step-content-changed", lane.charge(**change(lane.users)))
    lane.assert_goes_on(step=2)


def test_steps_out_of_order_are_rejected(lane: Lane) -> None:
    lane.service.publish(0, lane.charge(step=1))
    lane.service.publish(0, lane.charge(step=2))
    for step in (0, 1, 4, 5):
        lane.assert_rejected("step-out-of-order", lane.charge(step))
    lane.assert_goes_on(step=3)


def test_an_older_attempt_is_fenced_and_can_no_longer_charge(lane: Lane) -> None:
    old = lane.charge()
    newer = lane.service.client.run(lane.dataset, lane.run.name)
    assert newer.attempt == lane.run.attempt + 1
    lane.assert_rejected("older-attempt", old)
    open_run = {
        "type": "open-run",
        "dataset": lane.dataset,
        "run": lane.run.name,
        "request": uuid4().hex,
    }
    for attempt in (lane.run.attempt, newer.attempt):  # older, and taken by somebody else
        lane.assert_rejected("older-attempt", {**open_run, "attempt": attempt})
    with pytest.raises(Fenced):
        lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0)
    with pytest.raises(TurnstileError):
        lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0)
    lane.run = newer
    lane.assert_goes_on()


def test_a_charge_before_its_run_is_opened_is_rejected(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, budget=1.0)
    users = shared.users(2, partition=0)
    charge = {
        "type": "charge",
        "dataset": name,
        "run": "early",
        "attempt": 1,
        "step": 0,
        "users": users,
        "norms": [1.0, 1.0],
    }
    offset = shared.publish(0, charge)
    assert shared.audit().rejects[0, offset][0] == "unknown-run"
    assert shared.state(name) == {}
    run = shared.client.run(name, "early")
    assert run.charge(users, [1.0, 1.0], noise_stddev=1.0).admitted.all()
    shared.audit()


def test_json_records_are_decided_like_messagepack_ones(lane: Lane) -> None:
    offset = lane.service.publish(0, msgspec.json.encode(lane.charge()))
    audit = lane.service.audit()
    assert audit.charged[0, offset]["admitted"] == [True] * 4
    bad = lane.charge(step=2, norms=[1.0, 1.0, 1.0, -1.0])
    lane.assert_rejected("invalid-norm", msgspec.json.encode(bad))
    request = {
        "type": "open-run",
        "dataset": lane.dataset,
        "run": lane.run.name,
        "attempt": 5,
        "request": uuid4().hex,
    }
    lane.service.publish(0, msgspec.json.encode(request))
    assert lane.service.audit().runs[0][lane.dataset, lane.run.name].attempt == 5


def test_an_empty_step_is_decided_and_costs_nothing(lane: Lane) -> None:
    before = lane.service.state(lane.dataset)
    for users in ([], np.empty(0, dtype=np.int64)):
        decision = lane.run.charge(users, [], noise_stddev=1.0)
        assert decision.admitted.shape == (0,)
    lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    lane.assert_goes_on(step=3)


def test_one_user_is_charged_in_one_partition(lane: Lane) -> None:
    decision = lane.run.charge(["alone"], [1.0], noise_stddev=4.0)
    assert decision.admitted.tolist() == [True]
    lane.service.audit()
    assert lane.service.state(lane.dataset)["alone"][0] == (2**44 // 32,)


def test_zero_norms_are_admitted_and_cost_nothing(lane: Lane) -> None:
    before = lane.service.state(lane.dataset)
    decision = lane.run.charge(lane.users, [0.0, -0.0, 0.0, 0.0], noise_stddev=1e-300)
    assert decision.admitted.all()
    assert not decision.exhausted.any()
    lane.service.audit()
    after = lane.service.state(lane.dataset)
    assert {user: after[user] for user in before} == before
    assert all(after[user][0] == (0,) for user in lane.users[2:])
    lane.assert_goes_on(step=2)


def test_an_integer_and_the_string_of_its_digits_are_different_users(lane: Lane) -> None:
    users: list[int | str] = [901, "901", 902, "902", 949]
    assert lane.run.charge(users, [4.0, 1.0, 4.0, 1.0, 0.0], noise_stddev=4.0).admitted.all()
    lane.service.audit()
    state = lane.service.state(lane.dataset)
    assert (state[901][0], state["901"][0]) == ((2**43,), (2**43 // 16,))
    assert (state[902][0], state["902"][0]) == ((2**43,), (2**43 // 16,))


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
    "more than fits in a request": {"users": range(3_000_000), "norms": np.ones(3_000_000)},
}


@pytest.mark.parametrize("change", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_the_sdk_refuses_bad_arguments_and_publishes_nothing(
    lane: Lane, change: dict[str, Any]
) -> None:
    before, ends = lane.service.state(lane.dataset), lane.service.log.norms_ends()
    arguments = {"users": [1, 2], "norms": [1.0, 1.0], "noise_stddev": 4.0, **change}
    users, norms = arguments.pop("users"), arguments.pop("norms")
    with pytest.raises(InvalidRequest):
        lane.run.charge(users, norms, **arguments)
    assert lane.service.log.norms_ends() == ends
    assert lane.service.state(lane.dataset) == before
    assert lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0).step == 1


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
    "renyi from epsilon": {"measure": "renyi", "epsilon": 1.0, "delta": 1e-6},
    "order 1": {"measure": "renyi", "budget": [1.0], "orders": [1.0]},
    "order NaN": {"measure": "renyi", "budget": [1.0], "orders": [NAN]},
    "unknown measure": {"measure": "vibes", "budget": 1.0},
    "unknown on_exhaustion": {"budget": 1.0, "on_exhaustion": "beg"},
}


@pytest.mark.parametrize("arguments", BAD_DATASETS.values(), ids=BAD_DATASETS)
def test_the_sdk_refuses_a_bad_policy_and_publishes_nothing(
    shared: Service, name: str, arguments: dict[str, Any]
) -> None:
    ends = shared.log.norms_ends()
    with pytest.raises(InvalidRequest):
        shared.client.create_dataset(name, **arguments)
    assert shared.log.norms_ends() == ends


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "-a", "a" * 129, "a\n", "ü"])
def test_the_sdk_refuses_names_that_the_wire_does_not_allow(lane: Lane, bad: str) -> None:
    ends = lane.service.log.norms_ends()
    with pytest.raises(InvalidRequest):
        lane.service.client.create_dataset(bad, budget=1.0)
    with pytest.raises(InvalidRequest):
        lane.service.client.run(lane.dataset, bad, timeout=1.0)
    assert lane.service.log.norms_ends() == ends


def test_a_hundred_thousand_users_are_charged_in_one_step(lane: Lane) -> None:
    users = np.arange(-50_000, 50_000)
    norms = np.resize([0.25, 1.0, 8.0, 0.0], users.size)  # 8.0 costs twice the budget
    decision = lane.run.charge(users, norms, noise_stddev=4.0)
    assert decision.halted.sum() == users.size // 4
    assert (decision.admitted == (norms < 8.0)).all()
    lane.service.audit()
    lane.assert_goes_on(step=2)
