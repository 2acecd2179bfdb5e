"""Datasets: make a policy in whole units of a guarantee, and create it in all partitions.

The home partition, where the hash of the dataset's name lies, decides the creation. It is asked
first, and the others follow it. A client that stops in between leaves a dataset in some partitions
only, which cannot be charged. Any client completes it by creating it with the same policy, or
withdraws it as long as it is unused. A withdrawal ends at the home partition, where a creation
begins. So a dataset whose withdrawal was interrupted can be completed or withdrawn in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, to_builtins
from msgspec.structs import asdict

from accounting import (
    MEASURES,
    InvalidInput,
    Measure,
    MeasureName,
    StepShape,
    candidate_orders,
    steps_measure,
)
from accounting.exact.errors import quoted
from accounting.exact.units import UNIT_BITS, budget_units
from accounting.exact.validation import finite_numbers, positive_finite
from streams.ledger.authorization import check_access
from streams.ledger.validation import check_policy
from streams.records import (
    DELTA,
    AccessList,
    Allowed,
    Answer,
    CloseDataset,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    Erase,
    Erased,
    Name,
    OnExhaustion,
    Policy,
    Reason,
    Rejection,
    Right,
    RunOpened,
    SetAccess,
    User,
    UserIdKind,
    WithdrawDataset,
    encode,
)
from streams.records.signatures import InvalidKey, RequestSigner, public_bytes, public_text
from streams.records.users import normal_form, partitions_of
from streams.sdk.arguments import read_users
from streams.sdk.connection import Connection, Deadline
from streams.sdk.errors import (
    ConflictingDecisions,
    ErasedInPart,
    InvalidRequest,
    PartitionsDisagree,
    PolicyChanged,
    RequestRejected,
    invalid_requests,
)

_ODOMETER_STEPS = 8


def policy_from(
    name: str,
    *,
    partitions: int,
    measure: MeasureName,
    epsilon: float | None = None,
    delta: float | None = None,
    budget: npt.ArrayLike | None = None,
    orders: Sequence[float] | npt.NDArray[np.float64] | None = None,
    odometer_step: npt.ArrayLike | None = None,
    on_exhaustion: OnExhaustion = "halt",
    user_ids: UserIdKind | None = None,
    parents: str | Sequence[str] = (),
    pseudonyms: str | None = None,
    allow: AccessList | None = None,
    share_of: Policy | None = None,
    share: float | None = None,
    assume_independent_timing: bool = False,
    sampled_levels: bool | None = None,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
) -> Policy:
    """Return the policy for these arguments; budgets are rounded down.

    Raises:
        InvalidRequest: the arguments make no policy.
    """
    if (share_of is None) != (share is None):
        raise InvalidRequest("share_of and share belong together: give both")
    if share_of is not None and not isinstance(share_of, Policy):
        raise InvalidRequest(
            f"share_of is {quoted(share_of)}; give the policy that create_dataset returned"
        )
    if share_of is not None and share_of.per_user_order is True:
        raise InvalidRequest(
            f"dataset {share_of.dataset!r} charges each user at a per-user order, so its budgets "
            "do not add up and it has no shares: create it with orders"
        )
    given = budget is not None, epsilon is not None or delta is not None
    if pseudonyms is not None and user_ids not in (None, "integer"):
        raise InvalidRequest(
            f"user_ids is {quoted(user_ids)}; with a pseudonym_key all users are integers in the "
            "log: leave user_ids out"
        )
    parameters = orders, sampling_rate, noise_multiplier
    if share_of is not None and (any(given) or any(one is not None for one in parameters)):
        raise InvalidRequest(
            "budget, epsilon, delta, orders and the shape of steps follow from "
            "share_of and share: leave them out"
        )
    if share_of is None and (given == (True, True) or given == (False, False)):
        raise InvalidRequest("give either budget, or epsilon and delta")
    parents = [parents] if isinstance(parents, str) else sorted(set(parents))
    check_names(name, *parents)
    _check_choice("measure", measure, get_args(MeasureName))
    _check_choice("on_exhaustion", on_exhaustion, get_args(OnExhaustion))
    if user_ids is not None:
        _check_choice("user_ids", user_ids, get_args(UserIdKind))
    row = _row(measure, sampling_rate, noise_multiplier, share_of)
    if not row.has_delta and epsilon is not None and delta is None:
        delta = DELTA  # the budget does not depend on it
    per_user_order = row.per_order and orders is None and epsilon is not None
    try:
        if share_of is not None and share is not None:
            measure, orders = share_of.measure, share_of.orders or None
            units = _share_of_units(share_of, share)
        elif budget is None:
            if epsilon is None or delta is None:
                raise InvalidRequest("epsilon and delta belong together: give both")
            if per_user_order:
                orders, budget = candidate_orders(epsilon, delta)
            else:
                budget = row.budgets_for(epsilon, delta, orders)
        if budget is not None:
            given_as = "budget" if epsilon is None else _given_as(measure, epsilon, delta)
            units = _units(given_as, row, budget)
            if row.shape is not None and units[0] % 2**UNIT_BITS:
                raise InvalidRequest(f"budget is {quoted(budget)}; give a whole number of steps")
        if odometer_step is None:
            steps = [max(1, number // _ODOMETER_STEPS) for number in units]
        else:
            steps = _units("odometer_step", row, odometer_step)
        # Validate with the types of the wire, so that the client rejects what a worker would
        # reject.
        policy = msgspec.convert(
            {
                "dataset": name,
                "partitions": partitions,
                "measure": measure,
                "budget": units,
                "odometer_step": steps,
                "orders": [] if orders is None else list(map(float, orders)),
                "on_exhaustion": on_exhaustion,
                **({} if user_ids is None else {"user_ids": user_ids}),
                **({"per_user_order": True} if per_user_order else {}),
                **({"parents": parents} if parents else {}),
                **({} if pseudonyms is None else {"pseudonyms": pseudonyms}),
                **({} if allow is None else {"allow": to_builtins(allow, builtin_types=(bytes,))}),
                **({} if share_of is None else {"share_of": share_of.dataset}),
                **({"assume_independent_timing": True} if assume_independent_timing else {}),
                **({} if sampled_levels is None else {"sampled_levels": sampled_levels}),
                **_shape_fields(row),
            },
            Policy,
        )
        check_policy(policy)
    except (msgspec.ValidationError, InvalidInput, TypeError) as error:
        raise InvalidRequest(f"the arguments make no policy: {error}") from error
    except Rejection as refused:
        raise InvalidRequest(refused.detail) from refused
    return policy


def _row(
    measure: MeasureName,
    sampling_rate: float | None,
    noise_multiplier: float | None,
    share_of: Policy | None,
) -> Measure:
    """Return the measure of a new dataset.

    Raises:
        InvalidRequest: the shape of the steps is missing, or belongs to another measure.
    """
    if share_of is not None:
        return share_of.row
    if measure in MEASURES:
        if (sampling_rate, noise_multiplier) != (None, None):
            raise InvalidRequest(
                "sampling_rate and noise_multiplier belong to the measure steps, not to "
                f"{measure}: leave them out, or give measure='steps'"
            )
        return MEASURES[measure]
    if noise_multiplier is None:
        raise InvalidRequest("measure steps needs noise_multiplier: give it")
    rate = 1.0 if sampling_rate is None else sampling_rate
    with invalid_requests():
        return steps_measure(StepShape(rate, noise_multiplier))


def _shape_fields(row: Measure) -> dict[str, float]:
    """Return the fields of a policy that give the shape of counted steps."""
    if row.shape is None:
        return {}
    shape = row.shape
    return {"sampling_rate": shape.sampling_rate, "noise_multiplier": shape.noise_multiplier}


def _share_of_units(whole: Policy, share: float) -> list[int]:
    """Return a part of a budget in whole units, or in whole steps, rounded down.

    Raises:
        InvalidInput: a share outside (0, 1], or less than one step.
    """
    part = Fraction(positive_finite("share", share))
    if part > 1:
        raise InvalidInput("share", share, "above 0 and at most 1")
    if whole.row.shape is None:
        return [int(units * part) for units in whole.budget]
    # A float such as 1/3 may be a little too small. The ledger compares the sum of all shares.
    steps = int(whole.steps * part + Fraction(1, 10**9))
    if steps == 0:
        raise InvalidInput("share", share, f"large enough for one of {whole.steps} steps")
    return [steps << UNIT_BITS]


def create(
    connection: Connection, policy: Policy, deadline: Deadline, delta: float | None = None
) -> Policy:
    """Create the dataset, or complete it; return the policy that the partitions hold.

    An error message states epsilons at ``delta``. See ``Turnstile.create_dataset`` for the errors.
    """
    home, others = _home_and_others(policy.dataset, connection.partitions)
    try:
        created = _created(connection, policy, [home], deadline)[home]
    except PolicyChanged as error:
        if error.held is None:
            raise
        detail = f"dataset {policy.dataset!r} exists with another policy: " + _differences(
            error.held, policy, DELTA if delta is None else delta
        )
        reason = Reason.POLICY_CHANGED
        raise PolicyChanged(reason, detail, error.partition, held=error.held) from error
    try:
        # The other partitions must hold the policy of the home partition.
        replies = _created(connection, created.policy, others, deadline)
    except PolicyChanged as error:
        there = "another policy" if error.held is None else terms(error.held)
        raise PartitionsDisagree(
            f"home partition {home} holds {terms(created.policy)}, and partition "
            f"{error.partition} holds {there}. If the dataset is unused, withdraw it with "
            "withdraw_dataset and create it again",
            error.partition,
        ) from error
    check_agreement(policy.dataset, {home: created, **replies}, connection.partitions)
    return created.policy


def withdraw(connection: Connection, name: str, deadline: Deadline) -> None:
    """Withdraw an unused dataset, as ``Turnstile.withdraw_dataset`` does."""
    check_names(name)
    home, others = _home_and_others(name, connection.partitions)
    for partitions in (others, [home]):
        token = connection.new_token()
        request = encode(WithdrawDataset(dataset=name, request=token))
        connection.ask(token, dict.fromkeys(partitions, request), deadline)


def close(connection: Connection, name: str, deadline: Deadline) -> list[str]:
    """Close a dataset and those nested in it, as ``Turnstile.close_dataset`` does."""
    check_names(name)
    home, others = _home_and_others(name, connection.partitions)
    datasets: set[str] = set()
    # The home partition first, so that no creation can complete the dataset meanwhile.
    for partitions in ([home], others):
        token = connection.new_token()
        request = encode(CloseDataset(dataset=name, request=token))
        replies = connection.survey(token, dict.fromkeys(partitions, request), deadline)
        for reply in replies.values():
            if isinstance(reply, DatasetClosed):
                datasets.update(reply.datasets)
            elif isinstance(reply, RequestRejected) and (
                partitions == [home] or reply.reason is not Reason.UNKNOWN_DATASET
            ):
                if reply.reason is Reason.UNKNOWN_DATASET:
                    detail = f"dataset {quoted(name)} does not exist"
                    raise RequestRejected(reply.reason, detail, reply.partition) from None
                raise reply
    return sorted(datasets)


def check_names(*names: str) -> None:
    """Check that records can carry these names of datasets or runs.

    Raises:
        InvalidRequest: states what is allowed.
    """
    for name in names:
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"{quoted(name)} is no valid name of a dataset or run: use 1 to 128 letters, "
                "digits, dots, dashes and underscores, starting with a letter or digit"
            ) from error


def check_agreement(
    dataset: str, replies: Mapping[int, Answer | RequestRejected], partitions: int
) -> None:
    """Check that all partitions hold a dataset under one policy, made for that many partitions.

    Args:
        dataset: its name.
        replies: the reply of each partition.
        partitions: P of the topic.

    Raises:
        PartitionsDisagree: they do not, so the dataset cannot be charged.
        RequestRejected: the dataset does not exist, or a partition rejected the request otherwise.
    """
    refusals = {p: reply for p, reply in replies.items() if isinstance(reply, RequestRejected)}
    for refusal in refusals.values():
        if refusal.reason is not Reason.UNKNOWN_DATASET:
            raise refusal
    held = {
        p: [reply.policy, *(getattr(reply, "outer", UNSET) or [])]
        for p, reply in replies.items()
        if isinstance(reply, DatasetCreated | RunOpened)
    }
    if not held:
        raise next(iter(refusals.values()))
    first, (policy, *_) = min(held.items())
    other = next((p for p in held if held[p] != held[first]), None)
    if policy.partitions != partitions:
        raise PartitionsDisagree(
            f"dataset {dataset!r} was made for {policy.partitions} partitions, but the topic has "
            f"{partitions}: partitions were added, and some users' state would be looked for in "
            f"the wrong one. Copy the log to a topic with {policy.partitions} partitions",
            first,
        )
    if other is not None:
        here, there = next(
            pair for pair in zip(held[first], held[other], strict=False) if pair[0] != pair[1]
        )
        raise PartitionsDisagree(
            f"partition {first} holds dataset {here.dataset!r} under {terms(here)}, partition "
            f"{other} under {terms(there)}. If it is unused, withdraw it with withdraw_dataset. "
            "Otherwise stop charging it; a new dataset would let the same users begin with "
            "nothing spent",
            other,
        )
    if refusals:
        raise PartitionsDisagree(
            f"dataset {dataset!r} is incomplete: partitions {sorted(refusals)} do not hold it. "
            f"Complete it by create_dataset with the same policy: {terms(policy)}",
            min(refusals),
        )


def _created(
    connection: Connection,
    policy: Policy,
    partitions: Sequence[int],
    deadline: Deadline,
) -> dict[int, DatasetCreated]:
    token = connection.new_token()
    log = UNSET if policy.allow is UNSET else connection.log
    request = encode(CreateDataset(request=token, policy=policy, log=log))
    answers = connection.ask(token, dict.fromkeys(partitions, request), deadline)
    return {p: answer for p, answer in answers.items() if isinstance(answer, DatasetCreated)}


def _home_and_others(name: str, partitions: int) -> tuple[int, list[int]]:
    home = int(partitions_of([name], partitions)[0])
    return home, [partition for partition in range(partitions) if partition != home]


def _check_choice(argument: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise InvalidRequest(
            f"{argument} is {quoted(given)}; it must be one of {', '.join(choices)}"
        )


def _units(argument: str, measure: Measure, numbers: npt.ArrayLike) -> list[int]:
    """Return budgets in whole units, rounded down."""
    found = finite_numbers(argument, numbers)
    if not all(number > 0 for number in found):
        raise InvalidRequest(f"{argument} is {np.asarray(numbers).tolist()}; it must be positive")
    return [budget_units(number, measure.power, argument) for number in found]


def _given_as(measure: str, epsilon: float, delta: float | None) -> str:
    """Return the name of a budget that follows from epsilon, in the words of the caller."""
    return f"epsilon is {epsilon:g} at delta {delta:g}: the {measure} budget that follows"


_LOG_BYTES = 16


def signer_of(request_key: str | None) -> RequestSigner | None:
    """Return the signer of a client's requests; None if they are not signed.

    Raises:
        InvalidRequest: the key is invalid.
    """
    if not request_key:
        return None
    try:
        return RequestSigner(request_key)
    except InvalidKey as error:
        raise InvalidRequest(f"request_key: {error}") from None
    except ImportError as error:
        raise InvalidRequest(
            f"signatures need a package that is not installed ({error}): install dp-turnstile with "
            "the extra `secure`"
        ) from error


def access_list(allow: Mapping[str, Sequence[Right]]) -> AccessList:
    """Return an access list as records have it.

    Args:
        allow: public key, as ``turnstile keys new`` prints it -> its rights.

    Raises:
        InvalidRequest: a key or a right is invalid, or no key may manage the dataset.
    """
    entries = {}
    for text, rights in allow.items():
        if isinstance(rights, str):
            raise InvalidRequest(f"the rights of a key are {quoted(rights)}; they must be a list")
        try:
            key = public_bytes(text)
        except InvalidKey as error:
            raise InvalidRequest(f"allow has a key that is none: {error}") from None
        entries[key] = sorted(set(rights))
    try:
        listed = msgspec.convert(
            [{"key": key, "rights": rights} for key, rights in sorted(entries.items())], AccessList
        )
        check_access(listed)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"allow makes no access list: {error}") from error
    except Rejection as refused:
        raise InvalidRequest(refused.detail) from refused
    return listed


def set_access(
    connection: Connection,
    name: str,
    allow: Sequence[Allowed],
    deadline: Deadline,
    copied_from: str | None = None,
) -> None:
    """Replace the access list of a dataset in all partitions, as ``Turnstile.set_access`` does.

    A partition that was not reached keeps its list; the same call again completes the change.
    """
    check_names(name)
    if connection.signer is None:
        raise InvalidRequest("access lists are set by a signed request: give a request_key")
    token = connection.new_token()
    request = SetAccess(
        dataset=name,
        request=token,
        number=connection.now(),
        allow=list(allow),
        log=connection.log,
    )
    log = None if copied_from is None else _log_of(copied_from)
    everywhere = dict.fromkeys(range(connection.partitions), encode(request))
    connection.ask(token, everywhere, deadline, log=log)


def _log_of(text: str) -> bytes:
    try:
        log = bytes.fromhex(text)
    except ValueError:
        log = b""
    if len(log) != _LOG_BYTES:
        raise InvalidRequest(
            f"copied_from is {quoted(text)}; the id of a log must be 32 hexadecimal digits"
        )
    return log


def erase(connection: Connection, user: User, dataset: str | None, deadline: Deadline) -> list[str]:
    """Ask the user's partition to erase the id, as ``Turnstile.erase`` does."""
    if dataset is not None:
        check_names(dataset)
    known = read_users([user])[0]
    pseudonyms = connection.pseudonyms
    if pseudonyms is not None:
        known = pseudonyms.of_user(known)
    elif isinstance(known, str):
        known = normal_form(known)
    token = connection.new_token()
    request = Erase(
        request=token,
        user=known,
        dataset=UNSET if dataset is None else dataset,
        pseudonyms=UNSET if pseudonyms is None else pseudonyms.fingerprint,
    )
    home = int(partitions_of([known], connection.partitions)[0])
    answer = connection.ask(token, {home: encode(request)}, deadline)[home]
    if not isinstance(answer, Erased):
        raise ConflictingDecisions(
            f"partition {home} answered a request to erase a user with {type(answer).__name__}: "
            "it was not made by a worker"
        )
    if answer.not_allowed:
        raise ErasedInPart(answer.datasets, answer.not_allowed)
    return answer.datasets


