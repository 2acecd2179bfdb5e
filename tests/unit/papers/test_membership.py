"""The membership attack of the paper scripts finds what losses show, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers.yu import threshold_success


def test_attack_is_right_as_often_as_losses_tell_members_from_others() -> None:
    random = np.random.default_rng(0)
    losses = random.random(1_000)
    assert threshold_success(losses, losses + 1.0, random) == pytest.approx(1.0, abs=0.03)
    assert threshold_success(losses, random.random(400), random) == pytest.approx(0.5, abs=0.03)
    assert threshold_success(losses, losses + 0.5, random) == pytest.approx(0.75, abs=0.03)
