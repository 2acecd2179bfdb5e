"""examples/private_statistics.py runs as it stands, and its statistics are near the truth."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

from tests.readme import TOP


def test_example_publishes_statistics_near_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(TOP / "examples" / "private_statistics.py"))
    lost = example["epsilons"](np.random.default_rng(0))
    example["main"]()
    mean, *quantiles = capsys.readouterr().out.splitlines()
    assert float(mean.split()[1]) == pytest.approx(lost.mean(), rel=0.2)
    truth = np.quantile(lost, example["QUANTILES"])
    found = [float(line.split()[-1]) for line in quantiles]
    assert found == pytest.approx(truth.tolist(), rel=0.3)
    assert max(lost) < example["UPPER"]
