"""What workers published, in the auditor's terms: plain dictionaries, lists and numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from tests.audit.auditor_requests import POLICY, fits, numbers_of
from tests.audit.auditor_rosters import published_positions


def _bits(packed: bytes, count: int) -> list[bool]:
    assert len(packed) == -(-count // 8)
    return [bool(packed[i // 8] >> (i % 8) & 1) for i in range(count)]


@cache
def published_answer(value: bytes) -> dict[str, Any]:
    """A record of `halts` in the auditor's terms."""
    answer = msgspec.msgpack.decode(value)
    if answer["type"] == "decision":
        count = answer["users"]
        answer["admitted"] = _bits(answer["admitted"], count)
        answer["exhausted"] = _bits(answer["exhausted"], count)
        answer["halted"] = numbers_of(answer["halted"], "q")
        clipped, granted = answer.get("clipped", b""), answer.get("granted", b"")
        answer["clipped"] = list(struct.unpack(f"<{len(clipped) // 4}I", clipped))
        answer["granted"] = numbers_of(granted, "d")
        answer["reasons"] = list(answer["reasons"])
    elif answer["type"] == "roster-decision":
        for name in ("halted", "readmitted", "exhausted", "regranted"):
            answer[name] = published_positions(answer[name], answer["members"])
        answer["granted"] = list(answer["granted"])
    elif answer["type"] == "enrolled":
        for name in ("halted", "exhausted"):
            answer[name] = published_positions(answer[name], answer["members"])
        if "erased" in answer:
            answer["erased"] = published_positions(answer["erased"], answer["members"])
        answer["levels"], answer["granted"] = list(answer["levels"]), list(answer["granted"])
        answer["decision"] = published_answer(answer["decision"]) if answer["decision"] else {}
    elif answer["type"] == "halted":
        answer["users"] = numbers_of(answer["users"], "q")
        answer["exhausted"] = _bits(answer["exhausted"], len(answer["users"]))
        answer["reasons"] = list(answer["reasons"])
    elif "policy" in answer:
        assert all(fits(policy, POLICY) for policy in [answer["policy"], *answer.get("outer", [])])
    return answer


def granted_norms(
    halts: Iterable[tuple[int, int, bytes | None]],
) -> dict[tuple[Any, ...], dict[int, float]]:
    """(dataset, run, step, partition) -> position -> the norm that clipping granted."""
    granted = {}
    for partition, _, value in halts:
        answer = published_answer(value or b"")
        if answer["type"] != "roster-decision" and answer.get("clipped"):
            key = answer["dataset"], answer["run"], answer["step"], partition
            granted[key] = dict(zip(answer["clipped"], answer["granted"], strict=True))
    return granted


def frozen(value: Any) -> Any:
    """The same, hashable, with the names of a mapping in order."""
    if isinstance(value, dict):
        return tuple((name, frozen(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return value
