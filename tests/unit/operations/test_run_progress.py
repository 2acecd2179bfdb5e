"""The state of a run over all partitions; it is interrupted only if that is certain."""

from __future__ import annotations

import pytest

from streams.config import Config, Unavailable
from streams.kafka.results import TopicsSeen
from streams.ledger.ledger import MOST_RUNS, RunSummary, Summary
from streams.operations import run_progress
from streams.operations.run_progress import RunStatus, runs_of
from streams.sdk.client import Turnstile
from streams.sdk.memory_connection import MemoryConnection
from streams.store.store_port import Glance, Inventory, pack_report
from tests.doubles.memory_store import meta_of

# What two partitions say of a run, (step, attempt, closed) or nothing; whether all is decided.
STATES = """
    first     second    still  state        step  charged
    4 1 open  4 1 open  yes    open         4     4
    4 1 open  3 1 open  yes    interrupted  3     4
    4 1 open  3 1 open  no     open         3     4
    4 2 open  4 1 open  yes    interrupted  4     4
    4 1 open  -         yes    interrupted  -1    4
    4 1 open  -         no     open         -1    4
    4 1 shut  4 1 open  yes    interrupted  4     4
    4 1 shut  4 1 open  no     open         4     4
    4 1 shut  4 1 shut  yes    closed       4     4
    4 1 shut  4 1 shut  no     closed       4     4
"""
ROWS = [tuple(line.split("  ")) for line in STATES.strip().splitlines()[1:]]
ROWS = [tuple(word.strip() for word in row if word.strip()) for row in ROWS]


def glance(runs: list[RunSummary], last: int = 7, decided: int = 8, closed: int = 0) -> Glance:
    inventory = Inventory(last, Summary({}, len(runs), closed, runs=runs))
    meta = meta_of(next=str(decided), last=str(decided - 1))
    return Glance(0, meta, 0, b"", pack_report(inventory), {})


def said(words: str) -> list[RunSummary]:
    if words == "-":
        return []
    step, attempt, state = words.split()
    return [RunSummary("d", "r", int(attempt), int(step), state == "shut", 10, 3)]


@pytest.mark.parametrize(("first", "second", "still", "state", "step", "charged"), ROWS)
def test_the_state_of_a_run(
    first: str, second: str, still: str, state: str, step: str, charged: str
) -> None:
    glances = [glance(said(first)), glance(said(second))]
    ((run,), _) = runs_of(glances, [8, 8 if still == "yes" else 9])
    assert (run.state, run.step, run.charged) == (state, int(step), int(charged))
    if still == "no":  # an owner that has not said what came of the last record
        late = [glance(said(first)), glance(said(second), last=6)]
        assert runs_of(late, [8, 8]).runs[0].state == state


# What both partitions said at the first look, and say at the second; and up to where the second one
# tells of the log, which ended at 8 in between.
LOOKS = """
    first                 second                last  state
    4 1 open / 3 1 open   4 1 open / 3 1 open   7     interrupted
    4 1 open / 3 1 open   4 1 open / 3 1 open   20    interrupted
    4 1 open / 3 1 open   4 1 open / 3 1 open   6     open
    4 1 open / 3 1 open   5 1 open / 4 1 open   20    open
    4 1 open / 4 1 open   5 1 open / 4 1 open   20    open
    4 1 open / 3 1 open   4 1 open / 4 1 open   20    open
    4 1 open / 3 1 open   4 2 open / 3 1 open   20    open
    4 1 open / -          4 1 open / -          20    interrupted
    - / -                 4 1 open / -          20    open
    4 1 shut / 4 1 open   4 1 shut / 4 1 open   20    interrupted
    4 1 open / 4 1 open   4 1 open / 4 1 open   20    open
"""


@pytest.mark.parametrize("row", LOOKS.strip().splitlines()[1:])
def test_state_of_a_run_does_not_depend_on_other_runs(row: str) -> None:
    first, second, last, state = (part.strip() for part in row.strip().split("  ") if part.strip())
    before = [glance(said(words)) for words in first.split(" / ")]
    # Others are at work: the log has records that no owner has reported.
    now = [glance(said(words), last=int(last), decided=30) for words in second.split(" / ")]
    ((run,), _) = runs_of(now, [8, 8], before)
    assert run.state == state


