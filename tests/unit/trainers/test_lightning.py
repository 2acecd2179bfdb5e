"""examples/train_lightning.py: Lightning's Trainer trains as the plain loop: `make test-torch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.cli.main import main
from streams.trainers.checkpoint import Checkpoint
from tests import readme

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
lightning = pytest.importorskip("lightning", reason="Lightning is not installed: make test-torch")
pytestmark = pytest.mark.slow

STEPS = 6
BUDGETS, MODEL = "budgets.db", "model.npz"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = readme.example("train_lightning")
    monkeypatch.setattr(module, "STEPS", STEPS)
    monkeypatch.chdir(tmp_path)
    return module


def training(example: Any, turnstile: Turnstile) -> Any:
    """A training whose steps all come in several batches."""
    torch.manual_seed(0)
    return example.private_training(
        turnstile,
        max_physical_batch_size=16,
        not_private_generator=np.random.default_rng(1),
    )


def fit(module: Any, *callbacks: Any, ckpt_path: Any = None, **settings: Any) -> Any:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


class Observer(lightning.Callback):  # type: ignore[misc]
    """Notes what a callback can see at the end of each step, and may end the training."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.seen: list[Any] = []
        self._ends_after = ends_after

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        saved = Checkpoint(MODEL).released()
        self.seen.append((batch, outputs or None, trainer.global_step, saved))
        if len(self.seen) == self._ends_after:
            raise ConnectionAbortedError


def test_lightning_trains_as_the_plain_loop(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = 0
    with Turnstile.in_memory() as turnstile:
        plain = training(example, turnstile)
        model, optimizer, loader = plain.model, plain.private, plain.loader
        (_, (schedule,)) = plain.configure_optimizers()
        for features, labels in loader:
            optimizer.zero_grad()
            example.loss_of(model, (features, labels)).backward()
            optimizer.step()
            batches += 1
            if loader.is_last:
                schedule.step()
    assert batches > STEPS

    observer = Observer()
    with Turnstile.open(BUDGETS) as turnstile:
        module = training(example, turnstile)
        trainer = fit(module, observer)
    assert observer.seen == [(step, None, step + 1, step) for step in range(STEPS)]
    assert trainer.logged_metrics == {}
    expected, found = plain.model.state_dict(), module.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)

    capsys.readouterr()
    assert main(["explain", "--user", "7", "--json", "--budgets", BUDGETS]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    charged = [(e["step"], e["budgets"][0]["spent"]) for e in events if e["what"] == "charged"]
    assert charged == [(step, [step + 1.0]) for step in range(STEPS)]


def test_a_training_that_ended_continues_with_its_schedule(example: Any) -> None:
    with Turnstile.open(BUDGETS) as turnstile:
        module = training(example, turnstile)
        with pytest.raises(ConnectionAbortedError):
            fit(module, Observer(ends_after=2))
    with Turnstile.open(BUDGETS) as turnstile:
        again = training(example, turnstile)
        assert all(map(torch.equal, module.model.parameters(), again.model.parameters()))
        observer = Observer()
        trainer = fit(again, observer)
    assert [saved for *_, saved in observer.seen] == [2, 3, 4, 5]
    assert trainer.global_step == STEPS - 2
    assert again.private.param_groups[0]["lr"] == 0.0
    assert again.private.param_groups[0]["initial_lr"] == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 2},
        {"ckpt_path": "last.ckpt"},
        {"gradient_clip_val": 1.0},
        {"precision": "bf16-mixed"},
    ],
    ids=str,
)
def test_settings_that_the_charges_do_not_cover_are_rejected(
    example: Any, settings: dict[str, Any]
) -> None:
    with Turnstile.in_memory() as turnstile:
        module = training(example, turnstile)
        if "ckpt_path" in settings:
            trainer = fit(module, limit_train_batches=0)
            trainer.save_checkpoint("last.ckpt")
        with pytest.raises(
            (ValueError, lightning.pytorch.utilities.exceptions.MisconfigurationException)
        ):
            fit(module, **settings)
        assert module.loader.private.step == 0
