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
from typing import Any, Unpack

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET
from msgspec.structs import asdict

from accounting import (
    MEASURES,
    InvalidInput,
    Measure,
    StepShape,
    candidate_orders,
    steps_measure,
)
from accounting.exact.argument_checks import finite_numbers, positive_finite
from accounting.exact.invalid_input import quoted
from accounting.exact.units import UNIT_BITS, budget_units
from streams.ledger.authorization import check_access
from streams.ledger.validation import check_policy, check_share
from streams.records import (
    DELTA,
    AccessList,
    AccessSet,
    Allowed,
    Answer,
    CloseDataset,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    Erase,
    Erased,
    Name,
    Policy,
    Reason,
    Right,
    RunOpened,
    SetAccess,
    User,
    WithdrawDataset,
)
from streams.records.signatures import InvalidKey, RequestSigner, public_bytes, public_text
from streams.records.terms import TERMS, PolicyTerms, choices_of
from streams.records.users import partitions_of
from streams.sdk.arguments import read_users
from streams.sdk.connection import Connection, Deadline
from streams.sdk.errors import (
    ErasedInPart,
    InvalidRequest,
    PartitionsDisagree,
    PolicyChanged,
    RequestRejected,
    invalid_requests,
)
from streams.sdk.step_layout import known_as

_ODOMETER_STEPS = 8


def policy_from(
    name: str, *, partitions: int, pseudonyms: str | None = None, **terms: Unpack[PolicyTerms]
) -> Policy:
    """Return the policy for these terms; budgets are rounded down.

    Args:
        pseudonyms: the fingerprint of the key of the users' pseudonyms, if they have some.

    Raises:
        InvalidRequest: the terms make no policy.
        TypeError: a term does not exist.
    """
    if unknown := sorted(terms.keys() - TERMS.keys()):
        raise TypeError(f"create_dataset() got an unexpected keyword argument {unknown[0]!r}")
    given: dict[str, Any] = {term: row.default for term, (_, row) in TERMS.items()}
    given |= {term: value for term, value in terms.items() if value is not None}
    parents = given["parents"]
    parents = [parents] if isinstance(parents, str) else list(parents)
    check_names(name, *parents)
    if pseudonyms is not None and given["user_ids"] not in (None, "integer"):
        raise InvalidRequest(
            f"user_ids is {quoted(given['user_ids'])}; with a pseudonym_key all users are integers "
            "in the log: leave user_ids out"
        )
    with invalid_requests():
        found = {
            **given,
            "dataset": name,
            "partitions": partitions,
            "pseudonyms": pseudonyms,
            "parents": sorted(set(parents)) or None,
            "assume_independent_timing": given["assume_independent_timing"] or None,
            "allow": None if given["allow"] is None else access_list(given["allow"]),
            **_budget_fields(given),
        }
        if (whole := given["share_of"]) is not None:
            found["share_of"] = whole.dataset
        # The types of the wire and the checks of the ledger: what a worker would reject is
        # rejected here.
        policy = Policy(
            **{
                field.name: _converted(field.name, found[field.name], field.type)
                for field in msgspec.structs.fields(Policy)
                if found.get(field.name) is not None
            }
        )
        check_policy(policy)
        if whole is not None:
            check_share(policy, whole, ())
    return policy


def _budget_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy that say in what its budget is counted, and how large it is."""
    budget, epsilon, delta, orders, whole, share = (
        given[term] for term in ("budget", "epsilon", "delta", "orders", "share_of", "share")
    )
    ways = budget is not None, epsilon is not None or delta is not None, whole is not None
    if (whole is None) != (share is None):
        raise InvalidRequest("share_of and share belong together: give both")
    if ways.count(True) != 1:
        raise InvalidRequest("give either budget, or epsilon and delta, or share_of and share")
    fields: dict[str, Any] = {}
    if whole is not None:
        if not isinstance(whole, Policy):
            raise InvalidRequest(
                f"share_of is {quoted(whole)}; give the policy that create_dataset returned"
            )
        for term in ("orders", "sampling_rate", "noise_multiplier"):
            if given[term] is not None:
                raise InvalidRequest(f"{term} follows from share_of: leave it out")
            fields[term] = getattr(whole, term) or None
        row, fields["measure"] = whole.row, whole.measure
        fields["budget"] = _share_of_units(whole, share)
    else:
        row = _row(given)
        if row.shape is not None:
            fields["sampling_rate"] = row.shape.sampling_rate
            fields["noise_multiplier"] = row.shape.noise_multiplier
        if epsilon is not None and delta is None and not row.has_delta:
            delta = DELTA  # the budget does not depend on it
        argument = "budget"
        if budget is None:
            if epsilon is None or delta is None:
                raise InvalidRequest(
                    "epsilon and delta belong together: give both. A budget of epsilon alone is "
                    'one of pure DP: measure="pure-dp"'
                )
            if row.per_order and orders is None:
                fields["per_user_order"] = True
                orders, budget = candidate_orders(epsilon, delta)
            else:
                budget = row.budgets_for(epsilon, delta, orders)
            argument = (
                f"epsilon is {epsilon:g} at delta {delta:g}: the {row.name} budget that follows"
            )
        fields["budget"] = _units(argument, row, budget)
        if row.shape is not None and any(units % 2**UNIT_BITS for units in fields["budget"]):
            raise InvalidInput("budget", budget, "a whole number of steps")
        fields["orders"] = None if orders is None else finite_numbers("orders", orders)
    if (step := given["odometer_step"]) is None:
        fields["odometer_step"] = [max(1, units // _ODOMETER_STEPS) for units in fields["budget"]]
    else:
        fields["odometer_step"] = _units("odometer_step", row, step)
    return fields


def _row(given: Mapping[str, Any]) -> Measure:
    """Return the measure of a new dataset."""
    measure = given["measure"]
    _converted("measure", measure, TERMS["measure"][0])
    if measure in MEASURES:
        return MEASURES[measure]
    if given["noise_multiplier"] is None:
        raise InvalidRequest(f"measure {measure} needs noise_multiplier: give it")
    rate = given["sampling_rate"]
    return steps_measure(StepShape(1.0 if rate is None else rate, given["noise_multiplier"]))


def _converted(argument: str, value: object, kind: Any) -> Any:
    """Return a value as a field of a policy has it.

    Raises:
        InvalidRequest: no such field has this value.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        allowed = ", ".join(choices_of(kind))
        problem = f"it must be one of {allowed}" if allowed else str(error)
        raise InvalidRequest(f"{argument} is {quoted(value)}: {problem}") from error


