"""Validation of the caller's arguments: user ids, norms and mechanisms.

Everything is read by position, never by label: the first norm belongs to the first user, whatever
the index of a pandas object says. Lists, tuples, arrays, the columns of pandas, polars and Arrow,
and tensors are accepted. Floats are rejected as ids, text and truth values as numbers. Missing
values (None, NA, NaN) are rejected as ids and norms; contributions and features may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import (
    Gaussian,
    Laplace,
    Measure,
    Mechanism,
    PoissonGaussian,
    PureDP,
    mechanism_from,
)
from accounting.costs.mechanisms import noise_scale
from accounting.exact.argument_checks import as_float_array, nonnegative_finite
from accounting.exact.invalid_input import quoted
from streams.ledger.validation import check_covered, check_norms
from streams.records import (
    RESERVED,
    CollectAsked,
    CollectTerms,
    MechanismName,
    Policy,
    RosterMechanism,
    User,
)
from streams.records.codec import first_reserved
from streams.records.digests import cost_table_digest
from streams.records.users import UserIds
from streams.sdk.errors import InvalidRequest, invalid_requests

UsersLike: TypeAlias = ArrayLike | UserIds
"""User ids as callers may give them: see ``read_users``."""

_LEAST, _LARGEST = -(2**63), 2**63 - 1
_LONGEST_ID = 256


def read_users(users: object) -> UserIds:
    """Return a copy of user ids, as the caller spells them.

    Raises:
        InvalidRequest: an id is invalid, or the container has no order.
    """
    if isinstance(users, UserIds):
        return users
    elements = elements_of("users", users)
    if isinstance(elements, list):
        return _ids(elements)
    if elements.dtype.kind == "f":
        raise InvalidRequest(
            f"users are {elements.dtype} numbers, which are no ids. Tables with missing ids turn "
            "integers into floats: drop those rows and convert with astype('int64')"
        )
    if elements.ndim != 1:
        raise InvalidRequest(f"users has shape {elements.shape}; it must be one-dimensional")
    if len(elements) and int(elements.max()) > _LARGEST:
        raise _too_large(int(elements.max()))
    return UserIds(elements.astype(np.int64))


def read_numbers(argument: str, values: object) -> tuple[NDArray[np.float64], np.dtype[Any] | None]:
    """Return real numbers as float64, and their own type if it is narrower.

    Raises:
        InvalidRequest: an element is no number, or the container has no order.
    """
    elements = elements_of(argument, values)
    array = _array_of(argument, elements) if isinstance(elements, list) else elements
    narrow = array.dtype.kind == "f" and array.dtype.itemsize < 8
    with invalid_requests():
        return as_float_array(argument, array), array.dtype if narrow else None


def read_rows(argument: str, values: Any) -> NDArray[np.float64]:
    """Return numbers, vectors, or the columns of a pandas or polars frame in order, as float64.

    Unlike in ``read_numbers``, no size of a number and no missing number is an error, which would
    tell that a user has it: see ``nearest_float``.

    Raises:
        InvalidRequest: an element is no number, or the container has no order.
    """
    kind = type(values)
    columns: list[Any]
    if not _is_frame(values):
        elements = elements_of(argument, values)
        if isinstance(elements, list):
            elements = _array_of(argument, [_nearest_row(argument, row) for row in elements])
        if elements.dtype.kind in "iu":
            elements = elements.astype(np.float64)
        return read_numbers(argument, elements)[0]
    if hasattr(kind, "get_columns"):
        columns = list(values.get_columns())
    elif hasattr(kind, "items"):  # by position: labels may appear twice
        columns = [column for _, column in values.items()]
    else:
        raise InvalidRequest(
            f"{argument} is a {kind.__name__}: give a pandas or polars frame, or an array"
        )
    if not columns:
        raise InvalidRequest(f"{argument} has no columns")
    return np.column_stack([read_rows(argument, column) for column in columns])


def nearest_float(value: Any) -> Any:
    """Return a number's nearest float, or infinity; NaN for a missing value; else the value."""
    try:
        if _is_number(type(value)):
            return float(value)
    except OverflowError:  # an int
        return math.inf if value > 0 else -math.inf
    return math.nan if _is_missing(value) else value


