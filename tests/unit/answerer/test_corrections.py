"""What a block left out is charged from the reserve, once, and corrects the block's answers."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import Turnstile
from streams.answerer.corrections import Corrected, MissingRatio, correct, ratio_of
from streams.answerer.kinds import Floats
from streams.answerer.published_answers import AnswerRecord, Correction, PrivateAnswer
from streams.answerer.window_answering import InconsistentRun
from streams.records import Policy
from tests.examples import examples
from tests.unit.answerer.asking import FILE, answered, asked_of, event
from tests.unit.answerer.blocks import EVENTS, SLIDING, SUM, TWO, corrected
from tests.unit.answerer.lives import World

CALM = corrected()
CALM.live()


def records_of(world: World) -> list[AnswerRecord]:
    return [msgspec.json.decode(value, type=AnswerRecord) for _, value in world.topics.answers]


def corrections_of(world: World) -> list[Correction]:
    return [one for one in records_of(world) if isinstance(one, Correction)]


def test_corrected_answers_are_about_all_users() -> None:
    corrections = corrections_of(CALM)
    assert Counter(one.query for one in corrections) == {"count": 2, "slid": 4}
    assert [one.step for one in records_of(CALM)] == list(range(len(records_of(CALM))))
    raw = {one.step: one for one in records_of(CALM) if isinstance(one, PrivateAnswer)}
    left_out = 0.0
    for correction in corrections:
        query = asked_of(TWO).queries[correction.query == "slid"]
        for window in correction.windows:
            answer = raw[window.step]
            assert (answer.value, answer.start) == (window.raw, window.start)
            assert (answer.provisional_until is None) == (correction.left_out_stddev == 0.0)
        total = sum(
            min(count, 2)
            for window in correction.windows
            for start in [round(1000 * _seconds(window.start))]
            for count in Counter(
                user
                for user, time in EVENTS
                if start <= time < start + query.window.within(None)[0]
            ).values()
        )
        admitted = sum(window.raw for window in correction.windows)
        assert correction.shared_stddev == correction.left_out_stddev / len(correction.windows)
        noise = 10.0 * (correction.left_out_stddev + 1.0)
        assert admitted + correction.left_out == pytest.approx(total, abs=noise)
        left_out += correction.left_out
    assert left_out > 15.0
    after = [one for one in raw.values() if one.query == "count"][4:]
    assert len(after) == 2
    assert {one.provisional_until for one in after} == {None}


def test_a_block_follows_the_ratio_of_the_block_before() -> None:
    noises = {one.step: one.noise_stddev for one in records_of(CALM) if one.coverage == "admitted"}
    before: dict[str, MissingRatio] = {}
    differ = 0
    for one in corrections_of(CALM):
        values = np.array([[window.raw] for window in one.windows])
        noise, left_out = noises[one.windows[0].step], np.array([one.left_out])
        block = values, noise, left_out, one.left_out_stddev
        found, alone = (correct(*block, at, 0.95) for at in (before.get(one.query), None))
        assert [window.value for window in one.windows] == found.value[:, 0].tolist()
        assert [window.upper for window in one.windows] == found.upper[:, 0].tolist()
        differ += not np.array_equal(found.upper, alone.upper)
        before[one.query] = ratio_of(*block)
    assert differ > 1


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def test_missing_entry_of_an_open_block_is_found() -> None:
    world = corrected()
    world.events = world.events[: 3 * 17]
    world.live()
    lost = next(entry for entry in world.entries if entry.block == "count")
    assert lost is not world.entries[-1]
    world.topics.entries.remove(lost)
    with pytest.raises(InconsistentRun):
        world.live()


EVENT = st.tuples(st.integers(0, 119), st.integers(0, 3), st.sampled_from([2.0, 1.3, 0.4, -2.0]))
POLICIES: dict[str, dict[str, Any]] = {
    "zcdp": {"measure": "zcdp", "budget": 0.5},
    "gdp": {"measure": "gdp", "budget": 1.0},
    "clip": {"measure": "gdp", "budget": 1.0, "on_exhaustion": "clip"},
}
TEXT = FILE + SUM + SLIDING.replace('"count"\nkind = "count"', '"q"\nkind = "sum"\ncolumn = "x"')


def lived(
    events: list[tuple[int, int, float]], policy: dict[str, Any], text: str = TEXT
) -> tuple[list[AnswerRecord], list[Any], Policy]:
    """Answer queries about these events; return records, charges and the policy."""
    turnstile = Turnstile.in_memory(partitions=1)
    held = turnstile.create_dataset("d", user_ids="integer", **policy)
    charges: list[Any] = []
    sent = [event(user, time, x=x) for time, user, x in sorted(events)]
    look = lambda record, charge: charges.append(charge)  # noqa: E731
    records = answered(asked_of(text), turnstile, sent, look, seed=7)
    return records, charges, held


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(rest=st.lists(EVENT, max_size=60))
@examples(10)
def test_every_user_can_pay_for_both_queries(
    policy: dict[str, Any], rest: list[tuple[int, int, float]]
) -> None:
    """User 0 adds the most to every window, so no user is charged more."""
    events = rest + [(time, 0, 2.0) for time in range(120)]
    records, charges, held = lived(events, policy)
    reserve = 0.4
    spent: Counter[int] = Counter()
    for record, charge in zip(records, charges, strict=True):
        granted = charge.decision.granted
        square = np.square(granted / noise_of(record)) if granted.size else granted
        for user, cost in zip(charge.users, square.tolist(), strict=True):
            spent[user] += cost
        if isinstance(record, Correction):
            assert charge.decision.admitted.all()
    budget = 2.0 * held.row.gaussian_rho(held.budget[0])  # of mu squared
    assert max(spent.values()) <= budget * (1.0 + 1e-9)
    assert spent[0] > (1.0 - reserve) * budget


def noise_of(record: AnswerRecord) -> float:
    if isinstance(record, PrivateAnswer):
        return record.noise_stddev
    return record.left_out_stddev or math.inf


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(events=st.lists(EVENT, max_size=50), own=st.lists(EVENT, max_size=60))
@examples(10)
def test_two_worlds_differ_by_one_users_budget_in_all_releases(
    policy: dict[str, Any], events: list[tuple[int, int, float]], own: list[tuple[int, int, float]]
) -> None:
    """The noise is the same in both worlds, so releases differ by the user's contributions."""
    others = [*events, *((time, 8, 2.0) for time in range(120))]
    own = [(time, 9, x) for time, _, x in own]
    with_user, charges, held = lived(others + own, policy)
    without, their_charges, _ = lived(others, policy)
    distance = 0.0
    for one, other in zip(with_user, without, strict=True):
        value, base = (
            record.value if isinstance(record, PrivateAnswer) else record.left_out
            for record in (one, other)
        )
        assert noise_of(one) == noise_of(other)
        distance += ((value - base) / noise_of(one)) ** 2
    assert distance <= 2.0 * held.row.gaussian_rho(held.budget[0]) * (1.0 + 1e-9)
    for charge, theirs in zip(charges, their_charges, strict=True):
        mine = dict(zip(charge.users, charge.left_out.tolist(), strict=True))
        granted = dict(zip(charge.users, charge.decision.granted.tolist(), strict=True))
        mine.pop(9, None)
        assert mine == dict(zip(theirs.users, theirs.left_out.tolist(), strict=True))
        for user, norm in zip(theirs.users, theirs.decision.granted.tolist(), strict=True):
            assert granted[user] == norm


