"""What workers published, in the auditor's terms: plain dictionaries, lists and numbers."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
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
        if "collected" in answer:
            answer["collected"] = numbers_of(answer["collected"], "q")
            answer["norms"] = numbers_of(answer["norms"], "d")
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


Published = Iterable[tuple[int, int, bytes | None]]
"""Records of `halts`: partition, offset and value."""


def answers_of(halts: Published) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the partition and the answer of each record, and decisions joined from their parts."""
    parts: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for partition, _, value in halts:
        answer = published_answer(value or b"")
        if answer["type"] != "decision" or "parts" not in answer:
            yield partition, answer
            continue
        names = "dataset", "run", "attempt", "step", "offset", "parts"
        key = partition, *(answer[name] for name in names)
        same = parts[key].setdefault(answer["part"], answer)
        assert same == answer, f"part {answer['part']} of {key} was published in two ways"
    for (partition, *_), each in parts.items():
        yield partition, _joined([each[number] for number in sorted(each)])


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the decision of which these are the parts, in order."""
    numbers = [part["part"] for part in parts]
    assert numbers == list(range(parts[0]["parts"])), f"only parts {numbers} of {parts[0]}"
    whole = {name: value for name, value in parts[0].items() if name not in ("part", "parts")}
    listed = {name for name, value in whole.items() if isinstance(value, list)} - {"budgets"}
    for part in parts[1:]:
        assert part["users"], "a part about no users"
        for name, value in whole.items():
            rest = part[name]
            if name == "clipped":
                rest = [whole["users"] + position for position in rest]
            if name in listed:
                whole[name] = value + rest
            else:
                assert name in ("users", "v") or rest == value, f"{name} differs in a part"
        whole["users"] += part["users"]
    return whole


def granted_norms(
    halts: Published,
) -> dict[tuple[Any, ...], dict[int, float]]:
    """(dataset, run, step, partition) -> position -> the norm that clipping granted."""
    granted = {}
    for partition, answer in answers_of(halts):
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
