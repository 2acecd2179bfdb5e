"""Parts of large answers: brokers take each of them by default.

An answer is about rows: the users of a charge, the members of a roster, or HALT events. A part is
about some of these rows, in their order, and its positions begin at 0. All parts together are the
answer; if one is missing, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streams.records import (
    MAX_RECORD_BYTES,
    Decision,
    Enrolled,
    Halted,
    RosterDecision,
    encode_output,
)
from streams.records.json_outputs import LISTED, to_json
from streams.records.packing import pack_bits, pack_positions, unpack_bits, unpack_positions
from streams.records.users import UserIds

Parted: TypeAlias = Decision | RosterDecision | Enrolled | Halted
AnyParted = TypeVar("AnyParted", bound=Parted)
Joined: TypeAlias = Decision | RosterDecision | Enrolled
AnyJoined = TypeVar("AnyJoined", bound=Joined)

MAX_PART_BYTES = MAX_RECORD_BYTES
"""The maximum size of a part in either form."""
_EVENT_BYTES = 256  # of a HALT event in JSON, with the name of a budget, without the id
_CHANGES = ("halted", "readmitted", "exhausted", "regranted")
_decode_roster = msgspec.msgpack.Decoder(RosterDecision).decode


def parts_of(answer: AnyParted) -> list[AnyParted]:
    """Return the parts of an answer, numbered; the answer itself if it is small enough."""
    if is_small(len(encode_output(answer))):
        return [answer]
    parts = list(halves_of(answer))
    return parts if len(parts) == 1 else numbered(parts)


def is_small(size: int) -> bool:
    """Return whether an encoded answer of this size, in bytes, fits into a record as JSON too."""
    # JSON takes at most six times as many bytes, because one control character becomes six, and
    # what is listed.
    return 6 * size + LISTED * _EVENT_BYTES <= MAX_PART_BYTES


def halves_of(answer: AnyParted) -> Iterator[AnyParted]:
    """Yield parts that fit into a record each: first halves, then their halves."""
    count = rows_of(answer)
    if count > 1:
        packed = encode_output(answer)
        if len(packed) > MAX_PART_BYTES or len(to_json(packed)) > MAX_PART_BYTES:
            yield from halves_of(part_of(answer, 0, count // 2))
            yield from halves_of(part_of(answer, count // 2, count))
            return
    yield answer


def numbered(parts: Sequence[AnyParted]) -> list[AnyParted]:
    """Return parts with their numbers."""
    changed = msgspec.structs.replace
    return [changed(part, part=at, parts=len(parts)) for at, part in enumerate(parts)]


def rows_of(answer: Parted) -> int:
    """Return the number of users, members or HALT events that an answer is about."""
    match answer:
        case Decision():
            return answer.users
        case Halted():
            return len(answer.reasons)
    return answer.members


def part_of(answer: AnyParted, start: int, end: int) -> AnyParted:
    """Return the part of an answer about the rows from start to end."""
    fields = _SLICES[type(answer)](answer, start, end)
    return msgspec.structs.replace(answer, **fields)


def _slice_of_decision(decision: Decision, start: int, end: int) -> dict[str, Any]:
    admitted = unpack_bits(decision.admitted, decision.users)
    before, within = np.count_nonzero(admitted[:start]), np.count_nonzero(admitted[start:end])
    let_in = slice(int(before), int(before + within))
    out = slice(start - int(before), end - int(before + within))
    clipped = np.frombuffer(decision.clipped, dtype="<u4")
    lower = (start <= clipped) & (clipped < end)
    granted = np.frombuffer(decision.granted, dtype="<f8")
    collected = {}
    if decision.collected is not UNSET and decision.norms is not UNSET:
        norms = np.frombuffer(decision.norms, dtype="<f8")[let_in]
        collected = {"collected": UserIds.unpack(decision.collected)[let_in].pack()}
        collected["norms"] = norms.tobytes()
    return {
        "users": end - start,
        "admitted": pack_bits(admitted[start:end]),
        "exhausted": pack_bits(unpack_bits(decision.exhausted, decision.users)[start:end]),
        "halted": UserIds.unpack(decision.halted)[out].pack(),
        "reasons": decision.reasons[out],
        "clipped": (clipped[lower] - np.uint32(start)).astype("<u4").tobytes(),
        "granted": granted[lower].tobytes(),
        **collected,
    }


def _slice_of_changes(decision: RosterDecision, start: int, end: int) -> dict[str, Any]:
    regranted = unpack_positions(decision.regranted, decision.members)
    first, last = np.searchsorted(regranted, [start, end]).tolist()
    return {
        "members": end - start,
        "granted": decision.granted[first:last],
        **_positions_between(decision, _CHANGES, start, end),
    }


def _slice_of_roster(roster: Enrolled, start: int, end: int) -> dict[str, Any]:
    decision = b""
    if roster.decision:  # which may be about fewer members
        decided = _decode_roster(roster.decision)
        first, last = (min(place, decided.members) for place in (start, end))
        decision = encode_output(part_of(decided, first, last))
    return {
        "members": end - start,
        "levels": roster.levels[start:end],
        "granted": roster.granted[start:end],
        "decision": decision,
        **_positions_between(roster, _marks_of(roster), start, end),
    }


def _slice_of_halts(halted: Halted, start: int, end: int) -> dict[str, Any]:
    exhausted = unpack_bits(halted.exhausted, len(halted.reasons))
    return {
        "users": UserIds.unpack(halted.users)[start:end].pack(),
        "exhausted": pack_bits(exhausted[start:end]),
        "reasons": halted.reasons[start:end],
    }


_SLICES: dict[type[object], Callable[[Any, int, int], dict[str, Any]]] = {
    Decision: _slice_of_decision,
    RosterDecision: _slice_of_changes,
    Enrolled: _slice_of_roster,
    Halted: _slice_of_halts,
}
"""Returns the fields of a part about the rows from start to end, for each kind of answer."""


def _marks_of(roster: Enrolled) -> tuple[str, ...]:
    """Return the fields that have positions of members."""
    return ("halted", "exhausted", "erased")[: 2 + (roster.erased is not UNSET)]


def _positions_between(
    answer: RosterDecision | Enrolled, names: Sequence[str], start: int, end: int
) -> dict[str, bytes]:
    """Return the positions in these fields from start to end, as those of a part."""
    found = {}
    for name in names:
        positions = unpack_positions(getattr(answer, name), answer.members)
        first, last = np.searchsorted(positions, [start, end])
        found[name] = pack_positions(positions[first:last] - start, end - start)
    return found


def joined(parts: Sequence[AnyJoined]) -> AnyJoined:
    """Return the answer whose parts, all and in order, these are, or raise ``ValueError``."""
    first = parts[0]
    if len(parts) == 1 and first.parts is UNSET:
        return first
    about = _without_rows(first)
    numbers = [(part.part, part.parts) for part in parts]
    if numbers != [(number, len(parts)) for number in range(len(parts))] or any(
        _without_rows(part) != about for part in parts
    ):
        raise ValueError("has parts that are missing or do not belong together")
    try:
        return msgspec.structs.replace(about, **_JOINS[type(first)](parts))
    except msgspec.DecodeError as error:
        raise ValueError(f"has parts that cannot be read: {error}") from error


def _without_rows(part: AnyJoined) -> AnyJoined:
    """Return a part without its number and without what it says about its rows."""
    given = [name for name in _ROWS[type(part)] if getattr(part, name) is not UNSET]
    blank = dict.fromkeys(given, b"")
    return msgspec.structs.replace(part, part=UNSET, parts=UNSET, **blank)


def _join_decisions(parts: Sequence[Decision]) -> dict[str, Any]:
    starts = _starts([part.users for part in parts])
    # Before memory is taken for this number of users.
    if any(not len(p.admitted) == len(p.exhausted) == -(-p.users // 8) for p in parts):
        raise ValueError("has parts with bit sets of the wrong length")
    is_collected = all(part.collected is not UNSET for part in parts)
    bits = {
        name: pack_bits(np.concatenate([unpack_bits(getattr(p, name), p.users) for p in parts]))
        for name in ("admitted", "exhausted")
    }
    clipped = [
        np.frombuffer(part.clipped, dtype="<u4") + np.uint32(start)
        for part, start in zip(parts, starts, strict=False)
    ]
    users = {
        name: reduce(UserIds.join, (UserIds.unpack(getattr(part, name)) for part in parts)).pack()
        for name in ("halted", "collected")[: 1 + is_collected]
    }
    return {
        "users": int(starts[-1]),
        "clipped": np.concatenate(clipped).astype("<u4").tobytes(),
        **_bytes_in(parts, ("reasons", "granted", "norms")[: 2 + is_collected]),
        **bits,
        **users,
    }


def _join_changes(parts: Sequence[RosterDecision]) -> dict[str, Any]:
    members = _starts([part.members for part in parts])
    return {
        "members": int(members[-1]),
        **_bytes_in(parts, ["granted"]),
        **_positions_in(parts, _CHANGES, members),
    }


def _join_rosters(parts: Sequence[Enrolled]) -> dict[str, Any]:
    members = _starts([part.members for part in parts])
    decision = b""
    if any(part.decision for part in parts):
        decisions = [_decode_roster(part.decision) for part in parts]
        decision = encode_output(joined(numbered(decisions)))
    return {
        "members": int(members[-1]),
        "decision": decision,
        **_bytes_in(parts, ("levels", "granted")),
        **_positions_in(parts, _marks_of(parts[0]), members),
    }


_ROWS: dict[type[object], tuple[str, ...]] = {
    Decision: (
        *("users", "admitted", "exhausted", "halted", "reasons"),
        *("clipped", "granted", "collected", "norms"),
    ),
    RosterDecision: ("members", "granted", *_CHANGES),
    Enrolled: ("members", "levels", "granted", "decision", "halted", "exhausted", "erased"),
}
"""The fields about the rows, for each kind of answer."""

_JOINS: dict[type[object], Callable[[Any], dict[str, Any]]] = {
    Decision: _join_decisions,
    RosterDecision: _join_changes,
    Enrolled: _join_rosters,
}
"""Returns the fields about the rows of all parts, for each kind of answer."""


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of rows before each part, and of all; ``ValueError`` if one is negative."""
    if min(counts) < 0:
        raise ValueError("has a part about fewer than no rows")
    return np.cumsum([0, *counts])


def _bytes_in(parts: Sequence[Joined], names: Sequence[str]) -> dict[str, bytes]:
    return {name: b"".join(getattr(part, name) for part in parts) for name in names}


def _positions_in(
    parts: Sequence[RosterDecision | Enrolled], names: Sequence[str], members: NDArray[np.int64]
) -> dict[str, bytes]:
    """Return the positions in these fields of all parts, among all members."""
    found = {}
    for name in names:
        positions = [
            unpack_positions(getattr(part, name), part.members) + start
            for part, start in zip(parts, members, strict=False)
        ]
        found[name] = pack_positions(np.concatenate(positions), int(members[-1]))
    return found
