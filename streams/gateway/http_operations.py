"""The operations of the gateway: a method and a path, the bodies, and the calls of the SDK.

Each operation of an attempt asks all partitions for its state and continues it
(``Turnstile.resume``). So no operation depends on an earlier one at the same gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from threading import BoundedSemaphore
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import asdict

from accounting import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from streams.gateway.messages import (
    AttemptHandle,
    AttemptState,
    Balance,
    BalanceList,
    BalancesAsked,
    Body,
    Budget,
    BudgetList,
    ChargeDecision,
    CollectedChargeDecision,
    Dataset,
    DatasetList,
    EnrolledRoster,
    GaussianNoise,
    HaltedUser,
    HaltList,
    LaplaceNoise,
    NewAttempt,
    NewCharge,
    NewCollectedCharge,
    NewDataset,
    NewNorms,
    NewRoster,
    NewRosterCharge,
    PureNoise,
    RosterStepDecision,
    RunIsOver,
    SampledGaussianNoise,
    SentNorms,
)
from streams.gateway.problems import ProblemReason, RequestFailed, dataset_of
from streams.ledger.partition_errors import PartitionError
from streams.operations.status import DatasetStatus
from streams.records import Counter, Name, Reason, Rejection, User, halt_reason
from streams.records.users import normal_form
from streams.sdk.client import Turnstile
from streams.sdk.connection import Deadline
from streams.sdk.decisions import StepDecision, refusing_budget
from streams.sdk.errors import RequestRejected, RunIsClosed, invalid_requests
from streams.sdk.roster import Roster
from streams.sdk.run import Run

Response = TypeVar("Response", bound=msgspec.Struct)

MOST_HALTS: Final = 100_000
"""The maximum number of HALT events of a response."""

PARAMETERS: Final[Mapping[str, Any]] = {
    "dataset": Name,
    "run": Name,
    "attempt": AttemptHandle,
    "step": Counter,
}
"""The type of each parameter in a path."""


class StoredFacts(NamedTuple):
    """Reads the stored state of the service."""

    datasets: Callable[[], Mapping[str, DatasetStatus]]
    balances: Callable[[str, Sequence[User]], Sequence[Mapping[str, Any]]]


class GatewayCall(NamedTuple):
    """One request, and what is needed to answer it.

    Attributes:
        deadline: until when all partitions have to answer.
        place: the parameters of the path.
    """

    turnstile: Turnstile
    stored: StoredFacts
    deadline: Deadline
    place: Mapping[str, Any]
    body: Any

    def resumed(self, step: int | None = None) -> Run:
        """Return the run in the path, continued at a step."""
        number, token = self.place["attempt"].split("-")
        return self.turnstile.resume(
            self.place["dataset"],
            self.place["run"],
            int(number),
            token,
            step=step,
            timeout=self.deadline.left(),
        )


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    Attributes:
        method: GET or POST.
        path: with the parameters in braces.
        answer: the function that does it. Its docstring describes the operation.
        body: the type of the body of a request; None if it has none.
        for_curator: only the curator may send it.
    """

    method: str
    path: str
    answer: Callable[[GatewayCall], msgspec.Struct]
    body: type[Body] | None = None
    for_curator: bool = False

    @property
    def response(self) -> type[msgspec.Struct]:
        """Return the type of the body of a response."""
        found: type[msgspec.Struct] = get_type_hints(self.answer)["return"]
        return found


def create_dataset(call: GatewayCall) -> Dataset:
    """Create a dataset with a policy that never changes, or confirm that it has this policy."""
    given = asdict(call.body)
    name, share_of = given.pop("name"), given.pop("share_of")
    whole = None if share_of is None else _known(call.stored.datasets(), share_of).policy
    policy = call.turnstile.create_dataset(
        name, **given, share_of=whole, timeout=call.deadline.left()
    )
    return dataset_of(policy)


def show_dataset(call: GatewayCall) -> Dataset:
    """Show the policy of a dataset."""
    found = _known(call.stored.datasets(), call.place["dataset"])
    return dataset_of(found.policy, closed=found.closed)


def list_datasets(call: GatewayCall) -> DatasetList:
    """List all datasets, by name."""
    found = sorted(call.stored.datasets().items())
    return DatasetList(datasets=[dataset_of(one.policy, closed=one.closed) for _, one in found])


