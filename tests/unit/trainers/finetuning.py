"""Trainings with Hugging Face's Trainer whose process may be killed, and their hand computation.

Coins and noise of a step come from a seed of the step alone. So a step that is computed after a
restart is the one that an uninterrupted training makes.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional

from accounting.release.exact_normals import ExactNormals
from streams import Turnstile
from streams.sdk.roster_steps import poisson_sample
from streams.trainers import PrivacyEngine
from streams.trainers.huggingface import HuggingFaceTrainer
from streams.trainers.steps import GRID_BITS
from tests.unit.trainers.rank import Task

USERS = np.repeat(np.arange(40), [1, 2, 3, 2] * 10)
TOKENS = np.random.default_rng(0).integers(5, 30, size=(80, 6))
LABELS = (TOKENS[:, 0] < 17).astype(int)
STEPS, RATE = 15, 0.2  # three passes of five steps
EXAMPLE = {"input_ids": [0] * 6, "labels": 0, "position_ids": list(range(6))}
EXAMPLES = [{**EXAMPLE, "input_ids": [5 + n] * 6, "labels": n % 2} for n in range(4)]
LEARNING_RATE, MOMENTUM = 0.5, 0.5


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self._rows[place]


class Reviews(Rows):
    def __init__(self) -> None:
        super().__init__(
            [
                {
                    "input_ids": tokens.tolist(),
                    "labels": int(label),
                    "position_ids": list(range(6)),  # BERT would share them between examples
                    "name": "a review",  # a column that the model does not take
                }
                for tokens, label in zip(TOKENS, LABELS, strict=True)
            ]
        )


def network(dropout: float = 0.1) -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def text(tokens: Sequence[int], length: int) -> dict[str, list[int]]:
    """Return the first tokens as an example of a language model; the others are padding."""
    kept = [place < length for place in range(len(tokens))]
    return {
        "input_ids": [
            int(token) if keeps else 0 for token, keeps in zip(tokens, kept, strict=True)
        ],
        "attention_mask": [int(keeps) for keeps in kept],
        "labels": [
            int(token) if keeps else -100 for token, keeps in zip(tokens, kept, strict=True)
        ],
    }


def language_model(seed: int = 0) -> Any:
    """Return a causal language model with an adapter, in which the rest is not trained."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        initializer_range=0.3,  # so that attention matters
    )
    adapter = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"]
    )
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter)