def terms(policy: Policy) -> str:
    """Return a policy as arguments of ``create_dataset``, with budgets rounded down."""
    given = {name: value for name, value in arguments_of(policy).items() if value not in ([], None)}
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def arguments_of(policy: Policy) -> dict[str, Any]:
    """Return the fields of a policy, with budgets in the unit of the measure, rounded down."""
    found: dict[str, Any] = asdict(policy)
    found = {name: None if value is UNSET else value for name, value in found.items()}
    for field in ("budget", "odometer_step"):
        found[field] = [_in_unit(policy.row, units) for units in found[field]]
    if policy.allow:
        found["allow"] = {public_text(entry.key): entry.rights for entry in policy.allow}
    return found


def _in_unit(measure: Measure, units: int) -> float:
    """Return the largest float in the unit of the measure that is at most these units."""
    number = float(measure.stated(units))
    while math.floor(Fraction(number) ** measure.power * 2**UNIT_BITS) > units:
        number = math.nextafter(number, 0.0)
    return number


def _differences(held: Policy, asked: Policy, delta: float) -> str:
    """Return the fields in which two policies differ, with both values."""
    here, there = arguments_of(asked), arguments_of(held)
    found = []
    for name in there:
        is_default = name == "user_ids" and asked.user_ids is UNSET
        if getattr(held, name) != getattr(asked, name) and not is_default:
            found.append(f"{name} is {there[name]!r}, not {here[name]!r}")
    if held.budget != asked.budget and held.row.has_delta and asked.row.has_delta:
        epsilons = f"{held.epsilon(delta):.6g}, not {asked.epsilon(delta):.6g}"
        found.append(f"epsilon at delta {delta:g} is {epsilons}")
    return "; ".join(found)
