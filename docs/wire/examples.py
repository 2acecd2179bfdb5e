"""Example requests of ``deploy/asyncapi.yaml``, in the order in which a worker applies them.

The answers in the document are those of a ledger to these requests, in partition 2 of 4.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Any, NamedTuple

import msgspec

from streams.records.digests import NO_TOPIC, cost_table_digest
from streams.records.signatures import RequestSigner

PARTITION, PARTITIONS = 2, 4


class Example(NamedTuple):
    """A request in its JSON form."""

    name: str
    summary: str
    payload: dict[str, Any]
    is_json: bool = True


def _packed(form: str, *numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}{form}", *numbers)).decode()


def _asked(name: str, summary: str, kind: str, **fields: Any) -> Example:
    return Example(name, summary, {"type": kind, "v": 1, "request": f"{kind}-{name}", **fields})


def _charge(
    name: str,
    summary: str,
    about: dict[str, Any],
    users: list[int],
    norms: list[float],
    **more: Any,
) -> Example:
    packed = {"users": _packed("q", *users), "norms": _packed("d", *norms)}
    payload = {"type": "charge", "v": 1, **about, **packed, **more}
    return Example(name, summary, payload, is_json=False)


_NIGHT = {"dataset": "mnist", "run": "night-7", "attempt": 1}
_DAY = {"dataset": "digits", "run": "day-1", "attempt": 1}
_FTRL = {"dataset": "digits", "run": "ftrl-1", "attempt": 1}
_UNITS = struct.pack("<5q", *(level**2 << 33 for level in range(5)))


_PRIVATE = "turnstile-private-" + base64.urlsafe_b64encode(
    b"an example, not a key of anyone!"
).decode().rstrip("=")


def _signed(name: str, summary: str, example: Example) -> Example:
    request = msgspec.json.encode(example.payload)
    record = RequestSigner(_PRIVATE).sign(NO_TOPIC, PARTITION, request)
    return Example(name, summary, msgspec.to_builtins(msgspec.msgpack.decode(record)))


def requests() -> list[Example]:
    """Return the requests."""
    digest = base64.b64encode(cost_table_digest(_UNITS)).decode()
    priced = {"members": 3, "cost_table_digest": digest}
    mnist = {
        "dataset": "mnist",
        "partitions": PARTITIONS,
        "measure": "zcdp",
        "budget": [367801348019],
        "odometer_step": [36780134801],
        "user_ids": "integer",
        "assume_independent_timing": True,
    }
    digits = {
        "dataset": "digits",
        "partitions": PARTITIONS,
        "measure": "gdp",
        "budget": [1 << 44],
        "odometer_step": [1 << 41],
        "parents": ["mnist"],
    }
    signer = RequestSigner(_PRIVATE)
    key, log = (base64.b64encode(part).decode() for part in (signer.public, NO_TOPIC))
    guarded = {
        "dataset": "guarded",
        "partitions": PARTITIONS,
        "measure": "zcdp",
        "budget": [1 << 44],
        "odometer_step": [1 << 41],
        "allow": [{"key": key, "rights": ["charge", "manage"]}],
    }
    change = _asked(
        "charge-no-more",
        "The key loses the right charge. The request is rejected unless it is signed.",
        "set-access",
        dataset="guarded",
        number=1790000000000000,
        allow=[{"key": key, "rights": ["manage"]}],
        log=log,
    )
    return [
        _asked(
            "zcdp",
            "The largest zCDP budget that implies (1, 1e-5)-DP, with ten odometer steps.",
            "create-dataset",
            policy=mnist,
        ),
        _asked(
            "nested",
            "A dataset of the same users, whose steps count against the budget of mnist as well.",
            "create-dataset",
            policy=digits,
        ),
        _asked(
            "never-created",
            "A dataset that does not exist is answered as withdrawn, too.",
            "withdraw-dataset",
            dataset="minst",
        ),
        _asked(
            "next",
            "The next attempt of a run, here the first.",
            "open-run",
            **{**_NIGHT, "attempt": 0},
        ),
        Example(
            "packed",
            "Users 9, 12, 20, 21 and 22, with norms 0.25, 1, 0.5, 1 and 0. In MessagePack `users` "
            "and `norms` are the bytes themselves.",
            {
                "type": "charge",
                "v": 1,
                **_NIGHT,
                "step": 0,
                "users": _packed("q", 9, 12, 20, 21, 22),
                "norms": _packed("d", 0.25, 1.0, 0.5, 1.0, 0.0),
                "mechanism": "gaussian",
                "scale": 4.0,
                "clip_norm": 1.0,
            },
            is_json=False,
        ),
        Example(
            "lists",
            "The next step, for two of these users.",
            {
                "type": "charge",
                "v": 1,
                **_NIGHT,
                "step": 1,
                "users": [9, 12],
                "norms": [0.25, 1.0],
                "scale": 4.0,
                "clip_norm": 1.0,
            },
        ),
        Example(
            "out-of-order",
            "The step does not follow step 1 and is rejected. Absent fields have their defaults.",
            {"type": "charge", "v": 1, **_NIGHT, "step": 7, "users": [], "norms": []},
        ),
        _asked(
            "three",
            "Users 9, 12 and 20 become positions 0, 1 and 2. Levels are quarters of the norm 1.",
            "enrol",
            **_NIGHT,
            first=0,
            users=[9, 12, 20],
            clip_norm=1.0,
            levels=4,
        ),
        Example(
            "first",
            "The next step, for all members at the highest level. Levels 0 to 4 cost 0, 1, 4, 9 "
            "and 16 times 2**33 units.",
            {
                "type": "charge-roster",
                "v": 1,
                **_NIGHT,
                "step": 2,
                **priced,
                "units": base64.b64encode(_UNITS).decode(),
                "scale": 8.0,
            },
            is_json=False,
        ),
        Example(
            "sparse",
            "The step after it, at the same costs. Position 0 changes to level 2.",
            {
                "type": "charge-roster",
                "v": 1,
                **_NIGHT,
                "step": 3,
                **priced,
                "positions": _packed("I", 0),
                "levels": base64.b64encode(b"\2").decode(),
                "scale": 8.0,
            },
        ),
        _asked("done", "The training is over.", "close-run", **_NIGHT),
        _asked(
            "nested",
            "The first attempt of a run of a nested dataset.",
            "open-run",
            **{**_DAY, "attempt": 0},
        ),
        _charge(
            "nested",
            "Users 9 and 20, with norms 0.25 and 2.",
            _DAY | {"step": 0},
            [9, 20],
            [0.25, 2.0],
            scale=8.0,
        ),
        _asked(
            "separated",
            "A run in which a user takes part in every third step at most.",
            "open-run",
            **{**_FTRL, "attempt": 0},
            min_separation=3,
        ),
        _charge(
            "separated", "User 9, with norm 0.25.", _FTRL | {"step": 0}, [9], [0.25], scale=8.0
        ),
        _charge(
            "too-soon",
            "The next step, of users 9 and 22.",
            _FTRL | {"step": 1},
            [9, 22],
            [0.25, 0.25],
            scale=8.0,
        ),
        _asked(
            "user-22",
            "In one dataset, and so in its parents.",
            "erase",
            user=22,
            dataset="digits",
            hidden=True,
        ),
        _charge(
            "erased",
            "Another step, of user 22, who is erased.",
            _FTRL | {"step": 2},
            [22],
            [0.25],
            scale=8.0,
        ),
        _asked(
            "guarded",
            "A dataset with an access list. The id of this log is 16 zero bytes.",
            "create-dataset",
            policy=guarded,
            log=log,
        ),
        change,
        _signed("manager", "The request above, signed by the key with the right manage.", change),
        _asked(
            "digits",
            "The runs of the dataset are closed as well.",
            "close-dataset",
            dataset="digits",
        ),
    ]


def endings() -> list[Example]:
    """Return the requests about whole logs, here about one without datasets."""
    agreement = hashlib.sha256(msgspec.msgpack.encode([[], [], []])).digest()
    log = base64.b64encode(bytes(range(16))).decode()
    retired = _asked(
        "log",
        "Another log, of 6 partitions, continues the state.",
        "retire",
        successor=log,
        partitions=6,
        agreement=base64.b64encode(agreement).decode(),
    )
    payload = {"type": "import", "v": 1, "origin": log, "partitions": 4}
    later = Example("log", "It is rejected here, because it is not the first record.", payload)
    return [retired, later]


def encoded(example: Example, record: type[msgspec.Struct]) -> bytes:
    """Return the bytes of a request, as a client sends them."""
    text = msgspec.json.encode(example.payload)
    return (
        text if example.is_json else msgspec.msgpack.encode(msgspec.json.decode(text, type=record))
    )
