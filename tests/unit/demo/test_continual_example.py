"""examples/continual_training.py runs as it stands, and its models learn."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.readme import TOP


@pytest.mark.slow
def test_the_example_trains_every_month(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = TOP / "examples" / "continual_training.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--seed", "1"])
    runpy.run_path(str(path), run_name="__main__")
    _, *lines, decisions = capsys.readouterr().out.splitlines()
    months = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines]
    assert [month[0] for month in months] == list(range(1, 18))
    assert 0.0 == months[0][2] < months[-1][2] < months[-1][1]
    assert sum(month[3] for month in months[5:]) / len(months[5:]) > 0.68
    assert len(decisions.split()[-1]) == 16
