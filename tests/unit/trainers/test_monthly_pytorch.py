"""examples/monthly_pytorch.py: one budget per user for the trainings of all months."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams import Turnstile
from tests import readme

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")

STEPS = 4  # of one training; a budget pays for two trainings


@pytest.mark.slow
def test_a_user_in_more_trainings_than_planned_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = readme.example("monthly_pytorch")
    monkeypatch.setattr(example, "STEPS", STEPS)
    monkeypatch.chdir(tmp_path)

    members = [set(example.examples_of_month(month)[0].tolist()) for month in range(3)]
    assert len({len(users) for users in members}) == 3, "months have different numbers of users"
    in_all = set.intersection(*members)
    halted = []
    with Turnstile.in_memory() as turnstile:
        for month in ("2026-01", "2026-02", "2026-03"):
            example.train(turnstile, month)
            halted.append({halt.user for halt in turnstile.halts("clicks", follow=False)})
        spent = {record.user: record for record in turnstile.odometer("clicks", follow=False)}
        run = turnstile.run("clicks", "after")
        shares = {user: record.share(run.policy) for user, record in spent.items()}
    assert halted == [set(), set(), in_all]
    for user in set.union(*members):
        trainings = sum(user in users for users in members)
        assert shares[user] == min(trainings, 2) / 2
    assert {path.name for path in tmp_path.iterdir()} == {
        f"model-2026-0{month}.{kind}" for month in (1, 2, 3) for kind in ("npz", "pt")
    }


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "foo"])
def test_a_month_that_does_not_exist_is_refused(
    month: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["monthly_pytorch.py", month])
    with pytest.raises(SystemExit):
        readme.example("monthly_pytorch").main()
    assert "is no month such as 2026-01" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