def show_budget(call: GatewayCall) -> BudgetList:
    """Show the public part of the budgets that a charge to a dataset draws on."""
    datasets = call.stored.datasets()
    names = [call.place["dataset"]]
    for name in names:  # which grows
        policy = _known(datasets, name).policy
        names += [parent for parent in policy.parents or () if parent not in names]
    return BudgetList(
        budgets=[
            Budget(
                policy=dataset_of(found.policy, closed=found.closed),
                worst_case_left=found.worst_case_left,
                holder=found.holder,
            )
            for found in map(datasets.__getitem__, names)
        ]
    )


_reading_balances, _reading_halts = BoundedSemaphore(1), BoundedSemaphore(2)
"""A reader of balances loads a partition's state, and one of HALTs all that Kafka has of them."""


@contextmanager
def _one_of(readers: BoundedSemaphore) -> Iterator[None]:
    """Take a place among the readers.

    Raises:
        RequestFailed: none is free.
    """
    if not readers.acquire(blocking=False):
        detail = "other callers read this at this time: send this request again"
        raise RequestFailed(ProblemReason.TOO_MANY_REQUESTS, detail)
    try:
        yield
    finally:
        readers.release()


def list_balances(call: GatewayCall) -> BalanceList:
    """List the balances of users. For the curator only: they depend on the users' data."""
    dataset, users = call.place["dataset"], call.body.users
    known = [normal_form(user) if isinstance(user, str) else user for user in users]
    try:
        with _one_of(_reading_balances):
            found = call.stored.balances(dataset, list(dict.fromkeys(known)))
    except Rejection as rejection:
        raise RequestRejected(rejection.reason, rejection.detail, None) from None
    except PartitionError as error:  # such as a missing erasure key
        raise RequestFailed(ProblemReason.SERVICE_UNAVAILABLE, str(error)) from None
    return BalanceList(balances=[msgspec.convert(balance, Balance) for balance in found])


def open_attempt(call: GatewayCall) -> AttemptState:
    """Open a run, new or resumed: a new attempt, which fences all earlier ones."""
    dataset, run = call.place["dataset"], call.place["run"]
    timeout = call.deadline.left()
    return _state(call.turnstile.run(dataset, run, **asdict(call.body), timeout=timeout))


def show_attempt(call: GatewayCall) -> AttemptState:
    """Check that the attempt is the newest, and show its next step."""
    return _state(call.resumed())


def close_run(call: GatewayCall) -> RunIsOver:
    """Close a run permanently: it can never be charged or opened again."""
    dataset, run = call.place["dataset"], call.place["run"]
    if not call.turnstile.close_run(dataset, run, timeout=call.deadline.left()):
        detail = f"run {run!r} of dataset {dataset!r} was never opened"
        raise RequestRejected(Reason.UNKNOWN_RUN, detail, None)
    return RunIsOver(dataset=dataset, run=run)


def charge(call: GatewayCall) -> ChargeDecision:
    """Charge one step. The same request again returns the same decision, charged once."""
    run, body = call.resumed(call.place["step"]), call.body
    decision = run.charge(
        body.users,
        body.norms,
        mechanism=_mechanism(body.mechanism),
        clip_norm=body.clip_norm,
        reserve=body.reserve,
        timeout=call.deadline.left(),
    )
    return _filled(ChargeDecision, decision, **_names(call.place), halted=_halted(run, decision))


def send_norms(call: GatewayCall) -> SentNorms:
    """Send norms to a run that collects them. Each norm counts once, or is rejected, alone."""
    users = call.body.users
    call.turnstile.send_norms(
        **call.place,
        users=users,
        norms=call.body.norms,
        attempt=call.body.attempt,
        timeout=call.deadline.left(),
    )
    return SentNorms(users=len(users))


def charge_collected(call: GatewayCall) -> CollectedChargeDecision:
    """Charge one step for the norms that were collected. The same request again is charged once."""
    run = call.resumed(call.place["step"])
    decision = run.charge_collected(
        mechanism=_mechanism(call.body.mechanism),
        reserve=call.body.reserve,
        timeout=call.deadline.left(),
    )
    halted = _halted(run, decision)
    return _filled(CollectedChargeDecision, decision, **_names(call.place), halted=halted)


def abandon(call: GatewayCall) -> AttemptState:
    """Give up a step that was charged before. Its charges remain; never release it."""
    run = call.resumed(call.place["step"])
    run.abandon(call.deadline.left())
    return _state(run)


def enrol(call: GatewayCall) -> EnrolledRoster:
    """Enrol users on the roster: the same ones in the same order, new ones at the end."""
    return EnrolledRoster(members=len(_roster(call, call.resumed())))


