"""A client of the gateway with the surface of ``Turnstile``.

The gateway has operations for what a caller does: it creates datasets, opens, charges and closes
runs, enrols rosters and reads HALTs. These go over HTTP here. The rest goes to an SDK client of the
same service, as an operator or a manager has one:

    withdraw_dataset, close_dataset, erase, set_access    for managers, who have the commands
    odometer                                              a record is for its own user: the portal
    halts that follow, or with since= or idle_timeout=    HTTP returns the events that exist

A step that is charged ahead is sent when its decision is read, since a request has one response.
Levels that a roster keeps between two steps are kept here, and sent with each step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from accounting import (
    MEASURES,
    Gaussian,
    Laplace,
    PoissonGaussian,
    PureDP,
    StepShape,
    budget_units,
)
from accounting import steps_measure as measure_of_steps
from accounting.exact.argument_checks import finite_numbers
from streams import (
    CollectTerms,
    Halt,
    InvalidRequest,
    ReleaseUnknown,
    RequestRejected,
    Turnstile,
    Unusable,
)
from streams.records import Holder, Policy, Reason, Rejected
from streams.sdk.arguments import read_mechanism
from streams.sdk.connection import Deadline
from streams.sdk.dataset_requests import access_list
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    ServiceUnavailable,
    StepContentChanged,
    TurnstileError,
    invalid_requests,
    refusal_of,
)
from tests.waiting import HANGS_AFTER

ERRORS: Mapping[int, type[TurnstileError]] = {
    400: InvalidRequest,
    422: InvalidRequest,
    502: ConflictingDecisions,
    503: ServiceUnavailable,
    504: DecisionTimeout,
}


class HttpTurnstile:
    """A client of one gateway.

    Args:
        url: of the gateway.
        operator: does what the gateway has no operation for.
        key: the private key of the caller.
    """

    def __init__(self, url: str, operator: Turnstile, key: str | None = None) -> None:
        self._address, self._operator, self._key = urlsplit(url), operator, key
        self._is_closed = False
        self._attempts: dict[tuple[str, str], str] = {}
        self.withdraw_dataset = operator.withdraw_dataset
        self.close_dataset, self.set_access = operator.close_dataset, operator.set_access
        self.erase, self.odometer = operator.erase, operator.odometer

    def __enter__(self) -> HttpTurnstile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._operator.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; return the body of its response, or raise the error of its problem."""
        if self._is_closed:
            raise Unusable("closed")
        connection = HTTPConnection(
            str(self._address.hostname), self._address.port, timeout=HANGS_AFTER
        )
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise error_of(content)
        return content

    def create_dataset(self, name: str, **options: Any) -> Policy:
        options.pop("timeout", None)
        if isinstance(options.get("parents"), str):
            options["parents"] = [options["parents"]]
        if (whole := options.get("share_of")) is not None:
            options["share_of"] = whole.dataset
        return policy_of(self.ask("POST", "/v1/datasets", {"name": name, **options}))

    def run(self, dataset: str, name: str, **options: Any) -> HttpRun:
        path = f"/v1/datasets/{dataset}/runs/{name}"
        opened = self.ask("POST", f"{path}/attempts", msgspec.to_builtins(options))
        self._attempts[dataset, name] = opened["attempt"]
        return HttpRun(self, path, opened)

    def send_norms(
        self,
        dataset: str,
        run: str,
        step: int,
        users: Any,
        norms: Any,
        *,
        attempt: int | None = None,
    ) -> None:
        body = {"users": listed(users), "norms": listed(norms), "attempt": attempt}
        sent = self.ask("POST", f"/v1/datasets/{dataset}/runs/{run}/steps/{step}/norms", body)
        assert sent == {"users": len(body["users"])}

    def close_run(self, dataset: str, name: str) -> bool:
        try:
            closed = self.ask("POST", f"/v1/datasets/{dataset}/runs/{name}/close", {})["closed"]
        except RequestRejected as error:
            if error.reason is not Reason.UNKNOWN_RUN:
                raise
            return False
        return bool(closed)

    def halts(
        self,
        dataset: str | None = None,
        *,
        run: str | None = None,
        follow: bool = True,
        **more: Any,
    ) -> Iterator[Halt]:
        if follow or more or dataset is None:
            return self._operator.halts(dataset, run=run, follow=follow, **more)
        paths = [
            f"/v1/datasets/{there}/runs/{name}/attempts/{attempt}/halts"
            for (there, name), attempt in self._attempts.items()
            if there == dataset and run in (None, name)
        ]
        listed = [self.ask("GET", path) for path in paths]
        assert all(each["is_complete"] for each in listed)
        return (msgspec.convert(halt, Halt) for each in listed for halt in each["halts"])


