"""Private trainings with Hugging Face's Trainer: `make test-huggingface`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import InvalidRequest, Turnstile

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-huggingface")
transformers = pytest.importorskip("transformers", reason="make test-huggingface")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-huggingface")
from streams.trainers import PrivacyEngine  # noqa: E402
from streams.trainers.huggingface import HuggingFaceTrainer  # noqa: E402

USERS = np.repeat(np.arange(40), [1, 2, 3, 2] * 10)
TOKENS = np.random.default_rng(0).integers(5, 30, size=(80, 6))
LABELS = (TOKENS[:, 0] < 17).astype(int)


class Reviews(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {
            "input_ids": TOKENS[place].tolist(),
            "labels": int(LABELS[place]),
            "position_ids": list(range(6)),  # BERT would share them between examples
            "name": f"review {place}",  # a column that the model does not take
        }


def network() -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
        )
    )


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=1) as turnstile:
        yield turnstile


def trainer_of(service: Turnstile, folder: Path, name: str = "a", **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes.pop("args", {}),
    }
    arguments: dict[str, Any] = {
        "model": network(),
        "train_dataset": Reviews(),
        "users": USERS,
        "target_epsilon": 8.0,
        "target_delta": 1e-5,
        **changes,
    }
    engine = PrivacyEngine(service, dataset="reviews", run=name, measure="renyi")
    args = transformers.TrainingArguments(**settings)
    return HuggingFaceTrainer(engine=engine, args=args, **arguments)


def test_one_step_of_the_trainer_is_one_charged_step(service: Turnstile, tmp_path: Path) -> None:
    trainer = trainer_of(service, tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    done = trainer.train()
    assert trainer.engine.statement()["steps"] == done.global_step == 15
    assert trainer.engine.statement()["sampling_rate"] == 0.2
    moved = map(torch.equal, before, trainer.model.parameters())
    assert not all(moved)


def test_nothing_that_is_computed_from_training_data_is_logged(
    service: Turnstile, tmp_path: Path
) -> None:
    trainer = trainer_of(service, tmp_path, eval_dataset=Reviews())
    done = trainer.train()
    logged = set().union(*trainer.state.log_history)
    assert {"learning_rate", "epoch"} <= logged
    assert not {"loss", "train_loss", "grad_norm"} & logged
    assert done.training_loss == 0.0
    assert trainer.state.total_flos == 0
    assert trainer.evaluate()["eval_loss"] > 0.0


def test_saved_model_loads_without_the_private_wrapper(service: Turnstile, tmp_path: Path) -> None:
    trainer = trainer_of(service, tmp_path, args={"save_strategy": "epoch", "max_steps": 4})
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "model")
    pairs = zip(loaded.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"num_train_epochs": 1.5}},
        {"args": {"auto_find_batch_size": True}},
        {"args": {"max_grad_norm": 0.0}},
        {"target_epsilon": -1.0},
        {"users": USERS[1:]},
        {"train_dataset": None},
    ],
)
def test_trainings_that_cannot_be_private_are_rejected(
    service: Turnstile, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        trainer_of(service, tmp_path, **changes)


def test_a_run_is_not_trained_twice(service: Turnstile, tmp_path: Path) -> None:
    trainer = trainer_of(service, tmp_path, args={"max_steps": 2})
    with pytest.raises(InvalidRequest):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    with pytest.raises(InvalidRequest):
        trainer_of(service, tmp_path, args={"max_steps": 4})
