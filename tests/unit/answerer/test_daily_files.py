"""One more file of events each day: every window is charged and answered once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from streams.answerer.event_file import EventFile
from streams.answerer.event_input import EventInput
from streams.answerer.events import SkipReason
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import answer_input
from streams.records import Charge, decode_request
from streams.records.users import UserIds
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event
from tests.unit.answerer.blocks import EVENTS, TWO
from tests.unit.answerer.lives import Doom, Killed, Places, World, assert_same

DAY, DAYS = 11, 6  # a day of 11 ms; windows begin every 10 ms and every 4 ms
CORRECTED = asked_of(TWO)
TWICE = asked_of(FILE + COUNT + COUNT.replace("10ms", "20ms").replace("count", "longer", 1))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a file for each day."""
    folder = tmp_path_factory.mktemp("days")
    return [
        file_of(folder / f"{day}.jsonl", [one for one in EVENTS if one[1] // DAY == day])
        for day in range(DAYS)
    ]


def file_of(path: Path, events: Iterable[tuple[int, int]]) -> Path:
    path.write_bytes(b"".join(event(user, time) + b"\n" for user, time in events))
    return path


def live(world: World, files: Sequence[Path], until: int, places: Places | None = None) -> World:
    """Answer the windows that end by a time, or until killed."""
    places = places or Places()
    given = EventInput([EventFile(path, world.query_file) for path in files])
    with world.service.watched_by(places):
        answering = world.answering(places, given.source, given.continues)
        answer_input(answering, given, until)
    return world


def users_of(world: World) -> list[set[int]]:
    """Return the users whom each step has charged."""
    found: dict[int, set[int]] = {}
    for log in world.service.logs:
        for value in log:
            request = decode_request(value)
            if isinstance(request, Charge):
                found.setdefault(request.step, set()).update(UserIds.unpack(request.users).tolist())
    return [found[step] for step in sorted(found)]


@pytest.fixture(scope="module")
def calm(days: list[Path]) -> World:
    """Return a world in which all files were answered at once."""
    return live(World(CORRECTED), days, DAY * DAYS)


def test_a_command_for_each_day_charges_as_one_for_all_files(days: list[Path], calm: World) -> None:
    world, answers = World(CORRECTED), []
    for day in range(1, DAYS + 1):
        live(world, days[:day], DAY * day)
        answers.append(len(world.answers))
        live(world, days[:day], DAY * day)  # a command that is repeated answers nothing more
        assert len(world.answers) == answers[-1]
    assert answers == sorted(set(answers))
    assert_same(world, calm)


@pytest.mark.parametrize("seed", range(12))
def test_killed_days_are_continued_on_the_next_day(
    seed: int, days: list[Path], calm: World
) -> None:
    world, chance, kills = World(CORRECTED), Random(seed), 0
    for day in [*range(1, DAYS + 1), DAYS, DAYS]:
        try:
            live(world, days[:day], DAY * day, Doom(chance.randrange(1, 90)))
        except Killed:
            kills += 1
    live(world, days, DAY * DAYS)
    assert kills > 0
    assert_same(world, calm)


def test_windows_close_by_the_time_that_is_given_and_not_by_an_event(tmp_path: Path) -> None:
    world = World(TWICE)
    first = file_of(tmp_path / "1.jsonl", [(1, 1), (4, 15), (4, 500_000)])
    live(world, [first], 9)
    assert world.answers == {}
    live(world, [first], 10)
    assert users_of(world) == [{1}]
    second = file_of(tmp_path / "2.jsonl", [])
    live(world, [first, second], 20)
    assert users_of(world) == [{1}, {4}, {1, 4}]


def test_files_of_one_command_may_overlap_in_time(tmp_path: Path) -> None:
    world = World(TWICE)
    first = file_of(tmp_path / "1.jsonl", [(1, 1), (2, 15)])
    second = file_of(tmp_path / "2.jsonl", [(3, 2), (4, 12)])
    live(world, [first, second], 20)
    assert users_of(world) == [{1, 3}, {2, 4}, {1, 2, 3, 4}]


def test_late_events_count_in_the_windows_that_are_open(tmp_path: Path) -> None:
    world = World(TWICE)
    first = file_of(tmp_path / "1.jsonl", [(1, 1)])
    live(world, [first], 10)
    second = file_of(tmp_path / "2.jsonl", [(2, 2), (3, 12)])
    live(world, [first, second], 20)
    assert users_of(world) == [{1}, {3}, {1, 2, 3}]


def test_interrupted_window_is_closed_before_a_new_file_counts(tmp_path: Path) -> None:
    first = file_of(tmp_path / "1.jsonl", [(1, 1)])
    second = file_of(tmp_path / "2.jsonl", [(2, 2), (3, 12)])
    found = []
    for place in range(1, 15):  # the first window is charged at the end of them
        world = World(TWICE)
        with suppress(Killed):
            live(world, [first], 10, Doom(place))
        live(world, [first, second], 20)
        assert all(len(contents) == 1 for contents in world.contents.values())
        found.append(users_of(world))
    open_, closing = [{1, 2}, {3}, {1, 2, 3}], [{1}, {3}, {1, 2, 3}]
    assert found == [open_] * found.count(open_) + [closing] * found.count(closing)
    assert 0 < found.count(open_) < len(found)


def test_an_earlier_file_that_changed_moved_or_went_is_refused(tmp_path: Path) -> None:
    world = World(TWICE)
    first, second = (
        file_of(tmp_path / "1.jsonl", [(1, 1)]),
        file_of(tmp_path / "2.jsonl", [(2, 12)]),
    )
    live(world, [first, second], 20)
    third = file_of(tmp_path / "3.jsonl", [(3, 22)])
    changed = file_of(tmp_path / "0.jsonl", [(1, 2)])
    before = world.contents
    for files in (
        [first],
        [second, first, third],
        [first, third, second],
        [changed, second, third],
        [first, changed],
        [changed],
    ):
        with pytest.raises(UnusableQueries, match="another input"):
            live(world, files, 30)
    assert world.contents == before
    live(world, [first, second, third], 30)
    assert users_of(world)[3:] == [{3}]


def test_rows_of_all_files_are_reported(tmp_path: Path) -> None:
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    file_of(files[0], [(1, 1)])
    files[1].write_text('{"u": 1}\n')
    parts = [EventFile(path, TWICE) for path in files]
    given = EventInput(parts)
    assert given.needs_acceptance
    assert not EventInput(parts[:1]).needs_acceptance
    assert (str(files[0]) in given.report(), str(files[1]) in given.report()) == (False, True)
    assert parts[1].skipped == {SkipReason.NO_TIME: 1}
