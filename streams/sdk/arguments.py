"""What a caller gives, read as ids and numbers: users, norms and contributions, for all who take
them.

Everything is taken by position, never by label: the first norm is that of the first user, whatever
the index of a pandas object says. What has an order and can be read as an array is taken: lists,
tuples, arrays, the columns of pandas, polars and Arrow, tensors. Nothing is coerced: a float is no
id, text and truth values are no numbers, and what is missing (None, NA, NaN) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import Gaussian, InvalidInput, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.validation import as_float_array, nonnegative_finite
from streams.normal_form import normal_form
from streams.policies import mechanism_of
from streams.schemas import MechanismName, Name, Policy, Refused, User
from streams.sdk.errors import InvalidCharge

Ids: TypeAlias = NDArray[np.int64] | list[User]
"""Ids in the caller's order: int64 if all are integers, else a list of str and int."""

_LEAST, _LARGEST = -(2**63), 2**63 - 1
_LONGEST_ID = 256


def read_users(users: object) -> Ids:
    """User ids, spelled as the caller spells them.

    Raises:
        InvalidCharge: they are no ids, or have no order.
    """
    elements = _elements("users", users)
    if isinstance(elements, list):
        return _ids(elements)
    if elements.dtype.kind == "f":
        raise InvalidCharge(
            f"users are {elements.dtype} numbers, which are no ids. Where ids are missing, tables "
            "make floats of integers: leave those rows out and convert with astype('int64')"
        )
    if elements.ndim != 1:
        raise InvalidCharge(f"users has shape {elements.shape}; it must be one-dimensional")
    if len(elements) and int(elements.max()) > _LARGEST:
        raise InvalidCharge(f"user {elements.max()} does not fit in a signed 64-bit integer")
    return elements.astype(np.int64)


