"""The state of a run does not depend on which obsolete entries were deleted."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streams.answerer.journal import JournalEntry, RunHistory
from tests.examples import examples

READ = ("owner", "attempt", "closing", "answered", "released")


def entry(kind: str, attempt: int, step: int) -> JournalEntry:
    answer = b"a%d" % attempt if kind == "answered" else b""
    return JournalEntry(kind, "d", "r", attempt, f"o{attempt}", step, answer=answer)


def read(entries: list[JournalEntry]) -> RunHistory:
    history = RunHistory()
    history.read(entries)
    return history


def state(history: RunHistory) -> tuple[object, ...]:
    return tuple(getattr(history, name) for name in READ)


@st.composite
def logs(draw: st.DrawFn) -> list[JournalEntry]:
    """Entries of answerers that take over from each other, are paused and resume.

    Each has read its begin entry back before it writes anything else. A superseded answerer can
    write one more entry at any later place.
    """
    log: list[JournalEntry] = []
    paused: list[JournalEntry] = []
    for attempt in draw(st.permutations(range(1, 7))):
        log.append(entry("begin", attempt, read(log).released + 1))
        if read(log).owner != f"o{attempt}":
            continue  # a later attempt has begun before it
        for _ in range(draw(st.integers(0, 4))):
            history = read(log)
            kind = "answered" if history.closing else "closing"
            log.append(entry(kind, attempt, history.released + 1))
            if paused and draw(st.booleans()):
                log.append(paused.pop())
        history = read(log)
        kind = "answered" if history.closing else "closing"
        paused.append(entry(kind, attempt, history.released + 1))
    return log + paused


@given(logs(), st.randoms(use_true_random=False))
@examples(300)
def test_obsolete_entries_do_not_change_the_state(log: list[JournalEntry], chance: Random) -> None:
    there: dict[int, JournalEntry] = {}
    late, read_to = RunHistory(), 0  # reads on now and then
    for place, one in enumerate(log):
        there[place] = one
        known, left = state(read(log[: place + 1])), read(list(there.values()))
        assert state(left) == known
        over = left.pop_obsolete()
        for gone in [at for at, each in there.items() if each in over and chance.random() < 0.5]:
            del there[gone]
        assert state(read(list(there.values()))) == known
        if chance.random() < 0.3:
            late.read(each for at, each in there.items() if at >= read_to)
            read_to = place + 1
            assert state(late) == known


def test_each_entry_becomes_obsolete_once_and_the_last_answer_never() -> None:
    log = [entry("begin", 1, 0)]
    for step in range(3):
        log += [entry("closing", 1, step), entry("answered", 1, step)]
    log += [entry("begin", 2, 3), entry("closing", 1, 3), entry("closing", 2, 3)]
    history = read(log[:4])
    assert history.pop_obsolete() == log[:2]
    assert history.pop_obsolete() == []
    history.read(log[4:])
    assert history.pop_obsolete() == log[2:6]
    history.read([entry("answered", 1, 3)])  # of who has been superseded
    assert history.pop_obsolete() == []
    history.read([last := entry("answered", 2, 3)])
    assert history.pop_obsolete() == [*log[6:], entry("answered", 1, 3)]
    assert history.answered == last