def charge_roster(call: GatewayCall) -> RosterStepDecision:
    """Charge one step to all users of the roster; the same request again is charged once."""
    roster = _roster(call, call.resumed(call.place["step"]))
    step = roster.charge(
        mechanism=_mechanism(call.body.mechanism),
        norms=call.body.norms,
        timeout=call.deadline.left(),
    )
    return _filled(RosterStepDecision, step, **_names(call.place))


def _known(datasets: Mapping[str, DatasetStatus], name: str) -> DatasetStatus:
    if name not in datasets:
        raise RequestRejected(Reason.UNKNOWN_DATASET, f"dataset {name!r} does not exist", None)
    return datasets[name]


def list_halts(call: GatewayCall) -> HaltList:
    """List the HALT events of a run, for a caller that may charge it."""
    with suppress(RunIsClosed):  # workers have checked the caller's right before they say so
        call.resumed()
    dataset, run = call.place["dataset"], call.place["run"]
    with _one_of(_reading_halts):
        events = call.turnstile.halts(dataset, run=run, follow=False)
        halts = list(islice(events, MOST_HALTS + 1))
    return HaltList(halts=halts[:MOST_HALTS], is_complete=len(halts) <= MOST_HALTS)


def _filled(kind: type[Response], source: object, **fields: Any) -> Response:
    """Return a body with these fields; each of the others is the attribute of its name."""
    for name in kind.__struct_fields__:
        if name not in fields:
            value = getattr(source, name)
            fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return kind(**fields)


def _names(place: Mapping[str, Any]) -> dict[str, str]:
    return {name: place[name] for name in ("dataset", "run", "attempt")}


def _state(run: Run) -> AttemptState:
    return _filled(
        AttemptState,
        run,
        run=run.name,
        attempt=f"{run.attempt}-{run.token}",
        number=run.attempt,
        policy=dataset_of(run.policy),
        outer=[dataset_of(policy) for policy in run.outer],
    )


def _halted(run: Run, decision: StepDecision) -> list[HaltedUser]:
    budgets = [run.policy.dataset, *(policy.dataset for policy in run.outer)]
    positions = decision.halted.nonzero()[0].tolist()
    reasons = decision.reasons[decision.halted].tolist()
    return [
        HaltedUser(
            position=position,
            reason=halt_reason(reason),
            refused_by=refusing_budget(reason, budgets),
        )
        for position, reason in zip(positions, reasons, strict=True)
    ]


def _roster(call: GatewayCall, run: Run) -> Roster:
    body: NewRoster = call.body
    return run.enrol(
        body.users,
        clip_norm=body.clip_norm,
        levels=body.levels,
        timeout=call.deadline.left(),
    )


def _mechanism(
    noise: GaussianNoise | LaplaceNoise | PureNoise | SampledGaussianNoise,
) -> Mechanism:
    with invalid_requests():
        match noise:
            case GaussianNoise():
                return Gaussian(noise.noise_stddev)
            case LaplaceNoise():
                return Laplace(noise.scale)
            case PureNoise():
                return PureDP()
            case SampledGaussianNoise():
                return PoissonGaussian(noise.noise_stddev, noise.sampling_rate)


_DATASET = "/v1/datasets/{dataset}"
_RUN = f"{_DATASET}/runs/{{run}}"
_ATTEMPT = f"{_RUN}/attempts/{{attempt}}"

OPERATIONS: Final = (
    Operation("GET", "/v1/datasets", list_datasets),
    Operation("POST", "/v1/datasets", create_dataset, NewDataset),
    Operation("GET", _DATASET, show_dataset),
    Operation("GET", f"{_DATASET}/budget", show_budget),
    Operation("POST", f"{_DATASET}/balances", list_balances, BalancesAsked, for_curator=True),
    Operation("POST", f"{_RUN}/attempts", open_attempt, NewAttempt),
    Operation("POST", f"{_RUN}/close", close_run),
    Operation("GET", _ATTEMPT, show_attempt),
    Operation("POST", f"{_ATTEMPT}/steps/{{step}}", charge, NewCharge),
    Operation("POST", f"{_RUN}/steps/{{step}}/norms", send_norms, NewNorms),
    Operation("POST", f"{_ATTEMPT}/steps/{{step}}/collected", charge_collected, NewCollectedCharge),
    Operation("POST", f"{_ATTEMPT}/steps/{{step}}/abandon", abandon),
    Operation("POST", f"{_ATTEMPT}/roster", enrol, NewRoster),
    Operation("POST", f"{_ATTEMPT}/roster/steps/{{step}}", charge_roster, NewRosterCharge),
    Operation("GET", f"{_ATTEMPT}/halts", list_halts),
)
"""All operations. The routes of the server and the OpenAPI document are made from this table."""
