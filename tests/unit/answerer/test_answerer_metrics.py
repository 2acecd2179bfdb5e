"""Health and metrics of an answerer."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from streams.answerer import answerer_metrics
from streams.answerer.answerer_metrics import STUCK_AFTER, AnswererMetrics, InputHealth

LOG = "t.norms@0123456789ab"
LABEL = f'log="{LOG}"'


def fake_answerer() -> Any:
    """An answerer of two partitions, with ten events each, whose next window closes at 1000 ms."""
    calendar = SimpleNamespace(next=SimpleNamespace(closes=1000))
    fake = SimpleNamespace(
        state=SimpleNamespace(
            positions={0: 10, 1: 10},
            skipped=Counter({"late": 3}),
            calendar=calendar,
            keeps=7_200_000,
        ),
        is_taken_over=True,
        now=500,
        end_of=lambda partition: 10,
        partitions=lambda: range(2),
        source=lambda: ("events", "arrival"),
    )
    fake.clock = lambda: fake.now
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    told = SimpleNamespace(now=0.0)
    monkeypatch.setattr(answerer_metrics, "time", SimpleNamespace(monotonic=lambda: told.now))
    return told


def problems(watched: InputHealth) -> dict[int, str]:
    return {view.partition: view.problem.reason for view in watched.views() if view.problem}


def test_answerer_is_ready_when_it_holds_the_run(clock: SimpleNamespace) -> None:
    fake = fake_answerer()
    watched = InputHealth(fake)
    assert (watched.is_assigned, problems(watched)) == (True, {})
    fake.is_taken_over = False
    assert not watched.is_assigned
    assert set(problems(watched)) == {0, 1}


def test_waiting_events_are_a_problem_but_slow_progress_is_not(clock: SimpleNamespace) -> None:
    fake = fake_answerer()
    watched = InputHealth(fake)
    fake.state.positions = {0: 10, 1: 3}
    for _ in range(5):  # it goes on, and is behind
        fake.state.positions[1] += 1
        assert problems(watched) == {}
        clock.now += STUCK_AFTER
    watched.views()
    clock.now += STUCK_AFTER + 1
    assert set(problems(watched)) == {1}
    assert problems(watched)[1] == "stalled"
    fake.state.positions[1] = 10
    assert problems(watched) == {}


def test_overdue_window_is_a_problem(clock: SimpleNamespace) -> None:
    fake = fake_answerer()
    watched = InputHealth(fake)
    fake.now = 1000
    for closes in (1000, 900, 800):  # one after the other is answered
        fake.state.calendar.next.closes = closes
        assert problems(watched) == {}
        clock.now += STUCK_AFTER
    watched.views()
    clock.now += STUCK_AFTER + 1
    assert set(problems(watched)) == {0, 1}
    assert problems(watched)[0] == "window-overdue"


def test_metrics_show_progress() -> None:
    fake = fake_answerer()
    measured = AnswererMetrics(fake, LOG)
    measured.answers.inc()
    told = measured.exposition().decode()
    for line in (
        "turnstile_answerer_answers_total{LOG} 1.0",
        'turnstile_answerer_passed_over_total{LOG,reason="late"} 3.0',
        'turnstile_answerer_next_offset{LOG,partition="1"} 10.0',
        'turnstile_answerer_lag{LOG,partition="0"} 0.0',
        "turnstile_answerer_window_closes_seconds{LOG} 1.0",
        "turnstile_answerer_clock_seconds{LOG} 0.5",
        'turnstile_answerer_input_seconds{clock="arrival",LOG,topic="events"} 7200.0',
    ):
        assert line.replace("LOG", LABEL) in told
    assert f"turnstile_answerer_ready{{{LABEL}}} 1.0" in told
    fake.is_taken_over = False
    assert f"turnstile_answerer_ready{{{LABEL}}} 0.0" in measured.exposition().decode()
