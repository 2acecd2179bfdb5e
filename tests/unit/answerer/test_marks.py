"""What follows from the marks of a run is the same, whichever of those that are over are there."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streams.answerer.marks import History, Mark
from tests.examples import examples

READ = ("owner", "attempt", "closing", "answered", "released")


def mark(kind: str, attempt: int, step: int) -> Mark:
    known = {} if kind == "closing" else {"questions": "q", "source": "x"}
    answer = b"a%d" % attempt if kind == "answered" else b""
    return Mark(kind, "d", "r", attempt, f"o{attempt}", step, answer=answer, **known)


def read(marks: list[Mark]) -> History:
    history = History()
    history.read(marks)
    return history


def state(history: History) -> tuple[object, ...]:
    begun = history.begun and (history.begun.questions, history.begun.source)
    return (*(getattr(history, name) for name in READ), begun)


@st.composite
def logs(draw: st.DrawFn) -> list[Mark]:
    """Marks as answerers write them that take over from each other, are paused and come back.

    Each has read its begin back before it writes anything else; of who was superseded one more mark
    can come, at any place behind that.
    """
    log: list[Mark] = []
    paused: list[Mark] = []
    for attempt in draw(st.permutations(range(1, 7))):
        log.append(mark("begin", attempt, read(log).released + 1))
        if read(log).owner != f"o{attempt}":
            continue  # a later attempt has begun before it
        for _ in range(draw(st.integers(0, 4))):
            history = read(log)
            kind = "answered" if history.closing else "closing"
            log.append(mark(kind, attempt, history.released + 1))
            if paused and draw(st.booleans()):
                log.append(paused.pop())
        history = read(log)
        kind = "answered" if history.closing else "closing"
        paused.append(mark(kind, attempt, history.released + 1))
    return log + paused


@given(logs(), st.randoms(use_true_random=False))
@examples(300)
def test_marks_that_are_over_may_be_there_or_not(log: list[Mark], chance: Random) -> None:
    """Whoever reads, at whatever moment, after whoever had some of them cleaned away."""
    there: dict[int, Mark] = {}
    late, read_to = History(), 0  # reads on now and then
    for place, one in enumerate(log):
        there[place] = one
        known, left = state(read(log[: place + 1])), read(list(there.values()))
        assert state(left) == known
        over = left.take_over()
        for gone in [at for at, each in there.items() if each in over and chance.random() < 0.5]:
            del there[gone]
        assert state(read(list(there.values()))) == known
        if chance.random() < 0.3:
            late.read(each for at, each in there.items() if at >= read_to)
            read_to = place + 1
            assert state(late) == known


def test_each_mark_is_over_once_and_the_last_answer_never() -> None:
    log = [mark("begin", 1, 0)]
    for step in range(3):
        log += [mark("closing", 1, step), mark("answered", 1, step)]
    log += [mark("begin", 2, 3), mark("closing", 1, 3), mark("closing", 2, 3)]
    history = read(log[:4])
    assert history.take_over() == log[:2]
    assert history.take_over() == []
    history.read(log[4:])
    assert history.take_over() == log[2:6]
    history.read([mark("answered", 1, 3)])  # of who has been superseded
    assert history.take_over() == []
    history.read([last := mark("answered", 2, 3)])
    assert history.take_over() == [*log[6:], mark("answered", 1, 3)]
    assert history.answered == last
