"""Trainings with Hugging Face's Trainer do the same with one user and without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from streams import Turnstile
from tests.worlds.neighbours import (
    SEED,
    Fact,
    Noisy,
    Program,
    check_neighbours,
    difference,
    flat,
    observed,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-huggingface")
transformers = pytest.importorskip("transformers", reason="make test-huggingface")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-huggingface")
peft = pytest.importorskip("peft", reason="PEFT is not installed: make test-huggingface")
from streams.trainers import PrivacyEngine  # noqa: E402
from streams.trainers.huggingface import HuggingFaceTrainer  # noqa: E402
from tests.unit.trainers.finetuning import network  # noqa: E402

pytestmark = pytest.mark.slow
USER = 99


class Review(NamedTuple):
    """A review of a user: six tokens, and a label."""

    user: int
    tokens: tuple[int, ...]
    label: Any
    empty: str = ""  # a column that is None


class Reviews(torch.utils.data.Dataset):
    def __init__(self, data: list[Review]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> dict[str, Any]:
        one = self._data[place]
        positions = list(range(len(one.tokens)))
        row = {"input_ids": list(one.tokens), "labels": one.label, "position_ids": positions}
        return {name: None if name == one.empty else value for name, value in row.items()}


EXAMPLES: list[dict[str, Any]] = [
    {"input_ids": [5 + n] * 6, "labels": n % 2, "position_ids": list(range(6))} for n in range(4)
]


def counted(split: str, start_time: float, **numbers: float) -> dict[str, float]:
    """Return what the rates in the metrics follow from, instead of the rates of this run."""
    return {f"{split}_{name}": number for name, number in numbers.items()}


def train(data: list[Review], **length: Any) -> Iterator[Fact]:
    shown: dict[str, Any] = {"output_dir": "out", "report_to": [], "disable_tqdm": True}
    with Turnstile.in_memory(partitions=2) as turnstile:
        trainer = HuggingFaceTrainer(
            engine=PrivacyEngine(turnstile, dataset="reviews", run="r"),
            model=network(),
            examples=EXAMPLES,
            train_dataset=Reviews(data),
            users=np.array([one.user for one in data]),
            target_epsilon=8.0,
            target_delta=1e-5,
            settings={"population": 24, "not_private_generator": np.random.default_rng(SEED)},
            args=transformers.TrainingArguments(
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                logging_steps=1,
                save_strategy="epoch",
                use_cpu=True,
                **shown,
                **length,
            ),
        )
        with patch("transformers.trainer.speed_metrics", counted):
            done = trainer.train()
        yield Fact("done", (done.global_step, done.training_loss, done.metrics))
        yield Fact("logged", trainer.state.log_history)
        yield Fact("statement", trainer.engine.statement())
        values = [one.detach().numpy() for one in trainer.model.parameters()]
        yield Fact("model", Noisy(flat(values)))


PROGRAMS = {
    "epochs": partial(train, num_train_epochs=2),
    "steps": partial(train, max_steps=4, num_train_epochs=1),
}
_random = np.random.default_rng(0)
OTHERS = [
    Review(user, tuple(_random.integers(5, 30, size=6).tolist()), user % 2)
    for user in range(20)
    for _ in range(1 + user % 3)
]
HOSTILE = {
    "one review": [Review(USER, (5, 6, 7, 8, 9, 10), 1)],
    "very many reviews": [Review(USER, (5, 6, 7, 8, 9, 10), place % 2) for place in range(100)],
    "ill-formed reviews": [
        Review(USER, (5, 6, 7, 8, 9, 10), label) for label in (7, -1, 0.5, 1.0, None, "1", [1])
    ]
    + [Review(USER, tokens, 1) for tokens in [(5, 6, 7), (5,) * 9, (5, 6, 7, 8, 9, 10**6), ()]]
    + [Review(USER, (5, 6, 7, 8, 9, -1), 1), Review(USER, (5, 6, 7, 8, 9, 10**30), 1)]
    + [Review(USER, (5, 6, 7, 8, 9, 10), 1, column) for column in ("input_ids", "position_ids")],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_one_user_of_a_training_decides_nothing(program: Program[Review], name: str) -> None:
    check_neighbours(program, OTHERS, HOSTILE[name])


# --- the contributions of others ------------------------------------------------------------------


class Texts(Reviews):
    """Texts whose tokens up to the label count in the loss."""

    def __getitem__(self, place: int) -> dict[str, Any]:
        row, one = super().__getitem__(place), self._data[place]
        labels = [token if at < one.label else -100 for at, token in enumerate(one.tokens)]
        padded = [0, 0, 1, 1, 1, 1]  # on the left, so that a text without a mask is another one
        row = {**row, "labels": labels, "attention_mask": padded}
        return {name: None if name == one.empty else value for name, value in row.items()}


def one_step_of_a_text_model(data: list[Review], *, adapts: bool = False) -> Iterator[Fact]:
    """Take one step with all users, of a model whose own loss is a mean over tokens."""
    torch.manual_seed(SEED)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    if adapts:
        model = peft.get_peft_model(
            model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["mlp.c_fc"])
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    population, clip_norm = 24, 4.0  # longer than the usual gradient
    settings = {"population": population, "sampling_rate": 1.0}
    with Turnstile.in_memory(partitions=2) as turnstile:
        trainer = HuggingFaceTrainer(
            engine=PrivacyEngine(turnstile, dataset="texts", run="r"),
            model=model,
            examples=[
                {**one, "labels": one["input_ids"], "attention_mask": [1] * 6} for one in EXAMPLES
            ],
            train_dataset=Texts(data),
            users=np.array([one.user for one in data]),
            target_epsilon=8.0,
            target_delta=1e-5,
            settings={**settings, "not_private_generator": np.random.default_rng(SEED)},
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
            args=transformers.TrainingArguments(
                output_dir="out",
                max_steps=1,
                max_grad_norm=clip_norm,
                per_device_train_batch_size=16 if adapts else 128,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
        )
        with patch("transformers.trainer.speed_metrics", counted):
            yield Fact("steps", trainer.train().global_step)
        values = [one.detach().numpy() for one in model.parameters()]
        yield Fact("model", Noisy(flat(values), clip_norm / population))


WRITERS = [one._replace(label=2 + one.user % 5) for one in OTHERS]


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("length", [1, 2])
def test_one_user_of_a_text_model_moves_no_other(length: int, adapts: bool) -> None:
    """Some users have more tokens than others, and only those of the user may count for it."""
    user = [Review(USER, (5, 6, 7, 8, 9, 10), length)] * 60
    check_neighbours(partial(one_step_of_a_text_model, adapts=adapts), WRITERS, user)


@pytest.mark.parametrize("empty", ["attention_mask", "position_ids", "labels", "input_ids"])
def test_first_example_does_not_decide_columns_of_others(empty: str) -> None:
    user = [Review(USER, (5, 6, 7, 8, 9, 10), 3, empty)]
    alone = observed(one_step_of_a_text_model, WRITERS)
    found = difference(alone, observed(one_step_of_a_text_model, [*user, *WRITERS]))
    assert not found, found