class Finetuning(NamedTuple):
    """A training of a language model on the texts of users.

    Attributes:
        network: makes the model, always with the same values.
        data: the examples.
        users: (examples,), the user of each.
        most: the number of a user's examples that are used at most.
        examples: of no user.
    """

    network: Callable[[], Any]
    data: Rows
    users: NDArray[np.int64]
    most: int | None
    examples: list[dict[str, Any]]

    def of_user(self, user: int) -> list[dict[str, Any]]:
        """Return the examples of a user that are used: those at equal distances."""
        mine = np.flatnonzero(user == self.users)
        most, count = self.most or len(mine), len(mine)
        if count > most:
            mine = [mine[-(-place * count // most) - 1] for place in range(1, most + 1)]
        return [self.data[int(place)] for place in mine]


_WRITERS = np.repeat(np.arange(40), [*[1, 2, 3, 2] * 9, 1, 60, 2, 17])
TRAININGS = {
    "reviews": Finetuning(lambda: network(0.0), Reviews(), USERS, None, EXAMPLES),
    "texts": Finetuning(
        language_model,
        Rows([text(TOKENS[n % 80], 2 + n % 5) for n in range(len(_WRITERS))]),
        _WRITERS,
        4,
        [text(TOKENS[n], 6 - n) for n in range(4)],
    ),
}


def loss_of_texts(module: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean over examples of the mean over each example's own labels."""
    words, labels = batch[0], batch[1][:, 1:]
    seen = module(input_ids=words).logits[:, :-1].movedim(-1, 1)
    each = functional.cross_entropy(seen, labels, reduction="none")
    return (each.sum(dim=1) / (labels != -100).sum(dim=1)).mean()


def _pairs(rows: Iterable[dict[str, Any]]) -> list[Any]:
    return [(torch.tensor(row["input_ids"]), torch.tensor(row["labels"])) for row in rows]


TEXTS = Task(
    language_model,
    _pairs(TRAININGS["texts"].data),
    _WRITERS,
    loss_of_texts,
    _pairs(TRAININGS["texts"].examples),
)
"""The texts for a loop without ``Trainer``."""


class Death(NamedTuple):
    """When a training is killed: at a callback, or in the forward pass, of the Trainer's step."""

    where: str
    step: int


class Life(transformers.TrainerCallback):
    """Seed each step by its number, and end the process at the appointed place."""

    def __init__(self, trainer: Any, generator: np.random.Generator, death: Death | None) -> None:
        self._trainer, self._generator, self._death = trainer, generator, death
        self.rates: list[float] = []
        trainer.model.register_forward_hook(lambda *_: self._die("forward", trainer.state))

    def _die(self, where: str, state: Any) -> None:
        if self._death == (where, state.global_step):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._die("step begin", state)
        step = self._trainer.engine.statement()["steps"]
        assert step == state.global_step
        self._generator.bit_generator.state = seeded(step).bit_generator.state

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._die("step end", state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._die("save", state)


def seeded(step: int) -> np.random.Generator:
    return np.random.default_rng([7, step])


def train(
    folder: Path, *, kind: str = "reviews", save_every: int = 1, death: Death | None = None
) -> None:
    """Train, or continue, until the appointed death; write the model if there is none."""
    what = TRAININGS[kind]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    generator, model = np.random.default_rng(), what.network()
    with Turnstile.open(folder / "budgets.db", partitions=2) as service:
        trainer = HuggingFaceTrainer(
            engine=PrivacyEngine(service, dataset="reviews", run="a"),
            target_epsilon=8.0,
            target_delta=1e-5,
            users=what.users,
            settings={
                "population": 40,
                "sampling_rate": RATE,
                "max_examples_per_user": what.most,
                "not_private_generator": generator,
            },
            model=model,
            examples=what.examples,
            train_dataset=what.data,
            optimizers=(
                torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM),
                None,
            ),
            args=transformers.TrainingArguments(
                output_dir=str(folder / "out"),
                num_train_epochs=3,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                save_strategy="steps",
                save_steps=save_every,
                save_total_limit=1,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
        )
        trainer.add_callback(Life(trainer, generator, death))
        trainer.train(resume_from_checkpoint=trainer.engine.statement()["steps"] > 0)
        np.savez(folder / "model.npz", **{str(n): p for n, p in enumerate(values(model))})


def values(model: Any) -> list[NDArray[np.float32]]:
    return [parameter.detach().numpy() for parameter in model.parameters()]


def by_hand(
    noise_multiplier: float, steps: Collection[int], kind: str = "reviews"
) -> NDArray[np.float64]:
    """Return the parameters after these steps: one example at a time, in float64."""
    what = TRAININGS[kind]
    model = what.network().double()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    velocity = np.zeros(sum(parameter.numel() for parameter in parameters))
    spacing = 2.0 ** (np.frexp(noise_multiplier)[1] - GRID_BITS)
    for step in steps:
        generator = seeded(step)
        total = np.zeros_like(velocity)
        drawn = poisson_sample(np.ones(40, dtype=np.bool_), RATE, not_private_generator=generator)
        for user in drawn:
            model.zero_grad()
            for example in what.of_user(int(user)):
                columns = {n: torch.tensor([v]) for n, v in example.items() if n != "name"}
                model(**columns).loss.backward()
            row = np.concatenate([parameter.grad.numpy().ravel() for parameter in parameters])
            total += row * min(1.0, 1.0 / np.linalg.norm(row))
        stddev = Fraction(noise_multiplier) / Fraction(spacing)
        noise = ExactNormals(generator).draw(stddev, len(total)) * spacing
        velocity = MOMENTUM * velocity + (total + noise) / (RATE * 40)
        moved = np.cumsum([0, *(parameter.numel() for parameter in parameters)])
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                part = velocity[moved[place] : moved[place + 1]]
                rate = LEARNING_RATE * (1.0 - step / STEPS)
                parameter -= rate * torch.from_numpy(part).view_as(parameter)
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