def check_distinct(ids: Ids) -> None:
    """Refuse ids of which one appears twice.

    Raises:
        InvalidCharge: with the first such id.
    """
    if isinstance(ids, np.ndarray):
        in_order = np.sort(ids)
        twice = in_order[1:][in_order[1:] == in_order[:-1]].tolist()
    elif len(set(ids)) == len(ids):
        return
    else:
        seen: set[User] = set()
        twice = [user for user in ids if user in seen or seen.add(user)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidCharge(f"user {twice[0]!r} appears twice in one step: add its norms up first")


def in_normal_form(ids: Ids) -> Ids:
    """The ids as the log knows them: a name that can be written in two ways is one user.

    Raises:
        InvalidCharge: an id is too long in that form.
    """
    if isinstance(ids, np.ndarray) or "".join(_strings(ids)).isascii():
        return ids
    ids = [normal_form(user) if isinstance(user, str) else user for user in ids]
    _check_strings(_strings(ids))
    return ids


def check_names(*names: str) -> None:
    """Refuse what cannot be the name of a dataset or of a run: no record could carry it.

    Raises:
        InvalidCharge: with what is allowed.
    """
    for name in names:
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise InvalidCharge(
                f"{name!r} cannot name a dataset or run: it takes 1 to 128 letters, digits, dots, "
                "dashes and underscores, a letter or digit first"
            ) from error


def check_kinds(ids: Ids, policy: Policy) -> None:
    """Refuse ids of a kind that the dataset does not have.

    Raises:
        InvalidCharge: with what is allowed.
    """
    allowed = policy.user_ids
    kinds = {int} if isinstance(ids, np.ndarray) else set(map(type, ids))
    wrong = {"integer": str, "string": int}.get(str(allowed))
    if len(ids) and wrong in kinds:
        raise InvalidCharge(f"the users of dataset {policy.dataset!r} have {allowed} ids only")
    if allowed == "one-kind" and len(kinds) > 1:
        raise InvalidCharge(
            f"users have integer and string ids, but dataset {policy.dataset!r} has one kind: 1 "
            "and '1' would be two users with a budget each. Convert them to one kind, or create "
            "datasets whose users really have both with user_ids='mixed'"
        )


def read_norms(
    norms: object, users: int, clip_norm: float | None
) -> tuple[NDArray[np.float64], float | None]:
    """One norm per user, as given, and the clip norm that none of them exceeds.

    Norms of a narrower type cannot be held against a clip norm that this type does not have: what
    was clipped to 0.1 in float32 is 0.1000000015. The clip norm is then rounded up to the type of
    the norms, for the check and for the request.

    Raises:
        InvalidCharge: not one finite norm per user, or one above the clip norm.
    """
    values, narrow = _numbers("norms", norms)
    if values.shape != (users,):
        raise InvalidCharge(f"norms has shape {values.shape}; with {users} users it is ({users},)")
    limit = np.inf
    if clip_norm is not None:
        limit = clip_norm = _rounded_up(read_clip_norm(clip_norm), narrow)
    bad = ~((values >= 0) & (values < np.inf) & (values <= limit))
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        allowed = "finite and not negative"
        if clip_norm is not None:
            allowed += (
                f", and at most clip_norm = {clip_norm}: clip to a little less than clip_norm, so "
                "that no rounding exceeds it, or give a larger clip_norm"
            )
        raise InvalidCharge(f"norm {values[position]} at position {position}; it must be {allowed}")
    return values, clip_norm


def read_clip_norm(clip_norm: float) -> float:
    """A bound for norms.

    Raises:
        InvalidCharge: not finite, or negative.
    """
    try:
        return nonnegative_finite("clip_norm", clip_norm)
    except InvalidInput as error:
        raise InvalidCharge(str(error)) from error


def read_mechanism(
    noise_stddev: float | None, mechanism: Mechanism | None, policy: Policy
) -> tuple[MechanismName, float]:
    """The name of a mechanism and its scale, if the policy's measure can charge it.

    Raises:
        InvalidCharge: with what can be charged.
    """
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidCharge("give either noise_stddev or mechanism")
    name: MechanismName
    try:
        match Gaussian(noise_stddev) if mechanism is None else mechanism:  # type: ignore[arg-type]
            case Gaussian(scale):
                name = "gaussian"
            case Laplace(scale):
                name = "laplace"
            case PureDP():
                name, scale = "pure-dp", 1.0
            case PoissonGaussian():
                raise InvalidCharge(
                    "Poisson-sampled steps cannot be charged through the service; charge them as "
                    "Gaussian, which never costs less, or account them with "
                    "accounting.RenyiFilter"
                )
            case _:
                raise InvalidCharge(f"mechanism is {mechanism!r}; give one of accounting's")
        mechanism_of(name, scale, policy)
    except InvalidInput as error:
        raise InvalidCharge(str(error)) from error
    except Refused as refused:
        raise InvalidCharge(refused.detail) from refused
    return name, scale


def read_contributions(contributions: object, users: int) -> NDArray[np.float64]:
    """What each user adds to a sum: finite numbers (n,) or vectors (n, d), d at least 1.

    The columns of a frame are coordinates, in their order.

    Raises:
        InvalidCharge: anything else, or a sum that float64 cannot hold.
    """
    if hasattr(contributions, "columns"):
        columns = [_numbers("contributions", column)[0] for column in _columns(contributions)]
        rows = np.column_stack(columns) if columns else np.empty((users, 0))
    else:
        rows, _ = _numbers("contributions", contributions)
    if rows.ndim not in (1, 2) or len(rows) != users:
        raise InvalidCharge(
            f"contributions has shape {rows.shape}; with {users} users it is ({users},) or "
            f"({users}, d)"
        )
    if rows.ndim == 2 and rows.shape[1] == 0:
        raise InvalidCharge("contributions has no coordinates")
    if not np.isfinite(rows).all():
        raise InvalidCharge("contributions must be finite; leave out users who have none")
    # Sums of this size stay finite, so that nothing can fail after the charge.
    if rows.size and float(np.abs(rows).max()) > np.finfo(np.float64).max / (2 * users):
        raise InvalidCharge("contributions are too large for their sum to be a float64")
    return rows


def _elements(argument: str, values: object) -> NDArray[Any] | list[Any]:
    """What was given in its order: an array of integers or floats, else a list."""
    kind = type(values).__name__
    if isinstance(values, Set | Mapping):
        raise InvalidCharge(f"{argument} is a {kind}, which has no positions: give a list")
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidCharge(f"{argument} is {values!r}: give a list")
    if hasattr(values, "columns"):
        raise InvalidCharge(f"{argument} is a {kind}: give one column of it, as frame['name']")
    if hasattr(values, "__array__"):
        return _array(argument, values)
    if isinstance(values, Sequence):
        return values if isinstance(values, list) else list(values)
    raise InvalidCharge(f"{argument} is a {kind}: give a list or an array")


def _array(argument: str, values: Any) -> NDArray[Any] | list[Any]:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidCharge(f"{argument} has masked values: leave those users out")
    try:
        array = np.asarray(values)
    except Exception as error:  # whatever the library of this column raises
        raise InvalidCharge(f"{argument} cannot be read as an array: {error}") from error
    if array.dtype.kind in "iuf":
        return array
    if array.ndim != 1:
        raise InvalidCharge(
            f"{argument} is {array.dtype} of shape {array.shape}: give an array of numbers"
        )
    # Not through numpy: its strings of fixed width lose the zeros at their ends.
    elements = values.to_list() if hasattr(values, "to_list") else array.tolist()
    return list(elements)


def _ids(elements: list[Any]) -> Ids:
    kinds = set(map(type, elements))
    if not kinds <= {int, str}:
        elements = [_plain_id(position, user) for position, user in enumerate(elements)]
        kinds = set(map(type, elements))
    if kinds == {str}:
        _check_strings(elements)
        return elements
    if str not in kinds:
        return _integers(elements)
    _check_strings(_strings(elements))
    _integers([user for user in elements if type(user) is int])
    return elements


def _integers(users: list[int]) -> NDArray[np.int64]:
    try:
        return np.array(users, dtype=np.int64)
    except OverflowError:
        outside = next(user for user in users if not _LEAST <= user <= _LARGEST)
        raise InvalidCharge(f"user {outside} does not fit in a signed 64-bit integer") from None


def _strings(ids: list[User]) -> list[str]:
    return [user for user in ids if isinstance(user, str)]


def _plain_id(position: int, user: object) -> User:
    if isinstance(user, str):
        return str.__str__(user)
    if isinstance(user, int | np.integer) and not isinstance(user, bool):
        return int(user)
    raise InvalidCharge(f"user {user!r} at position {position} {_fault(user)} an int or str")


def _check_strings(users: list[str]) -> None:
    lengths = set(map(len, users))
    if all(1 <= length <= _LONGEST_ID for length in lengths) and "".join(users).isascii():
        return
    for user in users:
        if not 1 <= len(user) <= _LONGEST_ID:
            raise InvalidCharge(f"user {user!r} has {len(user)} characters, not 1 to {_LONGEST_ID}")
        try:
            user.encode()
        except UnicodeEncodeError as error:
            raise InvalidCharge(f"user {user!r} is no text that UTF-8 can hold: {error}") from error


def _numbers(argument: str, values: object) -> tuple[NDArray[np.float64], np.dtype[Any] | None]:
    """Real numbers as float64, and their type if it is a narrower one."""
    elements = _elements(argument, values)
    array = _array_of(argument, elements) if isinstance(elements, list) else elements
    narrow = array.dtype.kind == "f" and array.dtype.itemsize < 8
    try:
        return as_float_array(argument, array), array.dtype if narrow else None
    except InvalidInput as error:
        raise InvalidCharge(str(error)) from error


def _array_of(argument: str, elements: list[Any]) -> NDArray[Any]:
    """Numbers (n,), or vectors (n, d) if every element is one."""
    kinds = set(map(type, elements))
    if not kinds:
        return np.empty(0)
    if kinds <= {list, tuple}:
        _check_numbers(argument, list(chain.from_iterable(elements)))
    elif all(hasattr(kind, "__array__") and not issubclass(kind, np.generic) for kind in kinds):
        elements = [_numbers(argument, row)[0] for row in elements]
    else:
        _check_numbers(argument, elements)
    try:
        return np.asarray(elements)
    except ValueError as error:
        raise InvalidCharge(f"{argument} are not vectors of one length: {error}") from error


def _check_numbers(argument: str, numbers: list[Any]) -> None:
    kinds = set(map(type, numbers))
    if not all(map(_is_number, kinds)):
        position, bad = next((i, x) for i, x in enumerate(numbers) if not _is_number(type(x)))
        raise InvalidCharge(f"{argument}: {bad!r} at position {position} {_fault(bad)} a number")
    integers = {kind for kind in kinds if issubclass(kind, int | np.integer)}
    if integers and integers != kinds:  # numpy would round them to float64
        large = next((x for x in numbers if type(x) in integers and abs(int(x)) > 2**53), None)
        if large is not None:
            raise InvalidCharge(f"{argument}: {large} is not exact in float64: give floats")


def _is_number(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating) and kind is not bool


def _fault(value: object) -> str:
    """What is wrong with a value, as the middle of a sentence that names what is wanted."""
    kind = type(value).__name__
    if value is None or kind in ("NAType", "NaTType") or (kind == "float" and value != value):
        return "is missing, so leave that row out, of users and numbers alike: it must be"
    return f"is a {kind}, not"


def _rounded_up(number: float, narrow: np.dtype[Any] | None) -> float:
    """The least number of the narrower type that is not below; the number itself if none is."""
    if narrow is None:
        return number
    with np.errstate(over="ignore"):
        rounded = narrow.type(number)
        if float(rounded) < number:
            rounded = np.nextafter(rounded, narrow.type(np.inf))
    return float(rounded) if np.isfinite(rounded) else number


def _columns(frame: Any) -> Iterable[Any]:
    """The columns of a pandas or polars frame, by position: labels may appear twice."""
    if hasattr(frame, "get_columns"):
        return list(frame.get_columns())
    if hasattr(frame, "items"):
        return [column for _, column in frame.items()]
    kind = type(frame).__name__
    raise InvalidCharge(f"contributions is a {kind}: give a pandas or polars frame, or an array")
