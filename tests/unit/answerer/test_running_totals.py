"""Running totals agree with the answers, cost nothing, and have intervals that hold."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pytest

from streams import Turnstile
from streams.answerer.published_answers import AnswerRecord, Correction, PrivateAnswer
from streams.answerer.query_file import QueryFile
from streams.queries.continual_monitoring import quantile_of_noise
from tests.unit.answerer.asking import COUNT, FILE, answered, asked_of, event
from tests.unit.answerer.lives import Doom, Killed, World

SUMS = 'sums = ["all"]\n'
NOISY = COUNT.replace("noise = 1.0", "noise = 4.0") + SUMS
CORRECTED = (
    COUNT.replace("noise = 1.0", "active_windows = 3\nleft_out = 0.4\nblock = 2\ncorrected = 40")
    + SUMS
)
EVENTS = [(user, time) for time in range(0, 206, 2) for user in (time % 3, 5, 5)]


def world_of(text: str, **policy: Any) -> World:
    world = World(asked_of(text), **policy)
    world.events = [event(user, time) for user, time in EVENTS]
    return world


def records_of(world: World) -> list[AnswerRecord]:
    found = {value: None for _, value in world.topics.answers}
    return [msgspec.json.decode(value, type=AnswerRecord) for value in found]


def assert_sums(records: list[AnswerRecord]) -> None:
    """Check the running totals of all answers."""
    answers = [one for one in records if isinstance(one, PrivateAnswer)]
    for place, one in enumerate(answers):
        summed = answers[: place + 1]
        assert one.sums is not None
        (found,) = one.sums
        width = quantile_of_noise(0.95, 1) * np.sqrt(sum(each.noise_stddev**2 for each in summed))
        value = sum(each.value for each in summed)
        assert found.start == summed[0].start
        assert found.value == pytest.approx(value)
        assert (found.lower, found.upper) == pytest.approx((value - width, value + width))


def test_sums_are_those_of_the_answers_and_cost_nothing() -> None:
    world, plain = world_of(FILE + NOISY), world_of(FILE + NOISY.replace(SUMS, ""))
    world.live()
    plain.live()
    assert_sums(records_of(world))
    assert world.contents == plain.contents
    assert world.service.spent_units() == plain.service.spent_units()


def test_sums_go_on_after_kills() -> None:
    for places in (7, 23, 31):
        world = world_of(FILE + NOISY)
        for _ in range(6):
            with suppress(Killed):
                world.live(Doom(places))
        world.live()
        assert_sums(records_of(world))


def answers_of(query_file: QueryFile, seed: int, budget: float) -> list[AnswerRecord]:
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=budget, user_ids="integer")
        events = [event(user, time) for user, time in EVENTS]
        return answered(query_file, turnstile, events, seed=seed)


@pytest.mark.slow
def test_sum_over_corrected_blocks_is_about_all_users() -> None:
    held, errors = [], []
    for seed in range(60):
        for record in answers_of(asked_of(FILE + CORRECTED), seed, budget=0.5):
            if not isinstance(record, Correction):
                continue
            assert record.sums is not None
            (found,) = record.sums
            begin, end = (
                round(1000 * datetime.fromisoformat(moment).timestamp())
                for moment in (found.start, record.end)
            )
            counts: dict[tuple[int, int], int] = {}
            for user, time in EVENTS:
                if begin <= time < end:
                    counts[user, time // 10] = counts.get((user, time // 10), 0) + 1
            true = sum(min(count, 2) for count in counts.values())
            held.append(found.lower <= true <= found.upper)
            if end == 200:
                errors.append((found.value - true) / (found.upper - found.lower))
    assert len(errors) == 60
    assert 0.91 < np.mean(held) < 0.99
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(len(errors))
