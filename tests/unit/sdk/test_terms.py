"""Who asks for another policy is told what is there, what was asked for, and no wire's units."""

from __future__ import annotations

from typing import Any

import pytest

from streams.sdk.datasets import terms
from streams.sdk.errors import PolicyChanged
from tests.keys import public
from tests.unit.sdk.partitions import Partitions

EPSILON_1 = {"epsilon": 1.0, "delta": 1e-5, "budget": None}
# What is there, what is asked for, and what is said of both.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "epsilon": (
        EPSILON_1,
        {**EPSILON_1, "epsilon": 2.0},
        "zcdp rho 0.0305566 (epsilon 1 at delta 1e-05)",
        "zcdp rho 0.108256 (epsilon 2 at delta 1e-05)",
    ),
    "measure": ({"measure": "pure-dp"}, {}, "pure-dp epsilon 1", "zcdp rho 1 (epsilon 7.0772 at"),
    "mu": ({"measure": "gdp"}, {"measure": "gdp", "budget": 2.0}, "gdp mu 1 (", "gdp mu 2 ("),
    "orders": (
        {"measure": "renyi", "orders": [2.0, 4.0], "budget": [1.0, 2.0]},
        {"measure": "renyi", "orders": [2.0], "budget": [1.0]},
        "renyi of 2 orders (epsilon 5.08786",
        "renyi of 1 orders (epsilon 11.",
    ),
    "more than one": (
        {},
        {"on_exhaustion": "clip", "user_ids": "mixed"},
        "on_exhaustion 'halt', user_ids 'one-kind'",
        "on_exhaustion 'clip', user_ids 'mixed'",
    ),
    "who may": (
        {"allow": {public("ada"): ["manage"]}},
        {},
        f"allow {{'{public('ada')}': ['manage']}}",
        "allow none",
    ),
    "odometers": ({}, {"odometer_step": 0.5}, "odometer_step [0.125]", "odometer_step [0.5]"),
    "a trifle": ({}, {"budget": 1.0 + 1e-9}, "budget=[1.0]", "budget=[1.00000000"),
}


@pytest.mark.parametrize("case", ASKED)
def test_another_policy_is_told_in_the_words_of_who_creates_datasets(case: str) -> None:
    first, second, there, asked = ASKED[case]
    service = Partitions()
    service.create(**first)
    kept = service.ledgers[0].state.policies["d",]
    with pytest.raises(PolicyChanged) as refused:
        service.create(**second)
    assert refused.value.held == kept
    assert there in refused.value.detail
    assert asked in refused.value.detail


def test_a_policy_is_told_without_what_it_does_not_say() -> None:
    policy = Partitions(2).create()
    assert terms(policy) == (
        "dataset='d', partitions=2, measure='zcdp', budget=[1.0], odometer_step=[0.125], "
        "on_exhaustion='halt', user_ids='one-kind'"
    )