@pytest.mark.parametrize("unmoved", [True, False])
def test_runs_are_read_again_while_they_move(
    monkeypatch: pytest.MonkeyPatch, *, unmoved: bool
) -> None:
    clock = 0.0

    class Log:
        def __init__(self, _: Config) -> None: ...

        def __enter__(self) -> Log:
            return self

        def __exit__(self, *_: object) -> None: ...

        def extents(self, count: int) -> list[tuple[int, int]]:
            return [(0, 9 + int(100 * clock))] * count

    def glances(*_: object) -> list[Glance]:
        told = 7 + int(100 * (clock - clock % 2.0))  # as of the last even second
        runs = said("4 1 open"), said("3 1 open" if unmoved or not clock else "4 1 open")
        return [glance(parts, last=told, decided=told + 200) for parts in runs]

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(run_progress, "Topics", Log)
    monkeypatch.setattr(run_progress, "look_at", lambda *_: TopicsSeen(b"t" * 16, 2, None))
    monkeypatch.setattr(run_progress, "read_glances", glances)
    monkeypatch.setattr(run_progress.time, "sleep", sleep)
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: clock)
    ((run,), _) = run_progress.read_runs(Config())
    assert run.state == ("interrupted" if unmoved else "open")
    assert 2.0 < clock < 6.0


def test_users_need_all_partitions() -> None:
    known, unknown = said("4 1 open"), [RunSummary("d", "r", 1, 4, False)]
    runs = [runs_of([glance(known), glance(other)], [8, 8]).runs[0] for other in (known, unknown)]
    assert [(run.users, run.halted) for run in runs] == [(20, 6), (None, None)]


def test_missing_summary_is_unavailable() -> None:
    silent = Glance(0, {}, None, b"", b"", {})
    with pytest.raises(Unavailable):
        runs_of([glance(said("4 1 open")), silent], [8, 0])


def test_runs_with_dense_steps_and_rosters() -> None:
    connection = MemoryConnection(2, 5.0)
    with Turnstile(connection=connection) as t:
        t.create_dataset("d", measure="zcdp", budget=1.0, assume_independent_timing=True)
        t.create_dataset("e", measure="renyi", orders=[2.0], budget=[1.0])
        dense, closed = t.run("d", "dense"), t.run("d", "closed")
        for norm in (1.0, 1.0, 1.0):  # the third does not fit
            dense.charge(["a", "b", "c"], [norm, norm, 0.1], noise_stddev=1.0)
        closed.close()
        roster = t.run("e", "roster").enrol(range(8), clip_norm=1.0)
        for _ in range(2):
            roster.charge(noise_stddev=1.0)
        t.run("d", "unused")
        summaries = [ledger.summary() for ledger in connection.ledgers]
    glances = [
        Glance(0, meta_of(next="8", last="7"), 0, b"", pack_report(Inventory(7, summary)), {})
        for summary in summaries
    ]
    runs = runs_of(glances, [8, 8]).runs
    assert runs == [
        RunStatus("d", "dense", "open", 2, 2, 1, 3, 2),
        RunStatus("d", "unused", "open", -1, -1, 1, None, None),
        RunStatus("e", "roster", "open", 1, 1, 1, 8, 8),
        RunStatus("d", "closed", "closed", -1, -1, 1, None, None),
    ]


def test_summary_has_open_runs_first() -> None:
    connection = MemoryConnection(1, 5.0)
    with Turnstile(connection=connection) as t:
        t.create_dataset("d", measure="zcdp", budget=1.0)
        for number in range(MOST_RUNS + 5):
            t.run("d", f"a-{number}").close()
        t.run("d", "z")
        (summary,) = (ledger.summary() for ledger in connection.ledgers)
    seen = runs_of([glance(summary.runs, closed=summary.closed_runs)], [8])
    assert len(seen.runs) == MOST_RUNS
    assert (seen.runs[0].run, seen.closed_besides) == ("z", 6)
