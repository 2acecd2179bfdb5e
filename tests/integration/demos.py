"""The demo at a small size, for tests; tests/unit/demo checks its figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from streams.demo import purchases
from streams.demo.purchases import simulated_purchases


@contextmanager
def small_demo() -> Iterator[None]:
    """Answer 30 days of a small shop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purchases, "simulated_purchases", partial(simulated_purchases, 3000, 30))
        yield