def _nearest_row(argument: str, row: Any) -> Any:
    if isinstance(row, list | tuple):
        return [nearest_float(value) for value in row]
    is_vector = hasattr(row, "__array__") and not isinstance(row, np.generic)
    return read_rows(argument, row) if is_vector else nearest_float(row)


def read_norms(
    norms: object, users: int, clip_norm: float | None
) -> tuple[NDArray[np.float64], float | None]:
    """Return one norm per user as given, and the clip norm that none of them exceeds.

    A contribution that was clipped to 0.1 in float32 has the norm 0.1000000015. So for norms of a
    narrower type, the clip norm is rounded up to that type, for the check and for the request.

    Raises:
        InvalidRequest: the norms are not one finite number per user, or one exceeds the clip norm.
    """
    values, narrow = read_numbers("norms", norms)
    if values.shape != (users,):
        raise InvalidRequest(
            f"norms has shape {values.shape}; it must be ({users},), one norm per user"
        )
    with invalid_requests():
        if clip_norm is not None:
            clip_norm = _rounded_up(nonnegative_finite("clip_norm", clip_norm), narrow)
        check_norms(values, clip_norm)
    return values, clip_norm


def read_terms(collect: CollectTerms) -> CollectAsked:
    """Return the terms under which a run is to collect norms, as a request has them.

    Raises:
        InvalidRequest: they are no terms.
    """
    if not isinstance(collect, CollectTerms):
        raise InvalidRequest(f"collect is {quoted(collect)}; it must be CollectTerms")
    return CollectAsked(clip_norm=collect.clip_norm, mechanism=collect.mechanism)


def check_strings(users: list[str]) -> None:
    """Check that strings are valid ids: text in UTF-8 of 1 to 256 characters.

    Raises:
        InvalidRequest: names the first invalid string.
    """
    if (reserved := first_reserved(users)) is not None:
        raise InvalidRequest(
            f"user {quoted(reserved)} begins with {RESERVED!r}, which is reserved for erased users"
        )
    lengths = set(map(len, users))
    if all(1 <= length <= _LONGEST_ID for length in lengths) and "".join(users).isascii():
        return
    for user in users:
        if not 1 <= len(user) <= _LONGEST_ID:
            raise InvalidRequest(
                f"user {quoted(user)} has {len(user)} characters; it must have 1 to {_LONGEST_ID}"
            )
        try:
            user.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"user {quoted(user)} cannot be encoded as UTF-8: {error}"
            ) from error


def _is_frame(values: object) -> bool:
    # Look at the type: a pandas object has its labels as attributes.
    return hasattr(type(values), "columns")


def elements_of(argument: str, values: object) -> NDArray[Any] | list[Any]:
    """Return the caller's elements in order: an array of integers or floats, else a list.

    Raises:
        InvalidRequest: the container has no order.
    """
    kind = type(values).__name__
    if isinstance(values, UserIds):
        return values.integers if values.are_integers else values.tolist()
    if isinstance(values, Set | Mapping):
        raise InvalidRequest(f"{argument} is a {kind}, which has no positions: give a list")
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidRequest(f"{argument} is {quoted(values)}: give a list")
    if _is_frame(values):
        raise InvalidRequest(f"{argument} is a {kind}: give one column of it, as frame['name']")
    if hasattr(values, "__array__"):
        return _array(argument, values)
    if isinstance(values, Sequence):
        return values if isinstance(values, list) else list(values)
    raise InvalidRequest(f"{argument} is a {kind}: give a list or an array")


