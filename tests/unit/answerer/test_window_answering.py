"""Every window is charged once and answered once, also if answerers are killed or paused."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.answerer.journal import Superseded
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import Answering, InconsistentRun
from streams.records import Reason
from streams.sdk.client import Turnstile
from streams.sdk.errors import Fenced
from tests.examples import examples
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event, read
from tests.unit.answerer.blocks import corrected
from tests.unit.answerer.lives import (
    Doom,
    Killed,
    Sleep,
    World,
    assert_same,
    survive,
    take_turns,
    traces,
)


def plain(**options: Any) -> World:
    return World(**options)


CALM, CALM_BLOCKS = plain(), corrected()
CALM.live()
CALM_BLOCKS.live()
WORLDS = pytest.mark.parametrize(
    ("new", "calm"), [(plain, CALM), (corrected, CALM_BLOCKS)], ids=["plain", "corrected"]
)
STEPS = len(CALM.answers)
PLACES = 600  # more than a life passes
OVERTAKEN = (Superseded, Fenced)
OPEN = 2  # the place before a life opens the run
CHARGED = 10  # the write with which a life has charged its first window in every partition


def assert_whole(world: World, rejects: Set[Reason] = frozenset(), calm: World = CALM) -> None:
    """Check that charges and answers are those of an answerer that was never interrupted."""
    assert_same(world, calm)
    assert set(world.service.rejects) <= rejects


def test_every_window_that_has_ended_is_answered_once() -> None:
    assert STEPS == 2 + 4  # windows of 10 ms, and of 8 ms every 4 ms, in 22 ms
    assert len(CALM.topics.answers) == STEPS
    assert_whole(CALM)
    values = [msgspec.json.decode(value) for _, value in CALM.topics.answers]
    assert [value["step"] for value in values] == list(range(STEPS))
    assert values[0]["start"] == "1970-01-01T00:00:00Z"
    assert [value["worst_case_left"] for value in values] == sorted(
        (value["worst_case_left"] for value in values), reverse=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "calm", "distance"),
    [(plain, CALM, 1), (corrected, CALM_BLOCKS, 9)],
    ids=["plain", "corrected"],
)
def test_killed_answerer_charges_and_answers_each_window_once(
    new: Callable[[], World], calm: World, distance: int
) -> None:
    places = 0
    for place in range(1, PLACES, distance):
        world = new()
        if not survive(world, [place]):
            break
        places += 1
        assert_whole(world, calm=calm)
    assert distance * places > 5 * len(calm.answers)  # of every step there are several


@pytest.mark.slow
@WORLDS
@given(st.lists(st.integers(1, 40), max_size=12), st.randoms(use_true_random=False))
@examples(40)
def test_repeatedly_killed_answerer_reaches_the_same_result(
    new: Callable[..., World], calm: World, dooms: list[int], chance: Random
) -> None:
    """Whichever of the entries that were forgotten are still there."""
    world = new(goes=lambda entry: chance.random() < 0.5)
    survive(world, dooms)
    assert_whole(world, calm=calm)


def test_journal_of_a_run_does_not_grow_with_its_windows() -> None:
    long = World()
    long.events = [event(user, time) for time in range(0, 240, 2) for user in (time % 3, 5)]
    long.live()
    assert len(long.answers) > 10 * STEPS
    assert len(long.entries) == len(CALM.entries) == 1
    for _ in range(3):
        long.live()
    assert [entry.kind for entry in long.entries] == ["answered", "begin", "begin", "begin"]
    long.events += [event(5, time) for time in range(240, 260, 2)]
    long.live()
    assert [entry.kind for entry in long.entries] == ["answered"]
    assert len(long.contents) == 2 * len(long.answers)  # in each partition once


@pytest.mark.slow
def test_next_answer_deletes_entries_that_a_killed_answerer_left() -> None:
    for place in range(1, PLACES):
        world = World()
        killed = survive(world, [place])
        assert [entry.kind for entry in world.entries if entry.kind != "begin"] == ["answered"]
        assert len(world.entries) <= 2
        if not killed:
            break


def test_of_two_answerers_with_other_files_the_first_answers() -> None:
    """The other one looks before there is anything, and begins when something was answered."""
    world = World()
    other = asked_of(FILE + COUNT.replace('"10ms"', '"6ms"'))
    meanwhile = [True]

    def opened(released: int) -> Any:
        if meanwhile:
            meanwhile.clear()
            read(world.answering(), world.events[:14])
        return world.service.open(released=released)

    with pytest.raises(UnusableQueries):
        Answering(other, "x", opened, MemoryJournal(world.topics, other.dataset))
    world.live()
    assert_whole(world)


@pytest.mark.slow
def test_paused_answerer_releases_nothing_after_its_successor() -> None:
    """It wakes up before or after anything that it does, with a decision in hand or without."""
    overtaken = 0
    for place in range(1, PLACES):
        world = World()
        sleep = Sleep(place, world.live)
        try:
            world.live(sleep)
        except OVERTAKEN:
            overtaken += 1
        if sleep.count < place:
            break
        assert_whole(world, rejects={Reason.OLDER_ATTEMPT})
    assert overtaken > 5 * STEPS


@WORLDS
@given(st.integers(2, 3), st.lists(st.integers(1, 4) | st.integers(1, 60), max_size=20))
@examples(60)
def test_concurrent_answerers_answer_each_window_once(
    new: Callable[[], World], calm: World, lives: int, turns: list[int]
) -> None:
    world = new()
    errors = take_turns(world, lives, turns)
    assert {type(error) for error in errors} <= {type(None), *OVERTAKEN}
    world.live()
    assert_whole(world, rejects={Reason.OLDER_ATTEMPT}, calm=calm)


@pytest.mark.parametrize("before", [1, 20], ids=["new run", "old run"])
@pytest.mark.parametrize("until", [CHARGED, 1000], ids=["charges", "answers all"])
def test_answerer_overtaken_while_opening_takes_the_run_over(before: int, until: int) -> None:
    """The entries that it has read are behind the run that it opens. No entry is missing."""
    world = World()

    def overtake() -> None:
        with suppress(Killed):
            world.live(Doom(until))

    with suppress(Killed):
        world.live(Doom(before))
    world.live(Sleep(OPEN, overtake))
    assert_whole(world)


@pytest.mark.parametrize(
    ("kept", "forgets"), [(0, True), (0, False), (1, False), (5, False), (-1, False)]
)
def test_missing_entries_are_found_before_any_answer(kept: int, forgets: bool) -> None:
    """Without the last answer, the service would hand its step back, as one that did not go out."""
    world = World(goes=lambda entry: forgets)
    world.live()
    del world.topics.entries[kept:]
    answers = list(world.topics.answers)
    with pytest.raises(InconsistentRun):
        world.live()
    assert world.topics.answers == answers


@pytest.mark.parametrize("killed_at", [PLACES, CHARGED], ids=["answered", "being charged"])
@pytest.mark.parametrize(
    ("changes", "source"),
    [({"queries": CALM.query_file.queries[:1]}, "x"), ({"confidence": 0.9}, "x"), ({}, "y")],
    ids=["fewer queries", "another setting", "another input"],
)
def test_begun_run_is_charged_with_its_file_and_input_only(
    killed_at: int, changes: dict[str, Any], source: str
) -> None:
    world = World()
    with suppress(Killed):
        world.live(Doom(killed_at))
    before = traces(world)
    changed, journal = replace(world.query_file, **changes), MemoryJournal(world.topics, "d")
    with pytest.raises(UnusableQueries) as refused:
        Answering(changed, source, lambda r: world.service.open(), journal)
    assert refused.value.key == "run"
    assert traces(world) == before
    world.live()
    assert_whole(world)


def test_file_can_be_corrected_before_its_first_step() -> None:
    world = World(asked_of(FILE + COUNT))
    world.live(to=1)
    world.query_file = CALM.query_file
    world.live()
    assert_whole(world)


def test_step_that_is_not_the_one_of_its_window_is_not_released() -> None:
    world, runs = World(), []
    answering = Answering(
        world.query_file,
        "x",
        lambda released: runs.append(world.service.open(released=released)) or runs[-1],
        MemoryJournal(world.topics, "d"),
    )
    runs[-1].charge([1], [1.0], noise_stddev=1.0)
    with pytest.raises(InconsistentRun):
        read(answering, world.events)
    assert world.topics.answers == []


def test_run_charged_by_another_program_is_not_answered() -> None:
    world = World()
    world.service.open().charge([1], [1.0], noise_stddev=1.0)
    with pytest.raises(InconsistentRun):
        world.live()
    assert world.topics.answers == []


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"measure": "pure-dp"}, ""),
        ({"user_ids": "string"}, ""),
        ({"measure": "renyi", "epsilon": 1.0, "delta": 1e-6}, "active_windows = 3"),
        ({"budget": 1e-13}, "active_windows = 3\nshare = 0.001"),
        ({}, "noise = 1e-200"),
    ],
)
def test_queries_that_the_dataset_cannot_charge_are_rejected(
    policy: dict[str, object], text: str
) -> None:
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset(
        "d", **({"measure": "zcdp", "budget": 1.0, **policy} if "epsilon" not in policy else policy)
    )
    query_file = asked_of(FILE + COUNT.replace("noise = 1.0", text or "noise = 1.0"))
    journal = MemoryJournal(MemoryTopics(), "d")
    with pytest.raises(UnusableQueries):
        Answering(query_file, "x", lambda r: turnstile.run("d", "r"), journal)
    assert turnstile.run("d", "r").step == 0


@pytest.mark.parametrize(("measure", "counted"), [("zcdp", 2.0), ("gdp", 4.0)])  # rho, mu squared
def test_noise_from_the_budget_covers_the_active_windows(measure: str, counted: float) -> None:
    world = World(asked_of(FILE + COUNT.replace("noise = 1.0", "active_windows = 3")))
    world.service.withdraw("d")
    # A rho of 2 or a mu of 2: the noise is the same, since rho = mu^2 / 2.
    world.service.create("d", measure=measure, budget=2.0, user_ids="integer")
    world.events = [event(7, time) for time in range(0, 60, 5)]
    world.live()
    answers = [msgspec.json.decode(value) for _, value in world.topics.answers]
    assert [answer["worst_case_left"] for answer in answers] == [2, 1, 0, 0, 0]
    since = [answer["exhaustible_since"] for answer in answers]
    assert since == [None, None, None, answers[3]["start"], answers[3]["start"]]
    assert answers[0]["noise_stddev"] == pytest.approx(math.sqrt(3 * 4 / (2 * 2.0)), rel=1e-6)
    asked = [charge[7] for charge in world.service.charged() if charge]
    assert asked == pytest.approx([2.0] * 5)
    assert world.service.spent()[7] == pytest.approx(counted, rel=1e-6)
