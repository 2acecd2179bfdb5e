"""What a request says, read without the worker's code: to a dictionary, or to a ``Rejection``."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any
from unicodedata import ucd_3_2_0 as unicode

import msgspec

User = int | str

_LARGEST_BUDGET = 2**61
LARGEST_RECORD = 8 * 1024 * 1024
_LARGEST_FLOAT = 1.7976931348623157e308


class Rejection(Exception):
    """Why the worker must refuse a record; what it could read of it, if that is so much."""

    def __init__(self, reason: str, request: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.request = request


def _is_integer(least: int, most: int) -> Any:
    return lambda value: type(value) is int and least <= value <= most


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _is_name(value: Any) -> bool:
    return type(value) is str and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", value))


def _is_token(value: Any) -> bool:
    return type(value) is str and 1 <= len(value) <= 64


def _is_list(member: Any, least: int = 0, most: int = 2**31) -> Any:
    return lambda value: (
        type(value) is list and least <= len(value) <= most and all(map(member, value))
    )


def _is_user(value: Any) -> bool:
    return _is_integer(-(2**63), 2**63 - 1)(value) or (
        type(value) is str and 1 <= len(value) <= 256
    )


def _is_packed_or(other: Any) -> Any:
    return lambda value: _is_bytes(value) or other(value)


def _is_of(size: int) -> Any:
    return lambda value: type(value) is bytes and len(value) == size


def _is_allow(value: Any) -> bool:
    if value is NOT_GIVEN:
        return True
    return _is_access_list(value)


def _is_access_list(value: Any) -> bool:
    right = lambda value: value in ("charge", "manage")  # noqa: E731
    rules = {"key": _is_of(32), "rights": _is_list(right, 1, 2)}
    entry = lambda value: type(value) is dict and fits(value, rules)  # noqa: E731
    return _is_list(entry, 1, 32)(value)


def _is_float(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**1024)


def _is_clip_norm(value: Any) -> bool:
    return _is_float(value) and 0 < value <= _LARGEST_FLOAT


def _is_roster_mechanism(value: Any) -> bool:
    return value in ("gaussian", "laplace", "pure-dp", "poisson-gaussian")


NOT_GIVEN = msgspec.UNSET  # it remains itself where it is copied


_BUDGETS = _is_list(_is_integer(1, _LARGEST_BUDGET), 1, 256)
POLICY = {
    "dataset": _is_name,
    "partitions": _is_integer(1, 100_000),
    "measure": lambda value: value in ("renyi", "zcdp", "gdp", "pure-dp", "steps"),
    "budget": _BUDGETS,
    "odometer_step": _BUDGETS,
    "orders": _is_list(lambda value: _is_number(value) and value > 1, 0, 256),
    "on_exhaustion": lambda value: value in ("halt", "clip"),
    "user_ids": lambda value: (
        value is NOT_GIVEN or value in ("one-kind", "integer", "string", "mixed")
    ),
    "per_user_order": lambda value: value is NOT_GIVEN or value is True,
    "parents": lambda value: value is NOT_GIVEN or _is_list(_is_name, 1, 7)(value),
    "pseudonyms": lambda value: (
        value is NOT_GIVEN
        or (type(value) is str and len(value) == 16 and set(value) <= set("0123456789abcdef"))
    ),
    "allow": _is_allow,
    "share_of": lambda value: value is NOT_GIVEN or _is_name(value),
    "assume_independent_timing": lambda value: value is NOT_GIVEN or value is True,
    "sampled_levels": lambda value: value is NOT_GIVEN or type(value) is bool,
    "sampling_rate": lambda value: value is NOT_GIVEN or (_is_number(value) and 0 < value <= 1),
    "noise_multiplier": lambda value: (
        value is NOT_GIVEN or (_is_number(value) and 0 < value < math.inf)
    ),
}

COLLECT = {"clip_norm": _is_clip_norm, "mechanism": _is_roster_mechanism}
"""The terms under which a run collects norm events."""


def _records() -> dict[str, dict[str, Callable[[Any], bool]]]:
    """What the requests have to be."""
    shared = {"v": lambda value: value == 1}
    run = {**shared, "dataset": _is_name, "run": _is_name}
    attempt = _is_integer(1, 2**63 - 1)
    counter = _is_integer(0, 2**53)
    of_step = {
        **run,
        "step": counter,
        "attempt": lambda value: value is NOT_GIVEN or attempt(value),
        "pseudonyms": POLICY["pseudonyms"],
    }
    return {
        "create-dataset": {
            **shared,
            "request": _is_token,
            "policy": lambda value: type(value) is dict and fits(value, POLICY),
            "log": lambda value: value is NOT_GIVEN or _is_of(16)(value),
        },
        "open-run": {
            **run,
            "attempt": _is_integer(0, 2**62),
            "request": _is_token,
            "min_separation": lambda value: value is NOT_GIVEN or _is_integer(2, 2**14)(value),
            "confirms": lambda value: value is NOT_GIVEN or _is_token(value),
            "take_over": lambda value: value is NOT_GIVEN or value is True,
            "collect": lambda value: (
                value is NOT_GIVEN or (type(value) is dict and fits(value, COLLECT))
            ),
        },
        "charge": {
            **run,
            "attempt": attempt,
            "step": counter,
            "users": _is_packed_or(_is_list(_is_user)),
            "norms": _is_packed_or(_is_list(_is_float)),
            "mechanism": lambda value: value in ("gaussian", "laplace", "pure-dp"),
            "scale": _is_float,
            "clip_norm": lambda value: value is None or _is_float(value),
            "reserve": lambda value: _is_float(value) and 0 <= value < 1,
            "collected": lambda value: value is NOT_GIVEN or value is True,
        },
        "norm": {**of_step, "user": _is_user, "norm": _is_float},
        "norms": {
            **of_step,
            "users": _is_packed_or(_is_list(_is_user)),
            "norms": _is_packed_or(_is_list(_is_float)),
        },
        "close-run": {**run, "attempt": attempt, "request": _is_token},
        "withdraw-dataset": {**shared, "dataset": _is_name, "request": _is_token},
        "enrol": {
            **run,
            "attempt": attempt,
            "request": _is_token,
            "first": counter,
            "users": _is_packed_or(_is_list(_is_user)),
            "clip_norm": _is_clip_norm,
            "levels": _is_integer(1, 255),
        },
        "charge-roster": {
            **run,
            "attempt": attempt,
            "step": counter,
            "members": counter,
            "cost_table_digest": lambda value: _is_bytes(value) and len(value) == 16,
            "units": _is_bytes,
            "positions": _is_bytes,
            "levels": _is_bytes,
            "mechanism": _is_roster_mechanism,
            "scale": _is_float,
            "sampling_rate": lambda value: _is_float(value) and 0 < value <= 1,
        },
        "close-dataset": {
            **shared,
            "dataset": _is_name,
            "request": _is_token,
        },
        "erase": {
            **shared,
            "request": _is_token,
            "user": _is_user,
            "dataset": lambda value: value is NOT_GIVEN or _is_name(value),
            "pseudonyms": POLICY["pseudonyms"],
            "hidden": lambda value: type(value) is bool,
        },
        "set-access": {
            **shared,
            "dataset": _is_name,
            "request": _is_token,
            "number": counter,
            "allow": _is_access_list,
            "log": _is_of(16),
        },
        "retire": {
            **shared,
            "request": _is_token,
            "successor": _is_of(16),
            "partitions": _is_integer(1, 100_000),
            "agreement": _is_of(32),
        },
        "import": {**shared, "origin": _is_of(16), "partitions": _is_integer(1, 100_000)},
        "signed": {
            **shared,
            "request": _is_bytes,
            "signature": _is_of(64),
            "key": _is_of(32),
        },
    }


_RECORDS = _records()
_PACKED = {
    "charge": {"users": 8, "norms": 8},
    "norms": {"users": 8, "norms": 8},
    "enrol": {"users": 8},
    "charge-roster": {"units": 8, "positions": 4, "cost_table_digest": 1, "levels": 1},
    "create-dataset": {"log": 1},
    "set-access": {"log": 1},
    "retire": {"successor": 1, "agreement": 1},
    "import": {"origin": 1},
    "signed": {"request": 1, "signature": 1, "key": 1},
}
"""What may be packed, in JSON as base64, and how many bytes an entry has."""
_DEFAULTS = {
    "orders": [],
    "on_exhaustion": "halt",
    "user_ids": NOT_GIVEN,
    "per_user_order": NOT_GIVEN,
    "parents": NOT_GIVEN,
    "pseudonyms": NOT_GIVEN,
    "allow": NOT_GIVEN,
    "share_of": NOT_GIVEN,
    "assume_independent_timing": NOT_GIVEN,
    "sampled_levels": NOT_GIVEN,
    "sampling_rate": NOT_GIVEN,
    "noise_multiplier": NOT_GIVEN,
    "min_separation": NOT_GIVEN,
    "confirms": NOT_GIVEN,
    "take_over": NOT_GIVEN,
    "collect": NOT_GIVEN,
    "collected": NOT_GIVEN,
    "mechanism": "gaussian",
    "scale": 1.0,
    "clip_norm": None,
    "reserve": 0.0,
}
_DEFAULTS_OF = {
    "charge-roster": {"units": b"", "positions": b"", "levels": b"", "sampling_rate": 1.0},
    "erase": {"dataset": NOT_GIVEN, "hidden": False},
    "create-dataset": {"log": NOT_GIVEN},
    "norm": {"attempt": NOT_GIVEN},
    "norms": {"attempt": NOT_GIVEN},
}
"""Of one kind of request alone, beside those that all have."""


class _Versioned(msgspec.Struct):
    v: int = 1


def fits(fields: dict[str, Any], rules: Mapping[str, Any], kind: str = "") -> bool:
    defaults = _DEFAULTS | _DEFAULTS_OF.get(kind, {})
    for name in rules.keys() & defaults.keys():
        fields.setdefault(name, defaults[name])
    return fields.keys() == rules.keys() and all(rules[n](value) for n, value in fields.items())


def read(value: bytes | None) -> dict[str, Any]:
    """A request as a dictionary without gaps, and its sender, if it is signed.

    Raises:
        Rejection: it is none.
    """
    record = _read(value)
    if record["type"] != "signed":
        return {**record, "sender": None}
    request = _read(record["request"])
    if request["type"] == "signed":
        raise Rejection("malformed")
    return {**request, "sender": record}


def _read(value: bytes | None) -> dict[str, Any]:
    if value is None:
        raise Rejection("malformed")
    if len(value) > LARGEST_RECORD:
        raise Rejection("too-large")
    is_json = value[:1] == b"{"
    decode = (msgspec.json if is_json else msgspec.msgpack).decode
    try:
        # A record of a version to come may be anything, as long as its version can be read.
        if decode(value, type=_Versioned).v != 1:
            raise Rejection("unsupported-version")
        request = decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejection("malformed") from error
    if type(request) is not dict:
        raise Rejection("malformed")
    request.setdefault("v", 1)
    kind = request.pop("type", None)
    rules = _RECORDS.get(kind) if type(kind) is str else None
    if rules is None:
        raise Rejection("malformed")
    if is_json:
        for name in _PACKED.get(kind, {}):
            if type(request.get(name)) is str:
                request[name] = _from_base64(request[name])
        for allow in (request.get("allow"), _allow_of(request.get("policy"))):
            for entry in allow if type(allow) is list else []:
                if type(entry) is dict and type(entry.get("key")) is str:
                    entry["key"] = _from_base64(entry["key"])
    if not fits(request, rules, kind):
        raise Rejection("malformed")
    request["type"] = kind
    users = [request["user"]] if "user" in request else request.get("users", b"")
    names = [] if type(users) is bytes or kind == "norms" else users  # its events are read alone
    if any(map(is_reserved, names)):
        raise Rejection("malformed", request)
    names = [] if kind == "erase" else names
    if is_uneven(request) or not all(map(is_normal, names)):
        raise Rejection("malformed", request)
    return request


def _allow_of(policy: Any) -> Any:
    return policy.get("allow") if type(policy) is dict else None


def _from_base64(text: str) -> bytes | None:
    try:
        octets = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return octets if len(text) == -(-len(octets) // 3) * 4 else None  # no padding too many


def is_uneven(request: Mapping[str, Any]) -> bool:
    widths = _PACKED.get(request["type"], {}).items()
    return any(
        type(request[name]) is bytes and len(request[name]) % width for name, width in widths
    )


def kind_of(user: User) -> type:
    """Whether an id is an integer or a string, or was before it was erased."""
    return str if isinstance(user, str) and not user.startswith("erased:i:") else int


def is_reserved(user: User) -> bool:
    """Return whether an id begins like the hash of an erased user."""
    return type(user) is str and user.startswith("erased:")


def normalised(user: User) -> User:
    """Return a name composed as Unicode 3.2 composes it; what that does not know stands."""
    if isinstance(user, int):
        return user
    runs = groupby(user, lambda character: unicode.category(character) == "Cn")
    parts = ((is_new, "".join(run)) for is_new, run in runs)
    return "".join(part if is_new else unicode.normalize("NFC", part) for is_new, part in parts)


def is_normal(user: User) -> bool:
    """Return whether a name is composed as in Unicode 3.2."""
    return normalised(user) == user


def numbers_of(values: list[Any] | bytes, code: str) -> list[Any]:
    if isinstance(values, bytes):
        return list(struct.unpack(f"<{len(values) // 8}{code}", values))
    return [float(value) for value in values] if code == "d" else list(values)


def digest_of(charge: Mapping[str, Any], users: list[User], norms: list[float]) -> bytes:
    """By what a worker recognises the content of a step."""
    packed = all(type(user) is int for user in users)
    ids = struct.pack(f"<{len(users)}q", *users) if packed else msgspec.msgpack.encode(users)
    clip_norm = charge["clip_norm"]
    head = (
        (charge["dataset"], charge["run"], charge["step"], charge["mechanism"]),
        (float(charge["scale"]), None if clip_norm is None else float(clip_norm)),
        (packed, len(ids)),
        *((float(charge["reserve"]),) if charge["reserve"] else ()),
        *(("collected",) if charge["collected"] is True else ()),
    )
    content = msgspec.msgpack.encode(head) + ids + struct.pack(f"<{len(norms)}d", *norms)
    return hashlib.sha256(content).digest()[:16]
