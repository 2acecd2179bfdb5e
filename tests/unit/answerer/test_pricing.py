"""The spending of a worst-case user, and the first window in which a user can be exhausted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import Turnstile
from streams.answerer.pricing import WorstCase, costs_of
from streams.answerer.published_answers import PrivateAnswer
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.windows import Calendar
from tests.examples import examples
from tests.unit.answerer import asking
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event

WINDOWS = st.lists(
    st.sampled_from([(4, 4), (6, 6), (6, 3), (8, 2), (10, 10)]), min_size=1, max_size=3
)
SPAN = 40  # ms


def text_of(windows: list[tuple[int, int]], bounds: str) -> str:
    """Sums over windows of these lengths and distances in ms, of at most 2 for each user."""
    queries = (
        COUNT.replace('"10ms"', f'"{window}ms"\nevery = "{every}ms"')
        .replace('"count"\nkind = "count"', f'"q{number}"\nkind = "sum"\ncolumn = "x"')
        .replace("noise = 1.0", bounds)
        for number, (window, every) in enumerate(windows)
    )
    return FILE + "".join(queries)


Answered = tuple[PrivateAnswer, bool]
"""An answer, and whether its step left a user out."""


def answered(text: str, policy: dict[str, Any], events: list[bytes]) -> list[Answered]:
    """Answer queries about these events, on a dataset with this policy."""
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset("d", user_ids="integer", **policy)
    found: list[Answered] = []

    def look(answer: Any, charge: Any) -> None:
        found.append((answer, bool(charge.decision.halted.any())))

    asking.answered(asked_of(text), turnstile, events, look)
    return found


POLICIES: dict[str, dict[str, Any]] = {
    "zcdp": {"measure": "zcdp", "budget": 2.0},
    "gdp": {"measure": "gdp", "budget": 2.0},
    "all orders": {"measure": "renyi", "budget": [1.5, 2.5, 8.0], "orders": [2, 4, 16]},
    "per-user order": {"measure": "renyi", "epsilon": 4.0, "delta": 1e-6},
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(
    windows=WINDOWS,
    noise=st.floats(0.8, 8.0),
    rest=st.lists(
        st.tuples(st.integers(0, SPAN - 1), st.integers(1, 4), st.sampled_from([2.0, 0.3, 2e-7])),
        max_size=40,
    ),
)
@examples(20)
def test_no_user_is_left_out_before_the_answer_says_so(
    policy: dict[str, Any],
    windows: list[tuple[int, int]],
    noise: float,
    rest: list[tuple[int, int, float]],
) -> None:
    """User 0 adds the most to every window; others come and go."""
    given = sorted(rest + [(time, 0, 2.0) for time in range(SPAN)])
    events = [event(user, time, x=x) for time, user, x in given]
    found = answered(text_of(windows, f"noise = {noise}"), policy, events)
    assert found
    for answer, left_out in found:
        assert answer.coverage == "admitted"
        if answer.exhaustible_since is None:
            assert not left_out
        else:
            since, start = map(datetime.fromisoformat, (answer.exhaustible_since, answer.start))
            assert since <= start


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_exhaustible_since_is_followed_by_exhausted_users(policy: dict[str, Any]) -> None:
    events = [event(0, time, x=2.0) for time in range(160)]
    found = answered(text_of([(4, 4)], "noise = 4.01"), policy, events)
    windows = [answer.start for answer, _ in found]
    first = next(windows.index(answer.start) for answer, left_out in found if left_out)
    named = {answer.exhaustible_since for answer, _ in found} - {None}
    assert len(named) == 1
    assert first > 1
    if "epsilon" in policy:  # a user may be bound to a somewhat worse order than this one
        assert 0.8 * first <= windows.index(*named) <= first
    else:
        assert windows.index(*named) == first
    since = [answer.exhaustible_since is not None for answer, _ in found]
    assert since == sorted(since)


def test_a_budget_around_the_dataset_counts_as_well() -> None:
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset("all", measure="zcdp", budget=1.05, user_ids="integer")
    turnstile.create_dataset("d", measure="zcdp", budget=2.05, user_ids="integer", parents="all")
    run = turnstile.run("d", "r")
    query_file = asked_of(text_of([(4, 4)], "noise = 2.0"))
    calendar, asked = Calendar(query_file), query_file.queries
    inner = WorstCase(asked, [2.0], [run.policy])
    both = WorstCase(asked, [2.0], [run.policy, *run.outer])
    # Each window costs a rho of 2**2 / (2 * 2**2).
    assert (inner.exhaustible_since(calendar, 0, 9), inner.left([0], 0)) == (4, 4)
    assert (both.exhaustible_since(calendar, 0, 9), both.left([0], 0)) == (2, 2)
    assert both.exhaustible_since(calendar, 0, 1) is None


@pytest.mark.parametrize("around", [0.3, 1.0, 3.0])
def test_corrections_fit_the_smallest_of_all_budgets(around: float) -> None:
    """A user who pays for the corrections of all blocks stays within the reserve of each budget."""
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset("all", measure="zcdp", budget=around, user_ids="integer")
    turnstile.create_dataset("d", measure="zcdp", budget=1.0, user_ids="integer", parents="all")
    run = turnstile.run("d", "r")
    lines = "active_windows = 20\nleft_out = 0.25\nblock = 4\ncorrected = 400"
    query_file = asked_of(text_of([(4, 4)], lines))
    costs = costs_of(query_file, [run.policy, *run.outer])
    (query,), (blocks,) = query_file.queries, query_file.blocks
    assert costs.corrections[0] > 0
    # A user can be left out of every full window from the first one on.
    first = costs.worst_case.exhaustible_since(Calendar(query_file), 0, blocks.windows - 1)
    assert first is not None
    most = (blocks.windows - first) * blocks.size * query.bound**2
    spent = most / (2.0 * costs.corrections[0] ** 2)
    assert spent <= costs.reserve * min(around, 1.0)


def test_corrections_need_outer_budgets_that_can_be_compared() -> None:
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset("all", measure="renyi", epsilon=1.0, delta=1e-6, user_ids="integer")
    turnstile.create_dataset("d", measure="zcdp", budget=1.0, user_ids="integer", parents="all")
    run = turnstile.run("d", "r")
    lines = "active_windows = 20\nleft_out = 0.25\nblock = 4\ncorrected = 400"
    policies = [run.policy, *run.outer]
    with pytest.raises(UnusableQueries):
        costs_of(asked_of(text_of([(4, 4)], lines)), policies)
    uncorrected = costs_of(asked_of(text_of([(4, 4)], "active_windows = 20")), policies)
    assert uncorrected.corrections == [0.0]
