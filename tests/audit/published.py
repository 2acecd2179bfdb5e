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
    """Yield the partition and the answer of each record, and answers joined from their parts."""
    parts: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for partition, _, value in halts:
        answer = published_answer(value or b"")
        if "parts" not in answer:
            yield partition, answer
            continue
        names = "type", "dataset", "run", "attempt", "step", "request", "offset", "parts"
        key = partition, *(answer.get(name) for name in names)
        same = parts[key].setdefault(answer["part"], answer)
        assert same == answer, f"part {answer['part']} of {key} was published in two ways"
    for (partition, *_), each in parts.items():
        yield partition, _joined([each[number] for number in sorted(each)])


_COUNTS = {"decision": "users", "roster-decision": "members", "enrolled": "members"}
"""The field with the number of users or members that an answer is about."""
_POSITIONS = {
    "decision": {"clipped"},
    "roster-decision": {"halted", "readmitted", "exhausted", "regranted"},
    "enrolled": {"halted", "exhausted", "erased"},
    "halted": set(),
}
"""The fields with positions, which begin at 0 in each part."""


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of which these are the parts, in order."""
    numbers = [part["part"] for part in parts]
    assert numbers == list(range(parts[0]["parts"])), f"only parts {numbers} of {parts[0]}"
    return _joined_rows([{**part, "part": None, "parts": None} for part in parts])


def _joined_rows(parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole = {name: value for name, value in parts[0].items() if value is not None}
    listed = {name for name, value in whole.items() if isinstance(value, list)} - {"budgets"}
    count, positions = _COUNTS.get(whole["type"]), _POSITIONS[whole["type"]]
    for part in parts[1:]:
        assert part.keys() == parts[0].keys(), f"other fields in a part: {part.keys()}"
        assert count is None or part[count] or whole["type"] == "roster-decision", "an empty part"
        for name, value in whole.items():
            rest = part[name]
            if name in positions:
                rest = [whole[count] + position for position in rest]
            if name in listed:
                whole[name] = value + rest
            else:
                same = rest == value or name in (count, "decision")
                assert same, f"{name} differs in a part"
        if count is not None:
            whole[count] += part[count]
    if whole.get("decision"):
        whole["decision"] = _joined_rows([part["decision"] for part in parts])
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