class HttpRun:
    """An attempt of a run."""

    def __init__(self, client: HttpTurnstile, path: str, opened: Any) -> None:
        self._client, self._run = client, path
        self._path = f"{path}/attempts/{opened['attempt']}"
        self.dataset, self.name, self.attempt = opened["dataset"], opened["run"], opened["number"]
        self.step, self.interrupted = opened["step"], opened["interrupted"]
        self.min_separation = opened["min_separation"]
        self.collect = opened["collect"] and CollectTerms(**opened["collect"])
        self.policy = policy_of(opened["policy"])
        self.outer = tuple(map(policy_of, opened["outer"]))
        self._failure: TurnstileError | None = None
        self._is_closed = self.is_ahead = False

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", interrupted" if self.interrupted else ""
        where = f"attempt {self.attempt}, step {self.step}"
        return f"<Run {self.name!r} of dataset {self.dataset!r}: {where}{state}>"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        if self._failure is not None or self.is_ahead:
            raise Unusable(f"this attempt has failed or charged ahead: {self._failure}")
        try:
            return self._client.ask(method, f"{self._path}{path}", body)
        except RequestRejected as error:
            if not (self.interrupted and isinstance(error, StepContentChanged)):
                self._failure = error
            raise

    def charge(
        self,
        users: Any,
        norms: Any,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
        reserve: float = 0.0,
        timeout: float = HANGS_AFTER,
    ) -> Any:
        Deadline.after(timeout)
        if noise_stddev is None:
            with invalid_requests():
                mechanism = read_mechanism(None, mechanism, clip_norm)
        body = {
            "users": listed(users),
            "norms": listed(norms),
            "mechanism": noise(mechanism or Gaussian(noise_stddev)),
            "clip_norm": clip_norm,
            "reserve": reserve,
        }
        return self._decision_of(self.ask("POST", f"/steps/{self.step}", body))

    def charge_collected(self, *, noise_stddev: float | None = None, mechanism: Any = None) -> Any:
        body = {"mechanism": noise(mechanism or Gaussian(noise_stddev))}
        decided = self.ask("POST", f"/steps/{self.step}/collected", body)
        decision = self._decision_of(decided)
        decision.users = decided["users"]
        rows = zip(decision.users, decision.granted.tolist(), decided["admitted"], strict=True)
        decision.norms = {user: norm for user, norm, is_admitted in rows if is_admitted}
        return decision

    def _decision_of(self, decided: Any) -> Any:
        self.decided()
        halts = {halt["position"]: halt["reason"] for halt in decided["halted"]}
        reasons = [halts.get(position) for position in range(len(decided["admitted"]))]
        admitted = np.array(decided["admitted"], dtype=bool)
        assert (~admitted).nonzero()[0].tolist() == sorted(halts)
        return SimpleNamespace(
            step=decided["step"],
            decision_ids=tuple(decided["decision_ids"]),
            admitted=admitted,
            granted=np.array(decided["granted"]),
            exhausted=np.array(decided["exhausted"], dtype=bool),
            halted=~admitted,
            too_soon=np.array([reason == "too-soon" for reason in reasons], dtype=bool),
            erased=np.array([reason == "erased" for reason in reasons], dtype=bool),
        )

    def decided(self) -> None:
        self.step, self.interrupted = self.step + 1, False

    def charge_ahead(self, users: Any, norms: Any, **options: Any) -> HttpAhead:
        return HttpAhead(self, lambda: self.charge(users, norms, **options))

    def enrol(self, users: Any, *, clip_norm: float, levels: int = 100) -> HttpRoster:
        grid = {"users": listed(users), "clip_norm": clip_norm, "levels": levels}
        assert self.ask("POST", "/roster", grid) == {"members": len(grid["users"])}
        return HttpRoster(self, grid)

    def abandon(self) -> None:
        if self.interrupted:
            state = self.ask("POST", f"/steps/{self.step}/abandon", {})
            self.step, self.interrupted = state["step"], state["interrupted"]

    def check_attempt(self) -> None:
        assert self.ask("GET", "")["step"] == self.step

    def close(self) -> None:
        if not self._is_closed:
            self._client.ask("POST", f"{self._run}/close", {})
            self._is_closed = True


