"""A check of what `InvalidInput` holds, independent of its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from accounting import InvalidInput


@contextmanager
def refused(argument: str) -> Iterator[None]:
    """Expect `InvalidInput` for this argument."""
    with pytest.raises(InvalidInput) as caught:
        yield
    assert caught.value.argument == argument
