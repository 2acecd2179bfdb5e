"""Damages records: other values in their fields, other octets, and structures of any form."""

import random
from typing import Any

import msgspec

from tests.unit.ledger.test_bad_requests import IN_MSGPACK_ONLY, POLICY, REQUESTS, VALUES

OPTIONAL = {"collect", "collected", "reserve", "min_separation", "take_over", "confirms"}
FIELDS = sorted({"type", "v", *OPTIONAL, *POLICY, *(n for r in REQUESTS.values() for n in r)})
MOST_FIELDS = 28
"""The maximum number of fields of a random map."""
DAMAGES = {"field": 80, "octets": 9, "cut": 6, "splice": 4, "random": 4, "structure": 4}


class Damage:
    """Makes a damaged record out of a good one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last = b"{}"

    def damaged(self, value: bytes) -> bytes:
        rng, octets = self._rng, bytearray(value)
        match rng.choices(list(DAMAGES), list(DAMAGES.values()))[0]:
            case "field":
                octets[:] = self._with_another_value(value)
            case "octets":
                for _ in range(rng.randint(1, 4)):
                    octets[rng.randrange(len(octets))] = rng.randrange(256)
            case "cut":
                start = rng.randrange(len(octets))
                del octets[start : start + rng.randint(1, 9)]
            case "splice":
                place = rng.randrange(len(octets))
                octets[place:] = self._last[rng.randrange(len(self._last)) :]
            case "random":
                octets[:] = rng.randbytes(rng.randrange(1, 60))
            case "structure":
                octets[:] = self._encoded(
                    self._map(3) if rng.random() < 0.9 else self._structure(4)
                )
        self._last = bytes(octets) or self._last
        return bytes(octets)

    def _with_another_value(self, value: bytes) -> bytes:
        """Set a field, or two, to anything; of a policy, too."""
        rng = self._rng
        try:
            record = msgspec.msgpack.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return value
        if not isinstance(record, dict):
            return value
        policy = record.get("policy")
        inner = policy if isinstance(policy, dict) and rng.random() < 0.7 else record
        for _ in range(rng.choice([1, 1, 2])):
            name = rng.choice([*inner, "unknown"])
            inner[name] = rng.choice(VALUES + IN_MSGPACK_ONLY)
        fields = list(record.items())
        rng.shuffle(fields)
        try:
            return self._encoded(dict(fields))
        except (TypeError, OverflowError):  # JSON has fewer keys and numbers
            return msgspec.msgpack.encode(dict(fields))

    def _encoded(self, structure: Any) -> bytes:
        return self._rng.choice([msgspec.json.encode, msgspec.msgpack.encode])(structure)

    def _map(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(FIELDS, rng.randrange(MOST_FIELDS))
        structure = {name: self._structure(depth - 1) for name in names}
        if rng.random() < 0.8:
            structure["type"] = rng.choice(list(REQUESTS))
        return structure

    def _structure(self, depth: int) -> Any:
        rng = self._rng
        match rng.randrange(8) if depth else 0:
            case 1:
                return [self._structure(depth - 1) for _ in range(rng.randrange(5))]
            case 2:
                return self._map(depth)
            case 3:
                return rng.getrandbits(63) >> rng.randrange(63)
            case 4:
                return "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randrange(6)))
            case _:
                return rng.choice(VALUES)


def repeats_a_field(value: bytes | None) -> bool:
    """Return whether a field may appear twice.

    The outcome of such a record depends on the decoder, so the auditor cannot judge it.
    """
    octets = value or b""
    try:  # a signed one has a record in it, which repeats nothing by having the same fields
        inner = msgspec.msgpack.decode(octets, type=_Signed).request
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _repeats(octets)
    return _repeats(inner) or _repeats(octets.replace(inner, b"") if inner else octets)


class _Signed(msgspec.Struct):
    request: bytes


def _repeats(octets: bytes) -> bool:
    names = [name.encode() for name in FIELDS]
    in_json = (octets.count(b'"%b":' % name) for name in names)
    in_msgpack = (octets.count(bytes([0xA0 + len(name)]) + name) for name in names)
    return max(*in_json, *in_msgpack) > 1
