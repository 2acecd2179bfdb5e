"""A closed dataset is verified and reported as it was when it was closed."""

from __future__ import annotations

import numpy as np
import pytest

from streams import Turnstile
from streams.replay.report import report
from streams.replay.verify import verify
from tests.unit.replay.service import used


@pytest.mark.slow
def test_closed_datasets_are_reported_and_fit() -> None:
    archived = used()
    before = report(archived, delta=1e-5).losses
    turnstile = Turnstile(connection=archived)
    assert turnstile.close_dataset("d") == ["d", "inner"]
    assert turnstile.close_dataset("faces") == ["faces"]
    after = report(archived, delta=1e-5).losses
    assert [part.dataset for part in before] == [part.dataset for part in after]
    for was, now in zip(before, after, strict=True):
        for name in ("steps", "spent", "remaining", "epsilon"):
            assert np.array_equal(getattr(was, name), getattr(now, name)), (was.dataset, name)
    assert verify(archived).fits