def _share_of_units(whole: Policy, share: float) -> list[int]:
    """Return a part of a budget in whole units, or in whole steps, rounded down.

    Raises:
        InvalidInput: a share outside (0, 1], or less than one unit or step.
    """
    part = Fraction(positive_finite("share", share))
    if part > 1:
        raise InvalidInput("share", share, "above 0 and at most 1")
    if whole.row.shape is None:
        units = [int(units * part) for units in whole.budget]
    else:
        # A float such as 1/3 may be a little too small. The ledger compares the sum of all shares.
        units = [int(whole.steps * part + Fraction(1, 10**9)) << UNIT_BITS]
    if not all(units):
        raise InvalidInput("share", share, "large enough for one unit of the budget, or one step")
    return units


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
        request = WithdrawDataset(dataset=name, request=connection.new_token())
        connection.ask(dict.fromkeys(partitions, request), DatasetWithdrawn, deadline)


def close(connection: Connection, name: str, deadline: Deadline) -> list[str]:
    """Close a dataset and those nested in it, as ``Turnstile.close_dataset`` does."""
    check_names(name)
    home, others = _home_and_others(name, connection.partitions)
    datasets: set[str] = set()
    # The home partition first, so that no creation can complete the dataset meanwhile.
    for partitions in ([home], others):
        request = CloseDataset(dataset=name, request=connection.new_token())
        replies = connection.survey(dict.fromkeys(partitions, request), DatasetClosed, deadline)
        for reply in replies.values():
            if isinstance(reply, DatasetClosed):
                datasets.update(reply.datasets)
            elif reply.reason is not Reason.UNKNOWN_DATASET:
                raise reply
            elif partitions == [home]:
                detail = f"dataset {quoted(name)} does not exist"
                raise RequestRejected(reply.reason, detail, home)
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
    log = UNSET if policy.allow is UNSET else connection.log
    request = CreateDataset(request=connection.new_token(), policy=policy, log=log)
    return connection.ask(dict.fromkeys(partitions, request), DatasetCreated, deadline)


def _home_and_others(name: str, partitions: int) -> tuple[int, list[int]]:
    home = int(partitions_of([name], partitions)[0])
    return home, [partition for partition in range(partitions) if partition != home]


def _units(argument: str, measure: Measure, numbers: npt.ArrayLike) -> list[int]:
    """Return budgets in whole units, rounded down."""
    found = finite_numbers(argument, numbers)
    if not all(number > 0 for number in found):
        raise InvalidRequest(f"{argument} is {np.asarray(numbers).tolist()}; it must be positive")
    return [budget_units(number, measure.power, argument) for number in found]


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
    given = {}
    for text, rights in allow.items():
        if isinstance(rights, str):
            raise InvalidRequest(f"the rights of a key are {quoted(rights)}; they must be a list")
        try:
            key = public_bytes(text)
        except InvalidKey as error:
            raise InvalidRequest(f"allow has a key that is none: {error}") from None
        given[key] = sorted(set(rights))
    entries = [{"key": key, "rights": rights} for key, rights in sorted(given.items())]
    listed: AccessList = _converted("allow", entries, AccessList)
    with invalid_requests():
        check_access(listed)
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
    request = SetAccess(
        dataset=name,
        request=connection.new_token(),
        number=connection.now(),
        allow=list(allow),
        log=connection.log,
    )
    log = None if copied_from is None else _log_of(copied_from)
    everywhere = dict.fromkeys(range(connection.partitions), request)
    connection.ask(everywhere, AccessSet, deadline, log=log)


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
    pseudonyms = connection.pseudonyms
    known = known_as(read_users([user])[0], pseudonyms)
    request = Erase(
        request=connection.new_token(),
        user=known,
        dataset=UNSET if dataset is None else dataset,
        pseudonyms=UNSET if pseudonyms is None else pseudonyms.fingerprint,
        hidden=True,
    )
    home = int(partitions_of([known], connection.partitions)[0])
    answer = connection.ask({home: request}, Erased, deadline)[home]
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
        have, want = (f"{one.epsilon(delta):.6g}" for one in (held, asked))
        if have != want:
            found.append(f"epsilon at delta {delta:g} is {have}, not {want}")
    return "; ".join(found)
