"""No run charges a window that another run has answered, without charge_again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from streams.answerer.memory_journal import MemoryJournal
from streams.answerer.query_file import QueryFile
from streams.answerer.window_answering import AlreadyAnswered, Answering
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event, read
from tests.unit.answerer.lives import World, traces

SLIDING = COUNT.replace('"10ms"', '"8ms"\nevery = "4ms"')
SLID = SLIDING.replace('"count"\nkind', '"slid"\nkind')
LATER = [event(5, time) for time in range(24, 62, 2)]


def parse_queries(queries: str = COUNT, run: str = "s", start: int = 0) -> QueryFile:
    """Return query_file of a run whose first windows begin at ``start`` in ms."""
    begin = datetime.fromtimestamp(start / 1000, UTC).isoformat()
    file = FILE.replace('run = "r"', f'run = "{run}"').replace("1970-01-01", begin)
    return asked_of(file + queries)


def life_of(world: World, query_file: QueryFile, **options: Any) -> Answering:
    """Return a life of a run, which takes it over."""

    def opened(released: int) -> Any:
        return world.service.open(
            query_file.run, query_file.dataset, released=released, take_over=True
        )

    journal = MemoryJournal(world.topics, query_file.dataset)
    return Answering(query_file, f"input of {query_file.run}", opened, journal, **options)


def answer(world: World, query_file: QueryFile, **options: Any) -> None:
    read(life_of(world, query_file, **options), world.events)


def windows_of(world: World, run: str, dataset: str = "d") -> list[tuple[str, int, int]]:
    """Return the windows that a run has answered: query, begin and end in ms."""
    answers = [msgspec.json.decode(value) for _, value in world.topics.answers]
    return [
        (answer["query"], ms_of(answer["start"]), ms_of(answer["end"]))
        for answer in answers
        if (answer["run"], answer["dataset"]) == (run, dataset)
    ]


def ms_of(moment: str) -> int:
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def test_windows_of_another_run_are_rejected_before_any_change() -> None:
    world = World(parse_queries(run="r"))
    world.live()
    before = traces(world)
    with pytest.raises(AlreadyAnswered) as refused:
        answer(world, parse_queries())
    assert traces(world) == before
    error = refused.value
    assert (error.run, error.query, ms_of(error.until)) == ("r", "count", 20)


def test_charge_again_answers_windows_of_another_run() -> None:
    world = World(parse_queries(COUNT + SLID, run="r"))
    world.live()
    spent = world.service.spent_units()
    answer(world, parse_queries(COUNT + SLID), charge_again=True)
    assert windows_of(world, "s") == windows_of(world, "r")
    assert world.service.spent_units() == {user: 2 * units for user, units in spent.items()}


@pytest.mark.parametrize("queries", [COUNT, SLIDING, COUNT + SLID])
def test_another_run_can_start_where_the_error_says(queries: str) -> None:
    world = World(parse_queries(queries, run="r"))
    world.live()
    with pytest.raises(AlreadyAnswered) as refused:
        answer(world, parse_queries(queries))
    world.events += LATER
    answer(world, parse_queries(queries, start=ms_of(refused.value.until)))
    assert windows_of(world, "s")
    assert set(Counter(windows_of(world, "r") + windows_of(world, "s")).values()) == {1}


def test_a_run_of_earlier_windows_ends_where_another_began() -> None:
    world = World(parse_queries(run="r", start=20))
    world.events += LATER
    world.live()
    early = life_of(world, parse_queries())
    with pytest.raises(AlreadyAnswered):
        read(early, world.events)
    assert windows_of(world, "s") == [("count", 0, 10), ("count", 10, 20)]
    assert world.service.open("s", released=1).step == 2  # the third window was not charged


def test_rejected_run_publishes_its_missing_last_answer() -> None:
    world = World(parse_queries(run="r"))
    world.live()
    lost = world.topics.answers.pop()
    world.events += LATER
    answer(world, parse_queries(start=20))
    assert lost not in world.topics.answers
    with pytest.raises(AlreadyAnswered):
        world.live()
    assert lost in world.topics.answers


@pytest.mark.parametrize(
    ("queries", "dataset"), [(SLID, "d"), (COUNT, "e")], ids=["another query", "another dataset"]
)
def test_windows_without_an_answer_are_answered(queries: str, dataset: str) -> None:
    world = World(parse_queries(run="r"))
    world.live()
    world.service.create("e", budget=1000.0, user_ids="integer")
    answer(world, replace(parse_queries(queries), dataset=dataset))
    assert windows_of(world, "s", dataset)


@pytest.mark.parametrize("window", ["5ms", "20ms"])
def test_queries_of_one_name_are_the_same_query(window: str) -> None:
    world = World(parse_queries(run="r"))
    world.live()
    with pytest.raises(AlreadyAnswered):
        answer(
            world, parse_queries(COUNT.replace("10ms", window).replace("noise = 1", "noise = 2"))
        )
