"""Private keys: a popular key is published, one of a single user hardly ever, each window once."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import Turnstile
from streams.answerer.keys import KeyUniverse
from streams.answerer.published_answers import PrivateAnswer
from streams.answerer.query_keys import UnusableQueries
from tests.unit.answerer.asking import FILE, answered, asked_of, event, query_of

PRODUCTS = """
[[query]]
name = "products"
kind = "sum"
column = "x"
window = "10ms"
by = "c"
key_bytes = 8
each = 10
groups = 2
noise = 8.0
"""


def universe(**settings: Any) -> KeyUniverse:
    return KeyUniverse(query_of('kind = "distinct"\nby = "c"\ngroups = 1', **settings))


SHORT, BYTES = universe(key_bytes=6), universe(keys_below=256)


@given(st.text(max_size=5), st.integers(-5, 300))
def test_number_of_a_key_leads_back_to_it(text: str, number: int) -> None:
    keys, integers = SHORT, BYTES
    found = keys.number(text)
    if 1 <= len(text.encode()) <= 6:
        assert found is not None
        assert 0 <= found < keys.size
        assert keys.label(found) == text
    else:
        assert found is None
    assert keys.number(number) is None
    assert integers.number(number) == (number if 0 <= number < 256 else None)
    assert integers.size == 256
    assert integers.label(17) == 17


def test_only_keys_of_the_universe_count() -> None:
    keys = universe(key_bytes=2)
    assert keys.size == 256 + 256**2
    assert (keys.number("ab"), keys.number("é")) != (None, None)
    assert [keys.number(one) for one in ("", "abc", "éa", "\ud800", 7, None, True)] == [None] * 7
    assert keys.label(200) is None  # not UTF-8
    assert keys.label(keys.size - 1) is None
    integers = universe(keys_below=1000)
    assert [integers.number(one) for one in (7, 999)] == [7, 999]
    assert [integers.number(one) for one in (1000, -1, 1.0, "7", True)] == [None] * 5


def test_noise_far_above_the_bound_is_rejected_before_the_start() -> None:
    asked = asked_of(FILE + PRODUCTS).queries[0]
    assert asked.selection(1e6) is not None
    with pytest.raises(UnusableQueries) as caught:
        asked.selection(1e9)
    assert caught.value.key == "noise"


def answers_of(
    events: list[bytes], text: str = FILE + PRODUCTS, seed: int = 1, **policy: Any
) -> list[PrivateAnswer]:
    with Turnstile.in_memory() as turnstile:
        terms = {"measure": "zcdp", "budget": 1e5, **policy}
        turnstile.create_dataset("d", user_ids="integer", **terms)
        return answered(asked_of(text), turnstile, events, seed=seed)


USERS = 200
"""The number of users who buy the popular product; each also buys a product of its own."""


PRICE = (10.0**2 + 4.0**2 + 10.0**2 + 10.0**2) / (2.0 * 8.0**2)
"""The rho of a window: two keys with a contribution of 10, and values of 4 and 10."""


def shopping(windows: int) -> list[bytes]:
    return [
        event(user, 10 * window, c=key, x=x)
        for window in range(windows + 1)
        for user in range(USERS)
        for key, x in (("bread", 4.0), (f"own{user}", 20.0))
    ]


@pytest.mark.slow
def test_popular_keys_are_published_with_intervals_that_hold() -> None:
    answers = answers_of(shopping(80))
    assert len(answers) == 80
    holds = 0
    for answer in answers:
        assert answer.labels == ["bread"]
        assert isinstance(answer.lower, list)
        assert isinstance(answer.upper, list)
        holds += answer.lower[0] <= 4.0 * USERS <= answer.upper[0]
    assert 70 <= holds <= 80  # 76 on average


@pytest.mark.parametrize(("windows", "policy"), [(2.5, "halt"), (2.9, "clip")])
def test_users_who_cannot_pay_a_window_do_not_count(windows: float, policy: str) -> None:
    """Each can pay for two windows: in the third none is admitted, so no key has users."""
    answers = answers_of(shopping(3), budget=windows * PRICE, on_exhaustion=policy)
    assert [answer.labels for answer in answers] == [["bread"], ["bread"], []]


def test_order_of_events_does_not_change_the_answer() -> None:
    """Each user buys one of two products, of different value."""
    first = [
        event(user, 0, c=key, x=x)
        for user in range(4 * USERS)
        for key, x in [(("bread", 4.0), ("milk", 2.0))[user % 2]]
    ]
    mixed = [first[place] for place in np.random.default_rng(2).permutation(len(first))]
    one, other = (answers_of([*some, event(0, 10)]) for some in (first, mixed))
    assert one[0].labels == ["bread", "milk"]
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