def middle_of(found: Corrected) -> Floats:
    return (found.lower + found.upper) / 2.0


def test_ratio_follows_a_line() -> None:
    raw = np.full((4, 1), 100.0)
    before = ratio_of(raw, 1.0, np.array([40.0]), 2.0)
    assert before.value == pytest.approx([0.1])
    found = correct(raw, 1.0, np.array([80.0]), 2.0, before, 0.95)
    line = 100.0 * (1.2 + 0.1 * np.array([-3, -1, 1, 3]) / 8)
    assert middle_of(found)[:, 0] == pytest.approx(line)
    assert middle_of(found).sum() == pytest.approx(480.0)
    assert found.value[:, 0] == pytest.approx(line, abs=0.02)
    known = correct(raw, 1.0, np.zeros(1), 0.0, None, 0.95)
    assert known.value == pytest.approx(raw)
    assert (known.upper - known.lower)[0, 0] == pytest.approx(2 * 1.959964)


def test_left_out_is_added_evenly_where_answers_are_noise() -> None:
    raw = np.array([[3.0, 100.0], [-1.0, 100.0]])
    found = correct(raw, 5.0, np.array([6.0, 20.0]), 0.02, None, 0.9)
    assert found.value[:, 0] == pytest.approx([6.0, 2.0], abs=1e-3)
    assert found.value[:, 1] == pytest.approx([110.0, 110.0], abs=1e-3)
    assert middle_of(found) == pytest.approx(np.array([[6.0, 110.0], [2.0, 110.0]]))
    assert np.isfinite(found.lower).all()


@given(
    st.floats(-9.0, 9.0), st.floats(-9.0, 9.0), st.floats(0.05, 0.99), st.sampled_from([3.0, 100.0])
)
@examples(100)
def test_noise_of_a_correction_moves_no_value_far(
    now: float, earlier: float, confidence: float, answer: float
) -> None:
    """Without anything left out beyond the noise of the correction, the raw answer is kept."""
    raw, stddev = np.full((5, 1), answer), 2.0
    before = ratio_of(raw, 1.0, np.array([stddev * earlier]), stddev)
    found = correct(raw, 1.0, np.array([stddev * now]), stddev, before, confidence)
    assert (found.lower <= found.value).all()
    assert (found.value <= found.upper).all()
    if abs(now) <= 1.0 and abs(earlier) <= 1.0 and confidence > 0.9:
        assert found.value == pytest.approx(raw)
    far = np.abs(found.value - middle_of(found))
    assert (far <= 2.0 * stddev / len(raw) + 1e-9).all()
