"""A run goes on with a changed file: no window is charged or answered twice, or left out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import Turnstile
from streams.answerer.answering import AlreadyAnswered, Answering
from streams.answerer.answers import AnswerRecord, Correction, PrivateAnswer
from streams.answerer.changes import continued, ended
from streams.answerer.journal import Superseded
from streams.answerer.queries import UnusableQueries
from streams.answerer.windows import Calendar
from streams.records import Charge, Reason, decode_request
from streams.records.packing import unpack_norms
from streams.records.users import UserIds
from streams.sdk.errors import Fenced
from tests.doubles.memory_journal import MemoryJournal, MemoryTopics
from tests.examples import examples, grid
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event
from tests.unit.answerer.lives import Doom, Killed, Turn, World, read

HEAD = FILE.replace('run = "r"', 'run = "r"\nhorizon = "40ms"')
COUNTED = COUNT.replace("noise = 1.0", 'active_windows = 2\nleft_out = 0.4\nblock = "20ms"')
SLID = (
    COUNTED.replace('"10ms"', '"8ms"\nevery = "4ms"')
    .replace("20ms", "12ms")
    .replace('"count"\nkind', '"slid"\nkind')
)
FRESH = COUNT.replace('"10ms"', '"6ms"').replace('"count"\nkind', '"new"\nkind')
OLD = asked_of(HEAD.replace('run = "r"', 'run = "r"\nkeep = 0.2') + COUNTED + SLID)
NEW = asked_of(HEAD.replace("40ms", "80ms") + COUNTED.replace("windows = 2", "windows = 3") + FRESH)
FILES = (OLD, NEW, asked_of(HEAD + SLID + FRESH), replace(OLD, confidence=0.9))
EVERY = {"count": 10, "slid": 4, "new": 6}
LENGTH = {**EVERY, "slid": 8}
END = 66
EVENTS = [(user, time) for time in range(0, END, 2) for user in (time % 3, 5, 5)]
PLACES = 700


def world_of(**options: Any) -> World:
    """Return a world in which users are left out; the noise is small."""
    world = World(OLD, **options)
    world.events = [event(user, time) for user, time in EVENTS]
    return world


def records_of(world: World) -> list[AnswerRecord]:
    return [msgspec.json.decode(value, type=AnswerRecord) for _, value in world.topics.answers]


def ms_of(moment: str) -> int:
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def counts_of(start: int, end: int) -> dict[int, int]:
    """Return how many events of each user count in a window."""
    counts = Counter(user for user, time in EVENTS if start <= time < end)
    return {user: min(count, 2) for user, count in counts.items()}


def charges_of(world: World) -> dict[tuple[str, int], dict[int, float]]:
    """Return the norm of each user by run and step."""
    found: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for log in world.service.logs:
        for value in log:
            if isinstance(request := decode_request(value), Charge):
                users = UserIds.unpack(request.users).tolist()
                norms = unpack_norms(request.norms).tolist()
                found[request.run, request.step].update(zip(users, norms, strict=True))
    return found


def assert_once(world: World, rejects: frozenset[Reason] = frozenset()) -> dict[str, list[int]]:
    """Check that each window was charged and answered once, with all its events.

    Returns:
        The begins of the answered windows by query.
    """
    assert all(len(contents) == 1 for contents in world.contents.values())
    assert set(world.service.rejects) <= rejects
    assert len({value for _, value in world.topics.answers}) == len(
        {(record.run, record.step) for record in records_of(world)}
    )
    charges = charges_of(world)
    answered: defaultdict[str, list[int]] = defaultdict(list)
    corrected: Counter[tuple[str, str]] = Counter()
    records = {(record.run, record.step): record for record in records_of(world)}
    noises = {
        (record.query, record.start): record.noise_stddev
        for record in records.values()
        if isinstance(record, PrivateAnswer)
    }
    for place in sorted(records):
        record, charged = records[place], charges[place]
        if isinstance(record, PrivateAnswer):
            begin, end = ms_of(record.start), ms_of(record.end)
            assert end - begin == LENGTH[record.query]
            assert charged == pytest.approx(counts_of(begin, end))
            answered[record.query].append(begin)
            continue
        corrected.update((record.query, window.start) for window in record.windows)
        total = sum(
            count
            for window in record.windows
            for count in counts_of(ms_of(window.start), ms_of(window.end)).values()
        )
        raw = sum(window.raw for window in record.windows)
        noise = math.hypot(*(noises[record.query, window.start] for window in record.windows))
        noise = math.hypot(noise, record.left_out_stddev)
        if record.left_out == 0.0:  # negative noise was cut
            assert raw <= total + 8.0 * noise
        else:
            assert record.left_out + raw == pytest.approx(total, abs=8.0 * noise)
    assert set(corrected.values()) <= {1}
    for query, begins in answered.items():
        assert all(after > before for before, after in pairwise(begins))
        assert all(begin % EVERY[query] == 0 for begin in begins)
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for run, step in sorted(records):
        steps[run].append(step)
    assert all(found == list(range(len(found))) for found in steps.values())
    return answered


def assert_changed(world: World, rejects: frozenset[Reason] = frozenset()) -> None:
    """Check that NEW followed OLD at one moment, and that no query has a gap."""
    answered = assert_once(world, rejects)
    count, slid, new = (answered.get(name, []) for name in ("count", "slid", "new"))
    assert count == list(range(0, 60, 10))
    assert slid == list(range(0, 4 * len(slid), 4))
    reached = slid[-1] + 8 if slid else 0
    assert new == list(range(new[0], 58, 6)) if new else reached > 52
    assert not new or reached <= new[0] < reached + 10 + 6
    provisional = {
        record.start
        for record in records_of(world)
        if isinstance(record, PrivateAnswer) and record.provisional_until and record.query == "slid"
    }
    final = {
        window.start
        for record in records_of(world)
        if isinstance(record, Correction) and record.query == "slid"
        for window in record.windows
    }
    assert provisional <= final  # no block of the earlier file stays open


@pytest.mark.slow
def test_killed_answerer_and_a_changed_file_charge_each_window_once() -> None:
    changed = 0
    for place in range(1, PLACES, 5):
        world = world_of()
        try:
            world.live(Doom(place))
            break
        except Killed:
            changed += 1
        world.live(query_file=NEW)
        assert_changed(world)
    assert changed > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "earliest", [1, *(pytest.param(place, marks=pytest.mark.thorough) for place in (3, 5))]
)
def test_answerer_killed_while_the_file_changes_charges_each_window_once(earliest: int) -> None:
    """The change begins with a window that is being closed, and with an open block."""
    for first in (21, 60):
        for place in range(earliest, 120, 6):
            world = world_of()
            with pytest.raises(Killed):
                world.live(Doom(first))
            try:
                world.live(Doom(place), query_file=NEW)
            except Killed:
                world.live(query_file=NEW)
            assert_changed(world)


@contextmanager
def unless_nothing_is_left() -> Iterator[None]:
    """Allow the error that no budget is left for the corrections of a file."""
    try:
        yield
    except UnusableQueries as error:
        if error.key != "left_out":
            raise


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 80)), max_size=8),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
@examples(40)
def test_any_files_in_turn_charge_each_window_once(
    lives: list[tuple[int, int]], last: int, chance: Random
) -> None:
    world = world_of(goes=lambda entry: chance.random() < 0.5)
    for file, doom in lives:
        with suppress(Killed), unless_nothing_is_left():
            world.live(Doom(doom), query_file=FILES[file])
    with unless_nothing_is_left():
        world.live(query_file=FILES[last])
    assert_once(world)


@pytest.mark.slow
@given(st.lists(st.integers(1, 4) | st.integers(1, 60), max_size=12))
@examples(30)
def test_answerers_with_two_files_at_once_charge_each_window_once(turns: list[int]) -> None:
    world = world_of()
    lives = [
        Turn(lambda places, file=file: world.live(places, query_file=file)) for file in (OLD, NEW)
    ]
    for number, places in enumerate(turns):
        for _ in range(places):
            lives[number % 2].go_on()
    for life in lives:
        while not life.is_over:
            life.go_on()
        with unless_nothing_is_left(), suppress(Superseded, Fenced):
            if life.error is not None:
                raise life.error
    assert_once(world, frozenset({Reason.OLDER_ATTEMPT}))


KEPT = HEAD.replace("40ms", "60ms").replace('run = "r"', 'run = "r"\nkeep = 0.4')
LONGER = HEAD.replace("40ms", "120ms")
SUM = COUNTED.replace('"count"\nkind = "count"', '"sum"\nkind = "sum"\ncolumn = "x"')
SWITCHES = {
    "another query": (HEAD + SUM, LONGER + SUM + SLID),
    "less noise": (HEAD + SUM + SLID, LONGER + SUM.replace("windows = 2", "windows = 1.5") + SLID),
    "a year kept": (KEPT + SUM + SLID, LONGER + SUM + SLID.replace('"12ms"', '"8ms"')),
    "short blocks": (HEAD + SLID, LONGER + SLID + "block_limit = 1.5\n"),
}
POLICIES: dict[str, dict[str, Any]] = {
    "zcdp": {"measure": "zcdp", "budget": 0.5},
    "gdp": {"measure": "gdp", "budget": 1.0},
    "clip": {"measure": "gdp", "budget": 1.0, "on_exhaustion": "clip"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "switch"), grid(list(POLICIES), list(SWITCHES)))
@given(
    at=st.integers(1, 119),
    rest=st.lists(st.tuples(st.integers(0, 119), st.integers(1, 3), st.sampled_from([2.0, 1.3]))),
)
@examples(15)
def test_every_user_can_pay_for_the_corrections_of_both_files(
    policy: str, switch: str, at: int, rest: list[tuple[int, int, float]]
) -> None:
    """User 0 adds the most to every window, so no user is charged more."""
    turnstile = Turnstile.in_memory(partitions=1)
    held = turnstile.create_dataset("d", user_ids="integer", **POLICIES[policy])
    budget = 2.0 * held.row.gaussian_rho(held.budget[0])  # of mu squared
    topics, spent, before = MemoryTopics(), Counter[int](), [0.0]
    rows = sorted([*rest, *((time, 0, 2.0) for time in range(120))])
    events = [event(user, time, x=x) for time, user, x in rows]

    def announce(record: AnswerRecord) -> None:
        charge = answering.last_charge
        assert charge is not None
        if answering.query_file.place.since is None:
            before.append(0.0)  # the first file
        elif before[-1] == 0.0:
            before.append(max(spent.values()) / budget)
        is_answer = isinstance(record, PrivateAnswer)
        noise = record.noise_stddev if is_answer else record.left_out_stddev or math.inf
        granted = charge.decision.granted
        for user, cost in zip(charge.users, np.square(granted / noise).tolist(), strict=True):
            spent[user] += cost
        if not is_answer and granted.size:
            limit = 3.0 if "block_limit" in text else math.inf
            is_cut = charge.left_out[:, 0] != 0.0
            assert (~is_cut | (granted >= limit * (1.0 - 1e-9))).all()

    first, second = SWITCHES[switch]
    for text, to in ((first, at), (second, len(events))):
        answering = Answering(
            asked_of(text),
            "x",
            lambda released: turnstile.run("d", "r", released=released),
            MemoryJournal(topics, "d"),
            announce,
        )
        with unless_nothing_is_left():
            answering.start()
            read(answering, events, to)
            assert before[-1] <= answering.query_file.place.paid * (1.0 + 1e-9)
    assert max(spent.values()) <= budget * (1.0 + 1e-9)


def traces(world: World) -> tuple[list[Any], ...]:
    """Return everything that an answerer can change."""
    topics = world.topics
    return list(topics.entries), list(topics.answers), list(map(len, world.service.logs))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("user", HEAD.replace('user = "u"', 'user = "v"') + COUNTED),
        ("users", HEAD.replace('users = "integer"\n', "") + COUNTED),
        ("time", HEAD.replace('time = "t"', 'time = "v"') + COUNTED),
        ("time_unit", HEAD.replace('unit = "ms"', 'unit = "s"') + COUNTED),
        ("start", HEAD.replace("1970-01-01", "1970-01-02") + COUNTED),
        ("clock", HEAD.replace('clock = "events"', "") + COUNTED),
        ("window", HEAD + COUNTED.replace('window = "10ms"', 'window = "20ms"\nevery = "10ms"')),
        ("every", HEAD + COUNTED + SLID.replace('every = "4ms"', 'every = "2ms"')),
    ],
)
def test_change_of_the_events_or_lengths_of_windows_is_rejected_first(key: str, text: str) -> None:
    whole, killed = world_of(), world_of()
    whole.live()
    stop_at_closing(killed)
    for world in (whole, killed):
        before = traces(world)
        with pytest.raises(UnusableQueries) as refused:
            world.live(query_file=asked_of(text))
        assert refused.value.key == key
        assert traces(world) == before


def stop_at_closing(world: World) -> None:
    """Kill answerers until a step has begun that is not answered."""
    with pytest.raises(Killed):
        world.live(Doom(60))
    while not (world.entries and world.entries[-1].kind == "closing"):
        with pytest.raises(Killed):
            world.live(Doom(10))


def test_corrections_that_no_budget_is_left_for_are_rejected_before_a_charge() -> None:
    world = world_of()
    world.query_file = asked_of(HEAD + COUNTED + SLID)  # keeps nothing
    world.live()
    charged = charges_of(world)
    world.events += [event(5, time) for time in range(66, 90, 2)]
    longer = HEAD.replace("40ms", "400ms") + COUNTED + SLID
    with pytest.raises(UnusableQueries) as refused:
        world.live(query_file=asked_of(longer))
    assert refused.value.key == "left_out"
    assert charges_of(world) == charged
    world.live(
        query_file=asked_of(
            longer.replace("[input]", "correct = false\n[input]", 1)
            .replace('left_out = 0.4\nblock = "20ms"', "")
            .replace('left_out = 0.4\nblock = "12ms"', "")
        )
    )
    assert len(charges_of(world)) > len(charged)


SPENT = (HEAD + COUNTED + SLID).replace("left_out = 0.4", "left_out = 0.1")
UNPAID = {
    "corrections": SPENT.replace("40ms", "400ms").replace("left_out = 0.1", "left_out = 0.9"),
    "noise": HEAD + COUNT.replace("noise = 1.0", "noise = 1e-200"),
}


@pytest.mark.parametrize("text", list(UNPAID))
@pytest.mark.parametrize("state", ["between steps", "closing a step", "closed"])
def test_changed_file_that_cannot_be_paid_leaves_open_blocks_open(text: str, state: str) -> None:
    world, changed = world_of(), asked_of(UNPAID[text])
    world.query_file = asked_of(SPENT)
    world.live(to=3 * 24)
    for place in range(1, 20) if state == "closing a step" else ():
        with suppress(Killed):
            world.live(Doom(place))
        if world.entries[-1].kind == "closing":
            break
    if state == "closed":
        world.service.close_run("r")
        changed = replace(changed, run="s", continues="r")
    answers, charged = list(world.topics.answers), charges_of(world)
    with pytest.raises(UnusableQueries):
        world.live(query_file=changed)
    assert world.topics.answers == answers
    assert charges_of(world) == charged
    if state != "closed":
        world.live()
        assert_once(world)


def test_added_query_that_another_run_has_answered_leaves_open_blocks_open() -> None:
    world = world_of()
    world.live(query_file=replace(asked_of(HEAD + FRESH), run="z"))
    world.service.close_run("z")
    world.live(to=3 * 17)
    answers, charged = list(world.topics.answers), charges_of(world)
    with pytest.raises(AlreadyAnswered) as refused:
        world.live(query_file=NEW)
    assert (refused.value.run, refused.value.query) == ("z", "new")
    assert world.topics.answers == answers
    assert charges_of(world) == charged
    world.live()
    assert_once(world)


def test_query_begins_at_its_own_start() -> None:
    world = world_of()
    world.live(to=3 * 5)  # times up to 8
    late = FRESH + "start = 1970-01-01T00:00:00.031Z\n"
    world.live(query_file=asked_of(HEAD + COUNTED + SLID + late))
    assert assert_once(world)["new"] == [36, 42, 48, 54]
    first = world_of()
    first.live(query_file=asked_of(HEAD + late))
    assert assert_once(first)["new"] == [36, 42, 48, 54]


def test_time_since_which_users_can_be_missing_stays_through_a_change() -> None:
    world = world_of()
    world.live(to=3 * 20)
    before = {
        r.query: r.exhaustible_since for r in records_of(world) if isinstance(r, PrivateAnswer)
    }
    assert None not in before.values()
    world.live(query_file=NEW)
    last = {r.query: r.exhaustible_since for r in records_of(world) if isinstance(r, PrivateAnswer)}
    assert last["count"] == before["count"]
    assert last["new"] is not None  # a user can have spent everything before its first window


def test_entries_say_which_file_their_steps_follow() -> None:
    world = world_of(goes=lambda entry: False)
    world.live(to=3 * 16)
    world.live(query_file=NEW)
    found = [
        (e.step, e.query_file, e.file.queries[0].active_windows) for e in world.entries if e.content
    ]
    changed = [digest for _, digest, _ in found].index(NEW.digest)
    assert {(digest, active) for _, digest, active in found[:changed]} == {(OLD.digest, 2.0)}
    assert {(digest, active) for _, digest, active in found[changed:]} == {(NEW.digest, 3.0)}
    assert world.entries[-1].file.place.step == found[changed][0]


NEXT = replace(NEW, run="s", continues="r")


def continue_run(world: World, **options: Any) -> None:
    """Close run r, and let run s continue it."""
    world.service.close_run("r")
    world.live(query_file=NEXT, **options)


@pytest.mark.slow
@pytest.mark.parametrize("earliest", [1, pytest.param(8, marks=pytest.mark.thorough)])
def test_killed_run_that_continues_a_closed_run_charges_each_window_once(earliest: int) -> None:
    for events in (3, 30, 3 * 17, 3 * 21):
        for place in range(earliest, 150, 14):
            world = world_of()
            world.live(to=events)
            if not world.answers:
                continue
            try:
                continue_run(world, places=Doom(place))
            except Killed:
                world.live(query_file=NEXT)
            assert_changed(world)
            left = [entry for entry in world.entries if entry.run == "r"]
            assert len(left) == 1  # what was left out is data about users


def test_run_continues_a_closed_run_with_another_input() -> None:
    world = world_of()
    world.live(to=3 * 17)
    world.service.close_run("r")
    more = [event(9, 1)] * 5 + world.events

    def opened(released: int) -> Any:
        return world.service.open("s", released=released)

    life = Answering(NEXT, "y", opened, MemoryJournal(world.topics, "d"))
    life.start()
    read(life, more)
    assert_changed(world)


def test_last_answer_of_a_continued_run_is_published() -> None:
    world = world_of()
    world.live(to=3 * 17)
    lost = world.topics.answers.pop()
    continue_run(world)
    assert world.topics.answers[world.topics.answers.index(lost)][0] == "d/r"
    assert_changed(world)


def test_run_that_answered_nothing_or_was_charged_last_is_not_continued() -> None:
    world = world_of()
    before = traces(world)
    with pytest.raises(UnusableQueries):
        world.live(query_file=NEXT)
    assert traces(world) == before
    stop_at_closing(world)
    world.service.close_run("r")
    before = traces(world)
    with pytest.raises(UnusableQueries):
        world.live(query_file=NEXT)
    assert traces(world) == before


def test_of_two_runs_that_continue_a_run_one_answers() -> None:
    world = world_of()
    world.live(to=3 * 17)
    continue_run(world)
    world.service.close_run("s")
    with pytest.raises(AlreadyAnswered):
        world.live(query_file=replace(NEXT, run="t"))
    assert_changed(world)
    world.events += [event(5, time) for time in range(66, 80, 2)]
    world.live(query_file=replace(NEW, run="t", continues="s"))  # a chain of runs
    windows = [(r.query, r.start) for r in records_of(world) if isinstance(r, PrivateAnswer)]
    assert len(windows) == len(set(windows))
    assert {r.run for r in records_of(world)} == {"r", "s", "t"}


@pytest.mark.parametrize("zone", ["", 'timezone = "Europe/Berlin"\n'])
def test_steps_of_a_later_file_are_found_directly(zone: str) -> None:
    head = zone + FILE.replace("1970-01-01", "2026-01-01") + COUNT.replace("10ms", "1d")
    months = COUNT.replace("10ms", "1mo").replace('"count"\nkind', '"months"\nkind')
    daily = (
        COUNTED.replace("10ms", "1d")
        .replace("20ms", "4d")
        .replace('"count"\nkind', '"later"\nkind')
    )
    before, after = asked_of(head), asked_of('horizon = "60d"\n' + head + months + daily)
    calendar = Calendar(ended(before, 40, "r", 40), 40)
    file = continued(before, calendar, after, None)
    assert [query.first for query in file.queries] == [40, 2, 40]
    calendar = Calendar(file, 40)
    closed = []
    for step in range(40, 140):
        assert Calendar(file, step).next == calendar.next
        assert calendar.next.step == step == calendar.step
        closed.append(calendar.next)
        calendar.advance()
    assert [one.end for one in closed] == sorted(one.end for one in closed)
    assert sum(one.is_block for one in closed) == 5  # of 20 days up to the horizon
