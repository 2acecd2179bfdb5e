"""What a caller says of a step, checked once for all who take it: users, norms, contributions,
mechanism. In what they may come, ``streams.sdk.columns`` says.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import Gaussian, InvalidInput, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.exact.validation import nonnegative_finite
from streams.ledger.policies import mechanism_of
from streams.normal_form import normal_form
from streams.schemas import MechanismName, Name, Policy, Rejection, User
from streams.sdk.columns import Ids, check_strings, read_numbers, read_rows, strings_of
from streams.sdk.errors import InvalidRequest


def check_distinct(ids: Ids) -> None:
    """Refuse ids of which one appears twice.

    Raises:
        InvalidRequest: with the first such id.
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
        raise InvalidRequest(f"user {twice[0]!r} appears twice in one step: add its norms up first")


def in_normal_form(ids: Ids) -> Ids:
    """The ids as the log knows them: a name that can be written in two ways is one user.

    Raises:
        InvalidRequest: an id is too long in that form.
    """
    if isinstance(ids, np.ndarray) or "".join(strings_of(ids)).isascii():
        return ids
    ids = [normal_form(user) if isinstance(user, str) else user for user in ids]
    check_strings(strings_of(ids))
    return ids


def check_names(*names: str) -> None:
    """Refuse what cannot be the name of a dataset or of a run: no record could carry it.

    Raises:
        InvalidRequest: with what is allowed.
    """
    for name in names:
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"{name!r} cannot name a dataset or run: it takes 1 to 128 letters, digits, dots, "
                "dashes and underscores, a letter or digit first"
            ) from error


def check_kinds(ids: Ids, policy: Policy) -> None:
    """Refuse ids of a kind that the dataset does not have.

    Raises:
        InvalidRequest: with what is allowed.
    """
    allowed = policy.user_ids
    kinds = {int} if isinstance(ids, np.ndarray) else set(map(type, ids))
    wrong = {"integer": str, "string": int}.get(str(allowed))
    if len(ids) and wrong in kinds:
        raise InvalidRequest(f"the users of dataset {policy.dataset!r} have {allowed} ids only")
    if allowed == "one-kind" and len(kinds) > 1:
        raise InvalidRequest(
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
        InvalidRequest: not one finite norm per user, or one above the clip norm.
    """
    values, narrow = read_numbers("norms", norms)
    if values.shape != (users,):
        raise InvalidRequest(f"norms has shape {values.shape}; with {users} users it is ({users},)")
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
        raise InvalidRequest(
            f"norm {values[position]} at position {position}; it must be {allowed}"
        )
    return values, clip_norm


def read_clip_norm(clip_norm: float) -> float:
    """A bound for norms.

    Raises:
        InvalidRequest: not finite, or negative.
    """
    try:
        return nonnegative_finite("clip_norm", clip_norm)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error


def read_mechanism(
    noise_stddev: float | None, mechanism: Mechanism | None, policy: Policy
) -> tuple[MechanismName, float]:
    """The name of a mechanism and its scale, if the policy's measure can charge it.

    Raises:
        InvalidRequest: with what can be charged.
    """
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidRequest("give either noise_stddev or mechanism")
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
                raise InvalidRequest(
                    "Poisson-sampled steps cannot be charged through the service; charge them as "
                    "Gaussian, which never costs less, or account them with "
                    "accounting.RenyiFilter"
                )
            case _:
                raise InvalidRequest(f"mechanism is {mechanism!r}; give one of accounting's")
        mechanism_of(name, scale, policy)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    except Rejection as refused:
        raise InvalidRequest(refused.detail) from refused
    return name, scale


def read_contributions(contributions: object, users: int) -> NDArray[np.float64]:
    """What each user adds to a sum: finite numbers (n,) or vectors (n, d), d at least 1.

    The columns of a frame are coordinates, in their order.

    Raises:
        InvalidRequest: anything else, or a sum that float64 cannot hold.
    """
    rows = read_rows("contributions", contributions)
    if rows.ndim not in (1, 2) or len(rows) != users:
        raise InvalidRequest(
            f"contributions has shape {rows.shape}; with {users} users it is ({users},) or "
            f"({users}, d)"
        )
    if rows.ndim == 2 and rows.shape[1] == 0:
        raise InvalidRequest("contributions has no coordinates")
    if not np.isfinite(rows).all():
        raise InvalidRequest("contributions must be finite; leave out users who have none")
    # Sums of this size stay finite, so that nothing can fail after the charge.
    if rows.size and float(np.abs(rows).max()) > np.finfo(np.float64).max / (2 * users):
        raise InvalidRequest("contributions are too large for their sum to be a float64")
    return rows


def _rounded_up(number: float, narrow: np.dtype[Any] | None) -> float:
    """The least number of the narrower type that is not below; the number itself if none is."""
    if narrow is None:
        return number
    with np.errstate(over="ignore"):
        rounded = narrow.type(number)
        if float(rounded) < number:
            rounded = np.nextafter(rounded, narrow.type(np.inf))
    return float(rounded) if np.isfinite(rounded) else number
