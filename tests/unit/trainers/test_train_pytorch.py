"""examples/train_pytorch.py survives ``kill -9``: `make test-torch`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streams import Turnstile
from streams.cli.main import main
from streams.trainers.checkpoint import Checkpoint
from tests.readme import TOP

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
pytestmark = [pytest.mark.process, pytest.mark.slow]

STEPS = 20  # one epoch
SIGKILL = -9


def train(folder: Path, kill_after: int | None) -> tuple[int, list[int]]:
    """Run the example; return its exit code and the steps that it reported as saved.

    Args:
        folder: with the budgets and the checkpoint.
        kill_after: kill the process when it has reported this many steps; None: let it end.
    """
    saved: list[int] = []
    with subprocess.Popen(
        [sys.executable, str(TOP / "examples" / "train_pytorch.py"), "--epochs", "1"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            saved += [int(step) for step in re.findall(r"^step (\d+) ", line)]
            if len(saved) == kill_after:
                process.kill()
        return process.wait(), saved


def test_a_killed_training_charges_every_step_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, saved = zip(*(train(tmp_path, count) for count in (3, 3, None)), strict=True)
    assert codes == (SIGKILL, SIGKILL, 0)
    released = [step for steps in saved for step in steps]
    assert released == sorted(set(released)), "a step is released twice"
    # Each kill hides at most a step that was saved and not reported, and ends one that was open.
    assert STEPS - 4 <= len(released) <= STEPS
    assert Checkpoint(tmp_path / "model.npz").released() == STEPS - 1

    budgets = ["--budgets", str(tmp_path / "budgets.db")]
    assert main(["verify", *budgets]) == 0
    capsys.readouterr()
    assert main(["explain", "--user", "7", "--json", *budgets]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    charged = [(e["step"], e["budgets"][0]["spent"]) for e in events if e["what"] == "charged"]
    assert charged == [(step, [step + 1.0]) for step in range(STEPS)]
    # The budget pays for exactly these steps, so no other user's charge was lost or doubled either.
    assert main(["dataset", "show", "clicks", "--json", *budgets]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["users"], shown["exhausted"]) == (990, 990)
    with Turnstile.open(tmp_path / "budgets.db") as turnstile:
        assert not list(turnstile.halts("clicks", follow=False))
