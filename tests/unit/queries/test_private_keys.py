"""Queries about private keys, against the filter: the charge covers keys and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting.release import KeySelection
from streams.queries.continual_monitoring import QueryAnswerer
from streams.sdk.errors import InvalidRequest
from tests.unit.sdk.partitions import in_memory_run

SELECTION = KeySelection(1000, 2.0, 8.0)


def answerer_of(budget: float = 1e5, **settings: Any) -> QueryAnswerer:
    given = {"noise_stddev": 8.0, "noise": np.random.default_rng(7), **settings}
    return QueryAnswerer(in_memory_run(budget)[1], **given)


def test_keys_are_charged_like_a_vector() -> None:
    answerer = answerer_of()
    users = list(range(60))
    rows = [[1.5, -1.0]] * 59 + [[1.5, 9.0]]  # without a second key
    keys = [[7, 8]] * 59 + [[7]]
    found = answerer.answer_keys(users, rows, keys, SELECTION)
    assert found.keys == [7, 8]
    assert abs(found.value[0] - 90.0) < 5 * 8.0
    assert abs(found.value[1] + 59.0) < 5 * 8.0
    assert answerer.last_charge is not None
    norms = answerer.last_charge.decision.granted
    assert norms[0] == pytest.approx(math.sqrt(2 * 4.0 + 1.5**2 + 1.0))
    assert norms[59] == pytest.approx(math.sqrt(4.0 + 1.5**2))


def test_users_without_keys_pay_nothing() -> None:
    answerer = answerer_of()
    found = answerer.answer_keys([1, 2], [[0.0], [7.0]], [[], []], SELECTION)
    assert found.keys == []
    assert found.value.shape == (0,)
    assert answerer.last_charge is not None
    assert len(answerer.last_charge.users) == 0


def test_clipped_users_do_not_count_whatever_keys_they_lack() -> None:
    """Each can pay for one answer and for a part of another. Nothing is left out of zeros."""
    cost = (2.0**2 + 1.5**2) / (2.0 * 8.0**2)
    run = in_memory_run(1.5 * cost, on_exhaustion="clip")[1]
    answerer = QueryAnswerer(run, noise_stddev=8.0, noise=np.random.default_rng(7))
    rows, keys = [[1.5, 0.0]] * 60, [[7]] * 60
    found = [answerer.answer_keys(list(range(60)), rows, keys, SELECTION) for _ in range(2)]
    assert [one.keys for one in found] == [[7], []]


BAD: dict[str, tuple[list[list[float]], list[list[int]]]] = {
    "no list": ([[1.0]], []),
    "too many keys": ([[1.0]], [[1, 2]]),
    "key twice": ([[1.0, 1.0]], [[1, 1]]),
    "key outside": ([[1.0]], [[1000]]),
    "key below 0": ([[1.0]], [[-1]]),
    "no vectors": ([1.0], [[1]]),
}


@pytest.mark.parametrize(("values", "keys"), BAD.values(), ids=BAD)
def test_keys_that_do_not_fit_their_users_are_rejected(
    values: list[list[float]], keys: list[list[int]]
) -> None:
    answerer = answerer_of(clip_norm=4.0)
    with pytest.raises(InvalidRequest):
        answerer.answer_keys([1], values, keys, SELECTION)
    assert answerer.answer([1], [1.0]).step == 0


def test_selection_of_another_noise_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        answerer_of(noise_stddev=7.0).answer_keys([1], [[1.0]], [[1]], SELECTION)
