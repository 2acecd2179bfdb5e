"""Kinds of queries: no user changes a noisy sum by more than the charged norm."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.release.clipping import row_norms
from streams.answerer.kinds import Content, Kind
from tests.unit.answerer.asking import query_of

LABELS = 'by = "c"\nlabels = ["a", "b", "z"]'
KINDS = {
    "count": 'kind = "count"\neach = 2',
    "count by": f'kind = "count"\neach = 2\ngroups = 2\n{LABELS}',
    "count by, clipped": f'kind = "count"\nclip = 2.5\n{LABELS}',
    "distinct": 'kind = "distinct"',
    "distinct by": f'kind = "distinct"\ngroups = 2\n{LABELS}',
    "sum": 'kind = "sum"\ncolumn = "x"\neach = 3.7',
    "sum by": f'kind = "sum"\ncolumn = "x"\neach = 3.7\ngroups = 1\n{LABELS}',
    "sum by, clipped": f'kind = "sum"\ncolumn = "x"\nclip = 0.3\n{LABELS}',
    "count by private keys": 'kind = "count"\neach = 2\ngroups = 2\nby = "c"\nkey_bytes = 1',
    "sum by private keys": (
        'kind = "sum"\ncolumn = "x"\neach = 3.7\ngroups = 1\nby = "c"\nkey_bytes = 3'
    ),
    "distinct by private keys": 'kind = "distinct"\ngroups = 3\nby = "c"\nkey_bytes = 64',
    "mean": 'kind = "mean"\ncolumn = "x"\nlower = -2\nupper = 9\neach = 2',
    "mean by": f'kind = "mean"\ncolumn = "x"\nlower = -2\nupper = 9\neach = 2\n{LABELS}',
    "variance": 'kind = "variance"\ncolumn = "x"\nlower = -2\nupper = 9\neach = 2',
    "variance by": f'kind = "variance"\ncolumn = "x"\nlower = -2\nupper = 9\neach = 1\n{LABELS}',
    "ratio": (
        'kind = "ratio"\nnumerator = { column = "x", each = 3.7 }\n'
        'denominator = { of = "distinct" }'
    ),
    "ratio by": (
        'kind = "ratio"\nnumerator = { where = { x = { at_least = 1 } }, each = 1 }\n'
        f"denominator = {{ each = 2 }}\ngroups = 2\n{LABELS}"
    ),
    "histogram": 'kind = "histogram"\ncolumn = "x"\nedges = [-1, 0, 2, 8]\neach = 1\ngroups = 2',
    "quantiles": (
        'kind = "quantiles"\ncolumn = "x"\nlower = 0\nupper = 8\nlevels = 8\nquantiles = [0.5]\n'
        "each = 2"
    ),
    "top": f'kind = "top"\nof = "sum"\ncolumn = "x"\nk = 2\neach = 3\ngroups = 2\n{LABELS}',
    "threshold": 'kind = "threshold"\nthreshold = 10\neach = 2',
    "where": 'kind = "count"\neach = 2\nwhere = { c = ["a", "b"], x = { at_least = 0 } }',
}
VALUES = [-1e300, -3.0, -0.1, 0.0, 1 / 3, 2.0, 5.5, 1e300]
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(VALUES), st.sampled_from(["a", "b", "c", "z"])),
    max_size=12,
)


def content_of(asked: Kind, events: list[tuple[int, float, str]]) -> Content:
    content: Content = {}
    for user, x, label in events:
        added = asked.added({"x": x, "c": label})
        assert added is not None
        for coordinate, amount in added:
            sums = content.setdefault(user, {})
            sums[coordinate] = sums.get(coordinate, 0) + amount
    return content


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(events=EVENTS, order=st.randoms(use_true_random=False))
def test_user_changes_its_own_row_by_at_most_the_bound(
    kind: str, events: list[tuple[int, float, str]], order: random.Random
) -> None:
    asked = query_of(kind)
    users, rows = asked.rows(content_of(asked, events))
    exact = [sum(Fraction(x) ** 2 for x in row) for row in rows.tolist()]
    assert all(norm <= Fraction(asked.bound) ** 2 for norm in exact)
    charged = row_norms(rows) if len(rows) else []
    assert all(Fraction(c) ** 2 >= n for c, n in zip(charged, exact, strict=True))
    for left_out in users:
        others = [e for e in events if e[0] != left_out]
        order.shuffle(others)
        remaining, their_rows = asked.rows(content_of(asked, others))
        assert remaining == [user for user in users if user != left_out]
        kept = [row for user, row in zip(users, rows, strict=True) if user != left_out]
        assert their_rows.tobytes() == np.array(kept).reshape(-1, asked.dimension).tobytes()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_bound_is_valid_and_nearly_reached(kind: str) -> None:
    """All of up to four events: what the worst case pays for is not more than it needs."""
    asked = query_of(kind)
    few = itertools.product(VALUES[1:7], "abz")
    events = [(1, x, label) for x, label in few]
    largest = 0.0
    for count in range(1, 4):
        for chosen in itertools.combinations_with_replacement(events, count):
            _, rows = asked.rows(content_of(asked, list(chosen)))
            if len(rows):
                largest = max(largest, float(np.linalg.norm(rows[0])))
    assert largest <= asked.bound
    assert largest >= 0.7 * asked.bound


def answered(kind: str, value: list[float], stddev: float = 1e-9) -> Any:
    return query_of(kind).answered(np.array(value), stddev, 0.95)


def test_answers_follow_from_the_noisy_sum() -> None:
    found = answered(KINDS["sum by"], [1.0, 2.0, -3.0], 1.0)
    assert (found.value, found.labels) == ([1.0, 2.0, -3.0], ["a", "b", "z"])
    width = found.upper[0] - 1.0
    assert 1.96 < width < 2.4  # three intervals together
    assert answered(KINDS["histogram"], [1, 2, 3]).labels == ["-1 to 0", "0 to 2", "2 to 8"]
    largest = answered(KINDS["top"], [1.0, -2.0, 7.0])
    assert (largest.labels, largest.value) == (["z", "a"], [7.0, 1.0])
    assert [answered(KINDS["threshold"], [sum_]).above for sum_ in (10.5, 9.5)] == [True, False]


@pytest.mark.parametrize(
    ("kind", "true", "no_users", "bounds"),
    [
        ("mean", 2.5, [0.3, -0.1], (-2.0, 9.0)),
        ("variance", float(np.var([-2.0, 0.5, 4.0, 7.5])), [0.3, 0.2, -0.1], (0.0, 5.5**2)),
    ],
)
def test_means_and_variances_are_those_of_the_values(
    kind: str, true: float, no_users: list[float], bounds: tuple[float, float]
) -> None:
    asked = query_of(KINDS[kind].replace("each = 2", "each = 100"))
    events = [(user, x, "a") for user, x in enumerate([-2.0, 0.5, 4.0, 7.5])]
    value = asked.rows(content_of(asked, events))[1].sum(axis=0)
    found = asked.answered(value, 1e-9, 0.95)
    assert found.value == pytest.approx(true, abs=1e-5)
    assert found.lower <= true <= found.upper
    nothing = asked.answered(np.array(no_users), 1.0, 0.95)
    assert (nothing.value, nothing.lower, nothing.upper) == (None, *bounds)
    if kind == "mean":
        assert asked.answered(np.array([9.0, 1.0]), 1e-9, 0.95).value == 9.0


def noisy_answers(
    kind: str, sums: list[float], stddev: float, repetitions: int = 1500, confidence: float = 0.9
) -> list[Any]:
    asked, noise = query_of(kind), np.random.default_rng(8)
    drawn = np.array(sums) + stddev * noise.standard_normal((repetitions, len(sums)))
    return [asked.answered(value, stddev, confidence) for value in drawn]


def covered(answers: list[Any], truth: float) -> float:
    """The share of intervals that hold; one without ends holds."""
    return float(np.mean([a.lower is None or a.lower <= truth <= a.upper for a in answers]))


RATIO = 'kind = "ratio"\nnumerator = { each = 1 }\ndenominator = { of = "distinct" }'


@pytest.mark.parametrize("stddev", [1.0, 10.0, 60.0, 500.0])
@pytest.mark.parametrize("sums", [[30.0, 100.0], [0.0, 100.0], [300.0, 40.0], [-20.0, 100.0]])
def test_intervals_of_a_ratio_hold_exactly_as_often_as_promised(
    sums: list[float], stddev: float
) -> None:
    answers = noisy_answers(RATIO, sums, stddev)
    assert covered(answers, sums[0] / sums[1]) > 0.9 - 3.5 * math.sqrt(0.09 / 1500)
    if stddev <= 10.0:
        assert covered(answers, sums[0] / sums[1]) < 0.9 + 3.5 * math.sqrt(0.09 / 1500)
    if stddev == 1.0:
        assert all(answer.lower is not None for answer in answers)
    if stddev == 500.0:
        assert sum(answer.lower is None for answer in answers) > 1000


@pytest.mark.parametrize("stddev", [1.0, 20.0, 200.0])
@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5], [-1.0, 1.0, 0.2], [0.0, 0.9, -0.3]])
def test_intervals_of_means_and_variances_hold(values: list[float], stddev: float) -> None:
    users, scaled = 200.0, np.array(values)
    sums = [users * scaled.mean(), users * (scaled**2).mean() - users / 2.0, users]
    bounds = 'column = "x"\nlower = -1\nupper = 1\neach = 1'
    least = 0.9 - 3.5 * math.sqrt(0.09 / 1500)
    variances = noisy_answers(f'kind = "variance"\n{bounds}', sums, stddev)
    assert covered(variances, float(scaled.var())) > least
    assert all(0.0 <= a.lower <= a.upper <= 1.0 for a in variances)
    assert all(a.value is None or a.lower <= a.value <= a.upper for a in variances)
    means = noisy_answers(f'kind = "mean"\n{bounds}', [sums[0], users], stddev)
    assert covered(means, float(scaled.mean())) > least
    assert all(-1.0 <= a.lower <= a.upper <= 1.0 for a in means)


def test_each_number_of_a_ratio_has_its_own_bounds() -> None:
    asked = query_of(
        'kind = "ratio"\nwhere = { c = ["a", "b"] }\n'
        'numerator = { column = "x", where = { c = "a" }, each = 6 }\n'
        "denominator = { each = 2 }"
    )
    events = [(1, 5.0, "a"), (1, 4.0, "a"), (1, 9.0, "b"), (2, 1.0, "a"), (3, 8.0, "z")]
    users, rows = asked.rows(content_of(asked, events))
    assert users == [1, 2]
    assert rows.tolist() == [[1.0, 1.0], [1.0 / 6.0, 0.5]]
    found = asked.answered(rows.sum(axis=0), 1e-9, 0.95)
    assert found.value == pytest.approx(7.0 / 3.0)
    assert asked.added({"c": "a", "x": None}) is None
    assert asked.added({"c": "b", "x": None}) == [(1, 1)]


def test_a_ratio_without_ends_has_no_interval() -> None:
    found = answered(KINDS["ratio by"], [3.0, 0.5, 3.0, -8.0, 4.0, 1e9], 1.0)
    assert found.value[:2] == [3.0, None] or found.value[1] is None
    assert (found.lower[:2], found.upper[:2]) == ([None, None], [None, None])
    assert found.lower[2] <= found.value[2] <= found.upper[2]


def test_quantiles_and_their_intervals_hold() -> None:
    kind = KINDS["quantiles"].replace("[0.5]", "[0.25, 0.5, 0.75]").replace("= 8\nq", "= 64\nq")
    asked = query_of(kind.replace("each = 2", "each = 1"))
    random_values = np.random.default_rng(5).uniform(0.0, 8.0, 4000)
    events = [(user, float(x), "a") for user, x in enumerate(random_values)]
    value = asked.rows(content_of(asked, events))[1].sum(axis=0)
    noise = np.random.default_rng(6)
    true = np.quantile(random_values, [0.25, 0.5, 0.75])
    covered = 0
    for _ in range(60):
        found = asked.answered(value + 20.0 * noise.standard_normal(64), 20.0, 0.9)
        assert found.value == pytest.approx(true, abs=0.5)
        covered += all(
            lower - 0.125 <= x <= upper + 0.125
            for lower, x, upper in zip(found.lower, true, found.upper, strict=True)
        )
    assert covered >= 50
    nothing = asked.answered(np.full(64, -5.0), 1.0, 0.95)
    assert nothing.value == [None] * 3
    assert (nothing.lower[0], nothing.upper[0]) == (0.0, 8.0) or nothing.upper[0] <= 8.0


def test_event_outside_the_query_adds_nothing() -> None:
    asked = query_of(KINDS["where"])
    assert asked.added({"c": "z", "x": 1.0}) == []
    assert asked.added({"c": "a", "x": -1.0}) == []
    assert asked.added({"c": "a", "x": None}) == []
    assert asked.added({"c": "a", "x": 0}) == [(0, 1)]
    by = query_of(KINDS["count by"].replace('"a", "b", "z"', '1, "1"'))
    assert by.added({"c": 1}) == [(0, 1)]
    assert by.added({"c": "1"}) == [(1, 1)]
    assert by.added({"c": True}) == []
    assert by.added({"c": [1]}) == []


@pytest.mark.parametrize(("lower", "summed"), [("", -3.0), ("lower = 0", 2.0), ("lower = -1", 1.0)])
def test_amounts_below_the_declared_least_one_are_raised_to_it(lower: str, summed: float) -> None:
    asked = query_of(f'kind = "sum"\ncolumn = "x"\neach = 50\n{lower}')
    _, rows = asked.rows(content_of(asked, [(1, 2.0, "a"), (1, -5.0, "a")]))
    assert rows.tolist() == [[summed]]
    assert asked.is_never_negative is (lower == "lower = 0")


@given(st.floats(-1e300, 1e300, allow_nan=False))
def test_a_value_is_rounded_towards_zero(x: float) -> None:
    asked = query_of('kind = "sum"\ncolumn = "x"\neach = 1e50')
    _, rows = asked.rows(content_of(asked, [(1, x, "a")]))
    kept = float(rows[0][0])
    assert abs(kept) <= min(abs(x), 1e50)
    if abs(x) < 1e50:
        assert abs(x - kept) <= math.ldexp(1e50, -38)
