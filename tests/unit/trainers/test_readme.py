"""The examples of docs/train/loop.md of sampled training run as they stand there."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from accounting.release.clipping import clip_rows, row_norms
from streams.sdk.client import Turnstile
from tests.readme import blocks_of_sampled_training

DIMENSION = 8


def test_a_loop_over_a_roster_trains_and_goes_on_after_a_crash() -> None:
    """No contribution exceeds its charged level, as exact numbers."""
    (loop,) = blocks_of_sampled_training()
    data = np.random.default_rng(0).normal(size=(500, DIMENSION)).astype(np.float32)
    data *= np.linspace(0.05, 1.0, 500, dtype=np.float32)[:, np.newaxis]  # from short to long
    released: list[int] = []
    crashed: list[int] = []
    longest: list[Fraction] = []

    def release(model: Any, step: int, total: Any) -> Any:
        if step == 12 and not crashed:
            crashed.append(step)
            raise ConnectionAbortedError
        released.append(step)
        limits = names["d"].clip_norms[names["batch"]]
        for row, limit in zip(names["clipped"], limits, strict=True):
            square = sum((Fraction(float(entry)) ** 2 for entry in row), start=Fraction(0))
            longest.append(square / Fraction(float(limit)) ** 2)
        return model + total / len(data)

    names: dict[str, Any] = {
        "t": Turnstile.in_memory(),
        "np": np,
        "clip_rows": clip_rows,
        "row_norms": row_norms,
        "users": list(range(500)),
        "steps": 30,
        "model": np.zeros(DIMENSION),
        "gradients_of": lambda model, batch: data[batch] - model.astype(np.float32),
        "release": release,
    }
    with pytest.raises(ConnectionAbortedError):
        exec(loop, names)
    exec(loop, names)
    assert released == [step for step in range(30) if step != 12], "a step is drawn once"
    step: Any = names["d"]
    assert step.admitted.all()
    assert len(np.unique(step.clip_norms)) > 10  # levels followed what was seen
    assert len(longest) > 300
    assert 1 - Fraction(1, 10**6) < max(longest) <= 1