class HttpRoster:
    """The roster of a run."""

    def __init__(self, run: HttpRun, grid: Mapping[str, Any]) -> None:
        self._run, self._grid = run, grid
        self._norms: list[float | None] = [None] * len(grid["users"])

    def set_norms(self, norms: Any, positions: Any = None) -> None:
        places = range(len(self._norms)) if positions is None else positions
        for place, norm in zip(places, listed(norms), strict=True):
            self._norms[place] = norm

    def observe(self, positions: Any, norms: Any) -> None:
        if not self._run.policy.has_sampled_levels:
            raise InvalidRequest("levels must not follow samples")
        self.set_norms(norms, positions)

    def charge(self, **options: Any) -> Any:
        return self._send(self._body(**options))

    def charge_ahead(self, **options: Any) -> HttpAhead:
        body = self._body(**options)  # norms that are set from here on are for later steps
        return HttpAhead(self._run, lambda: self._send(body))

    def _body(
        self,
        *,
        noise_stddev: float | None = None,
        sampling_rate: float = 1.0,
        norms: Any = None,
        mechanism: Any = None,
    ) -> dict[str, Any]:
        clip_norm = self._grid["clip_norm"]
        chosen = read_mechanism(noise_stddev, mechanism, clip_norm, sampling_rate)
        if norms is not None:
            self.set_norms(norms)
        asked = None
        if any(norm is not None for norm in self._norms):
            asked = [clip_norm if norm is None else norm for norm in self._norms]
        if norms is None and self._run.interrupted:
            asked = None  # the step that was handed back has the norms that it was charged with
        return {**self._grid, "mechanism": noise(chosen), "norms": asked}

    def _send(self, body: dict[str, Any]) -> Any:
        decided = self._run.ask("POST", f"/roster/steps/{self._run.step}", body)
        self._run.decided()
        return SimpleNamespace(
            **{
                name: np.array(content) if isinstance(content, list) else content
                for name, content in decided.items()
            }
            | {"decision_ids": tuple(decided["decision_ids"])}
        )


class HttpAhead:
    """A step that is charged when its decision is read."""

    def __init__(self, run: HttpRun, charge: Any) -> None:
        self._run, self._charge, self._decided = run, charge, None
        run.is_ahead = True

    def decision(self) -> Any:
        if self._decided is None:
            self._run.is_ahead = False
            self._decided = self._charge()
        return self._decided


def error_of(problem: Any) -> TurnstileError:
    """Return the SDK's error for a problem."""
    reason, detail = problem["reason"], problem["detail"]
    if reason == "release-unknown":
        return ReleaseUnknown("r", problem["released"], problem["newest"])
    if reason not in list(Reason):
        return ERRORS[problem["status"]](detail)
    holder = problem.get("holder")
    rejected = Rejected(
        partition=problem.get("partition", 0),
        offset=0,
        reason=Reason(reason),
        detail=detail,
        record=b"",
        current_attempt=problem.get("current_attempt"),
        held=problem.get("held") and policy_of(problem["held"]),
        holder=holder and Holder(**holder),
    )
    return refusal_of(rejected)


def policy_of(dataset: Mapping[str, Any]) -> Policy:
    """Return the policy in a response."""
    given = {name: value for name, value in dataset.items() if value is not None}
    given.pop("closed", None)
    if given["measure"] != "steps":
        row = MEASURES[given["measure"]]
    else:
        row = measure_of_steps(StepShape(given["sampling_rate"], given["noise_multiplier"]))
    for name in ("budget", "odometer_step"):
        numbers = finite_numbers(name, given[name])
        given[name] = [budget_units(number, row.power) for number in numbers]
    if "allow" in given:
        given["allow"] = msgspec.to_builtins(access_list(given["allow"]), builtin_types=(bytes,))
    return msgspec.convert(given, Policy)


def listed(values: Any) -> list[Any]:
    """Return ids or numbers as JSON has them."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def noise(mechanism: Any) -> dict[str, Any]:
    """Return a mechanism as JSON has it."""
    match mechanism:
        case Gaussian():
            return {"type": "gaussian", "noise_stddev": mechanism.noise_stddev}
        case Laplace():
            return {"type": "laplace", "scale": mechanism.scale}
        case PureDP():
            return {"type": "pure-dp"}
        case PoissonGaussian():
            return {
                "type": "poisson-gaussian",
                "noise_stddev": mechanism.noise_stddev,
                "sampling_rate": mechanism.sampling_rate,
            }
    raise InvalidRequest(f"{mechanism!r} cannot be charged")
