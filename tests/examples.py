"""How many examples of a property a test run tries, and which points of a grid."""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

PROFILES = {"check": 5, "full": 25, "thorough": 1000}
"""Examples of each property in `make check`, `make test` and `make nightly`.

The first two try the same examples every time; `make nightly` draws random ones.
"""


def examples(most: int) -> settings:
    """Return at most this many examples, for a slow property; ten times as many if thorough."""
    profile = settings.default.max_examples
    thorough = profile == PROFILES["thorough"]
    return settings(max_examples=10 * most if thorough else min(most, profile))


def grid(*axes: Sequence[Hashable]) -> list[Any]:
    """Return all combinations; the usual run has enough of them to show each value."""
    usual = {tuple(axis[i % len(axis)] for axis in axes) for i in range(max(map(len, axes)))}
    return [
        pytest.param(*point, marks=() if point in usual else pytest.mark.thorough)
        for point in product(*axes)
    ]
