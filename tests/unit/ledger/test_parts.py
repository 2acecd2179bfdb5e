"""Each part of an answer is a record that brokers take by default; all parts are the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from streams.ledger import parts
from streams.ledger.outputs import Place, halted_of, in_parts
from streams.ledger.parts import joined, parts_of
from streams.records import (
    MAX_RECORD_BYTES,
    ChargeRoster,
    Decision,
    Enrolled,
    Halted,
    RosterDecision,
    decode_answer,
    encode_output,
)
from streams.records.json_outputs import LISTED, to_json, to_msgpack
from streams.records.packing import pack_bits, pack_positions, unpack_bits
from streams.records.users import UserIds

ABOUT: dict[str, Any] = {"dataset": "d", "run": "r", "attempt": 1, "partition": 0, "offset": 7}
KEYS: dict[str, Any] = {"dataset": "d", "run": "r", "attempt": 1, "step": 3}


def some(rng: np.random.Generator, count: int, share: float) -> np.ndarray:
    return np.flatnonzero(rng.random(count) < share)


def roster_decision(count: int, rng: np.random.Generator, share: float) -> RosterDecision:
    regranted = some(rng, count, share)
    return RosterDecision(
        **ABOUT,
        step=3,
        digest=bytes(16),
        members=count,
        halted=pack_positions(some(rng, count, share), count),
        readmitted=pack_positions(some(rng, count, share), count),
        exhausted=pack_positions(some(rng, count, share), count),
        regranted=pack_positions(regranted, count),
        granted=rng.bytes(len(regranted)),
    )


def roster(count: int, rng: np.random.Generator, share: float, decided: int = 0) -> Enrolled:
    """Return the answer about members of whom the last step has decided some, or none."""
    erased = pack_positions(some(rng, count, share), count)
    return Enrolled(
        **ABOUT,
        request="t",
        last_step=3,
        members=count,
        digests=bytes(16 * (count // 4096 + 1)),
        clip_norm=1.0,
        grid=255,
        levels=rng.bytes(count),
        granted=rng.bytes(count),
        halted=pack_positions(some(rng, count, share), count),
        exhausted=pack_positions(some(rng, count, share), count),
        decision=encode_output(roster_decision(decided, rng, share)) if decided else b"",
        erased=UNSET if erased == b"\0" else erased,
    )


def decision(count: int, rng: np.random.Generator, share: float) -> Decision:
    let_in = rng.random(count) >= share
    lower = np.flatnonzero(let_in)
    return Decision(
        **ABOUT,
        step=3,
        digest=bytes(16),
        users=count,
        admitted=pack_bits(let_in),
        exhausted=pack_bits(~let_in),
        halted=UserIds(np.flatnonzero(~let_in)).pack(),
        reasons=bytes(int((~let_in).sum())),
        budgets=["d"],
        clipped=lower.astype("<u4").tobytes(),
        granted=rng.random(len(lower)).tobytes(),
    )


def decided_norms(count: int, rng: np.random.Generator, share: float) -> Decision:
    about = decision(count, rng, share)
    let_in = unpack_bits(about.admitted, count)
    users = UserIds([f"{number}" + "\x01" * 250 for number in range(count)])
    return replace(
        about,
        halted=users.select(np.flatnonzero(~let_in)).pack(),
        collected=users.select(np.flatnonzero(let_in)).pack(),
        norms=rng.random(int(let_in.sum())).tobytes(),
    )


def halted(count: int, rng: np.random.Generator, share: float) -> Halted:
    users = [f"{number}" + "\x01" * 250 for number in range(count)]
    exhausted = pack_bits(rng.random(count) < share)
    about = {**ABOUT, "step": 3, "budgets": ["d"], "part": 0, "parts": 1}
    return Halted(**about, users=users, exhausted=exhausted, reasons=bytes(count))


KINDS: dict[str, Callable[[int, np.random.Generator, float], Any]] = {
    "a decision": decision,
    "a decision about collected norms": decided_norms,
    "a decision about a roster": roster_decision,
    "a roster": lambda count, rng, share: roster(count, rng, share, decided=count),
    "halt events": halted,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_an_answer_has_several_parts_only_above_the_maximum(make: Any, share: float) -> None:
    def size(count: int) -> int:
        packed = encode_output(replace(make(count, np.random.default_rng(1), share)))
        return max(len(packed), len(to_json(packed)))

    least, most = 100, 8_000 if make in (halted, decided_norms) else 4_000_000
    while most - least > 1:  # the largest number of rows that one record has
        middle = (least + most) // 2
        least, most = (middle, most) if size(middle) <= MAX_RECORD_BYTES else (least, middle)
    below, above = (make(count, np.random.default_rng(1), share) for count in (least, least + 1))
    assert MAX_RECORD_BYTES - 2_000 < size(least) <= MAX_RECORD_BYTES < size(least + 1)
    assert parts_of(below) == [below]
    made = parts_of(above)
    assert [(part.part, part.parts) for part in made] == [(0, 2), (1, 2)]


@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    st.sampled_from([1, 500, 2_000]),
    st.integers(0, 2**32),
)
def test_parts_fit_and_join_to_the_answer(kind, count, share, most, seed):
    answer = KINDS[kind](count, np.random.default_rng(seed), share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MAX_PART_BYTES", most)
        made = parts_of(answer)
    for part in made:
        packed = encode_output(part)
        assert to_msgpack(to_json(packed)) == packed
        assert decode_answer(packed) == part
        assert parts.rows_of(part) == 1 or max(len(packed), len(to_json(packed))) <= most + 20
    if kind == "halt events":
        assert [user for part in made for user in part.users] == answer.users
        return
    assert joined(made) == answer
    if len(made) > 1:
        for wrong in (made[1:], made[:-1], made[::-1], [*made, made[0]]):
            with pytest.raises(ValueError, match="parts"):
                joined(wrong)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("count", [LISTED, LISTED + 1])
def test_listed_and_packed_answers_return_from_json(make: Any, count: int) -> None:
    packed = encode_output(make(count, np.random.default_rng(1), 1.0))
    assert to_msgpack(to_json(packed)) == packed


@pytest.mark.slow
@pytest.mark.parametrize("make", [decision, decided_norms, roster_decision])
def test_a_step_that_a_later_attempt_repeats_has_the_same_parts(make: Any) -> None:
    """Otherwise followers would take the parts for decisions that contradict each other."""
    answer = make(90, np.random.default_rng(1), 0.5)
    request = ChargeRoster(**KEYS, members=90, cost_table_digest=bytes(16))
    for most in range(300, 600):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "MAX_PART_BYTES", most)
            first, again = (
                [
                    decode_answer(output.value)
                    for output in in_parts(request, each, encode_output(each))
                ]
                for each in (answer, replace(answer, attempt=2**62))
            )
        assert again == [replace(part, attempt=2**62) for part in first]


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 500, 2_000]))
def test_a_roster_that_grew_since_its_decision_is_joined(decided, more, most):
    answer = roster(decided + more, np.random.default_rng(0), 0.3, decided)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MAX_PART_BYTES", most)
        assert joined(parts_of(answer)) == answer


def test_parts_of_several_answers_are_not_joined():
    rng = np.random.default_rng(0)
    for first, second in (
        (roster_decision(9, rng, 0.5), roster_decision(9, rng, 0.5)),
        (roster(9, rng, 0.5), roster(9, rng, 0.5)),
    ):
        other = replace(second, part=1, parts=2, offset=8)
        with pytest.raises(ValueError, match="parts"):
            joined([replace(first, part=0, parts=2), other])


def test_parts_that_no_worker_has_made_are_not_joined():
    rng = np.random.default_rng(0)
    whole = roster(90, rng, 0.5, decided=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MAX_PART_BYTES", 500)
        first, *others = parts_of(whole)
    for changes in (
        {"erased": UNSET},
        {"decision": b""},
        {"decision": b"\xc1"},
        {"decision": first.decision[:-1]},
        {"members": -1},
        {"halted": b"\2"},
        {"digests": b""},
    ):
        for made in ([replace(first, **changes), *others], [first, replace(others[0], **changes)]):
            numbered = parts.numbered(made)
            with pytest.raises(ValueError):
                joined(numbered)


def test_a_part_about_too_many_users_takes_no_memory():
    made = parts.numbered([decision(9, np.random.default_rng(0), 0.5)] * 2)
    with pytest.raises(ValueError, match="bit sets"):
        joined([made[0], replace(made[1], users=2**62)])


def test_halt_events_are_numbered_over_all_their_parts():
    count = 20_000
    users = UserIds([f"{number}" + "\x01" * 250 for number in range(count)])
    charge = ChargeRoster(**KEYS, members=count, cost_table_digest=bytes(16))
    columns = np.arange(count) % 3 == 0, np.zeros(count, dtype=np.uint8)
    outputs = halted_of(charge, users, *columns, ["d" * 128], Place(0, 9))
    made = [decode_answer(output.value) for output in outputs]
    assert [(part.part, part.parts) for part in made] == [(n, len(made)) for n in range(len(made))]
    assert [user for part in made for user in part.users] == users.tolist()
    assert max(len(to_json(output.value)) for output in outputs) <= MAX_RECORD_BYTES