def _array(argument: str, values: Any) -> NDArray[Any] | list[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidRequest(
            f"{argument} is a masked array: leave those users out, and give an array without a mask"
        )
    try:
        array = np.asarray(values)
    except Exception as error:  # any error of the library that made the column
        raise InvalidRequest(f"{argument} cannot be read as an array: {error}") from error
    if array.dtype.kind in "iuf":
        return array
    if array.ndim != 1:
        raise InvalidRequest(
            f"{argument} is {array.dtype} of shape {array.shape}: give an array of numbers"
        )
    # Do not go through numpy: its strings of fixed width lose trailing zeros.
    elements = values.to_list() if hasattr(values, "to_list") else array.tolist()
    return list(elements)


def _ids(elements: list[Any]) -> UserIds:
    kinds = set(map(type, elements))
    if not kinds <= {int, str}:
        elements = [_plain_id(position, user) for position, user in enumerate(elements)]
        kinds = set(map(type, elements))
    if kinds == {str}:
        check_strings(elements)
        return UserIds(elements.copy())
    if str in kinds:
        check_strings([user for user in elements if type(user) is str])
        for user in elements:
            if type(user) is int and not _LEAST <= user <= _LARGEST:
                raise _too_large(user)
        return UserIds(elements.copy())
    try:
        return UserIds(elements)
    except OverflowError:
        raise _too_large(next(u for u in elements if not _LEAST <= u <= _LARGEST)) from None


def _too_large(user: int) -> InvalidRequest:
    return InvalidRequest(f"user {quoted(user)} does not fit in a signed 64-bit integer")


def _plain_id(position: int, user: object) -> User:
    if isinstance(user, str):
        return str.__str__(user)
    if isinstance(user, int | np.integer) and not isinstance(user, bool):
        return int(user)
    raise InvalidRequest(f"user {quoted(user)} at position {position} {_fault(user)} an int or str")


def _array_of(argument: str, elements: list[Any]) -> NDArray[Any]:
    """Return numbers (n,), or vectors (n, d) if every element is one."""
    kinds = set(map(type, elements))
    if not kinds:
        return np.empty(0)
    if kinds <= {list, tuple}:
        _check_numbers(argument, list(chain.from_iterable(elements)))
    elif all(hasattr(kind, "__array__") and not issubclass(kind, np.generic) for kind in kinds):
        elements = [read_numbers(argument, row)[0] for row in elements]
    else:
        _check_numbers(argument, elements)
    try:
        return np.asarray(elements)
    except ValueError as error:
        raise InvalidRequest(
            f"{argument} has vectors of different lengths; they must be equal: {error}"
        ) from error


def _check_numbers(argument: str, numbers: list[Any]) -> None:
    kinds = set(map(type, numbers))
    if not all(map(_is_number, kinds)):
        position, bad = next((i, x) for i, x in enumerate(numbers) if not _is_number(type(x)))
        raise InvalidRequest(
            f"{argument}: {quoted(bad)} at position {position} {_fault(bad)} a number"
        )
    integers = {kind for kind in kinds if issubclass(kind, int | np.integer)}
    if integers and integers != kinds:  # numpy would round them to float64
        large = next((x for x in numbers if type(x) in integers and abs(int(x)) > 2**53), None)
        if large is not None:
            raise InvalidRequest(f"{argument}: {large} is not exact in float64: give floats")


def _is_number(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating) and kind is not bool


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _fault(value: object) -> str:
    """Say what is wrong with a value, as the middle of a sentence that names what is allowed."""
    kind = type(value).__name__
    if _is_missing(value) or (kind == "float" and value != value):
        return "is missing, so leave that row out, of users and numbers alike: it must be"
    return f"is a {kind}, not"


def _rounded_up(number: float, narrow: np.dtype[Any] | None) -> float:
    """Return the least number of the narrower type that is not below; if none is, the number."""
    if narrow is None:
        return number
    with np.errstate(over="ignore"):
        rounded = narrow.type(number)
        if float(rounded) < number:
            rounded = np.nextafter(rounded, narrow.type(np.inf))
    return float(rounded) if np.isfinite(rounded) else number


_NAMES: Mapping[type[Mechanism], RosterMechanism] = {
    Gaussian: "gaussian",
    PoissonGaussian: "poisson-gaussian",
    Laplace: "laplace",
    PureDP: "pure-dp",
}


def read_mechanism(
    noise_stddev: float | None,
    mechanism: Any,
    clip_norm: float | None,
    sampling_rate: float = 1.0,
) -> Mechanism:
    """Return the mechanism of a step: the given one, or Gaussian noise, sampled or not.

    Args:
        noise_stddev: standard deviation of Gaussian noise.
        mechanism: alternatively, a mechanism or a DpEvent.
        clip_norm: the unit of the noise in a DpEvent.
        sampling_rate: with noise_stddev, the probability with which a user is drawn.

    Raises:
        InvalidRequest: no step of it can be charged.
    """
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidRequest("give either noise_stddev or mechanism")
    if noise_stddev is not None:
        with invalid_requests():
            if sampling_rate == 1:
                return Gaussian(noise_stddev)
            return PoissonGaussian(noise_stddev, sampling_rate)
    if sampling_rate != 1:
        raise InvalidRequest(
            f"sampling_rate is {quoted(sampling_rate)}, but a mechanism was given: give the rate "
            "with the mechanism, as in PoissonGaussian"
        )
    if not isinstance(mechanism, Mechanism) and clip_norm is None:
        raise InvalidRequest(
            f"mechanism is {quoted(mechanism)}; it must be a mechanism of accounting, such as "
            "accounting.PureDP(), or a DpEvent with clip_norm, the unit of its noise"
        )
    with invalid_requests():
        chosen = mechanism_from(mechanism, 1.0 if clip_norm is None else clip_norm)
    if type(chosen) not in _NAMES:
        known = ", ".join(kind.__name__ for kind in _NAMES)
        raise InvalidRequest(f"mechanism is {quoted(mechanism)}; steps that are charged: {known}")
    return chosen


def charged_by_norms(
    mechanism: Mechanism, clip_norm: float | None, policies: Sequence[Policy]
) -> tuple[MechanismName, float]:
    """Return a mechanism's name and scale, if these policies can charge it by norms.

    Args:
        policies: the policies of the dataset, then of its ancestors.

    Raises:
        UncoveredStep: a measure cannot charge the mechanism.
        InvalidRequest: states what can be charged.
    """
    name = _NAMES[type(mechanism)]
    with invalid_requests():
        if name == "poisson-gaussian":
            check_covered(mechanism, policies, Measure.covers_by_table)
            raise InvalidRequest(
                f"mechanism is {mechanism}; Run.charge takes Gaussian, Laplace and PureDP steps. "
                "Charge Poisson-sampled steps with a roster (Run.enrol), or as Gaussian, which "
                "never costs less"
            )
        check_covered(mechanism, policies, Measure.covers, clip_norm or 0.0)
    return name, noise_scale(mechanism)


class Priced(NamedTuple):
    """A mechanism and its cost table, with the table's digest."""

    name: RosterMechanism
    scale: float
    sampling_rate: float
    units: bytes
    digest: bytes


def price(
    mechanism: Mechanism, policies: Sequence[Policy], clip_norm: float, levels: int
) -> Priced:
    """Return a mechanism with its cost table under these policies, on a norm grid up to a clip
    norm.

    Raises:
        UncoveredStep: a measure cannot charge the mechanism.
        InvalidRequest: the dataset clips norms, and the mechanism has none that can be clipped.
    """
    name = _NAMES[type(mechanism)]
    with invalid_requests():
        check_covered(mechanism, policies, Measure.covers_by_table, clip_norm)
        tables = [
            policy.row.cost_table(mechanism, clip_norm, levels, policy.orders or None)
            for policy in policies
        ]
    units = b"".join(table.astype("<i8").tobytes() for table in tables)
    if isinstance(mechanism, PoissonGaussian):
        scale, rate = mechanism.noise_stddev, mechanism.sampling_rate
    else:
        scale, rate = noise_scale(mechanism), 1.0
    return Priced(name, scale, rate, units, cost_table_digest(units))
