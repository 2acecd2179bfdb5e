"""Fine-tune a language model with LoRA under a budget per user. The training survives ``kill -9``.

    python train_language_model.py    # needs the extra huggingface and peft; run it again after
                                      # a crash

Users have written very different numbers of texts: at most MOST_TEXTS of each are used, and the
gradient of a user's texts is clipped as a whole. ``budgets.db`` has every charge, and ``model``
what the Trainer saves. Both are in the current folder. Keep them.

To adapt it, replace ``texts_of_users``, ``example_of`` and ``network``. All texts have one length,
with padding on the right: a length that follows from other users' texts would reveal them.
"""

from __future__ import annotations

import string

import numpy as np
import peft
import torch
import transformers

from streams import Turnstile
from streams.trainers import PrivacyEngine
from streams.trainers.huggingface import HuggingFaceTrainer

POPULATION = 1_000  # a public number of users; their true number is not public
BATCH = 100  # users in a step, expected if there are POPULATION users
STEPS = 60
MOST_TEXTS = 4  # of a user
LENGTH = 24  # characters of a text
CHARACTERS = string.ascii_lowercase + " ."
WORDS = ("the cat", "a dog", "my bird"), ("sees", "likes", "hears"), ("the sea.", "a tree.", "me.")


def texts_of_users(first: int, count: int) -> tuple[np.ndarray, list[str]]:
    """Return the user of each text, and the texts: few of most users, very many of some."""
    random = np.random.default_rng(first)
    users = np.repeat(np.arange(first, first + count), random.zipf(2.0, size=count).clip(max=500))
    return users, [" ".join(words[random.integers(3)] for words in WORDS) for _ in users]


def example_of(text: str) -> dict[str, list[int]]:
    """Return a text as the model takes it. Padding has no label."""
    tokens = [CHARACTERS.index(one) for one in text[:LENGTH]]
    padding = LENGTH - len(tokens)
    return {
        "input_ids": tokens + [0] * padding,
        "attention_mask": [1] * len(tokens) + [0] * padding,
        "labels": tokens + [-100] * padding,
    }


def network() -> torch.nn.Module:
    """Return a small model with adapters; load yours with ``AutoModelForCausalLM`` instead."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    adapter = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        target_modules="all-linear",
        modules_to_save=["lm_head"],  # this model was never trained, so its last layer is
    )
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter)


def main() -> None:
    """Train, or continue a training that was killed."""
    users, texts = texts_of_users(0, 990)
    _, others = texts_of_users(2_000, 100)  # users outside the dataset
    with Turnstile.open("budgets.db") as turnstile:
        trainer = HuggingFaceTrainer(
            model=network(),
            train_dataset=[example_of(text) for text in texts],
            eval_dataset=[example_of(text) for text in others[:200]],
            examples=[example_of(text) for text in ("a cat.", "my dog likes me.", "the sea", "i")],
            engine=PrivacyEngine(turnstile, dataset="texts", run="night-7"),
            users=users,
            target_epsilon=8.0,
            target_delta=1e-5,
            settings={
                "population": POPULATION,
                "sampling_rate": BATCH / POPULATION,
                "max_examples_per_user": MOST_TEXTS,
            },
            args=transformers.TrainingArguments(
                output_dir="model",
                max_steps=STEPS,
                per_device_train_batch_size=64,  # texts that are computed at once
                max_grad_norm=1.0,  # of a user's texts together
                learning_rate=0.02,
                save_steps=1,  # a crash loses at most one step
                save_total_limit=1,
                label_names=["labels"],
                report_to=[],
                use_cpu=True,
            ),
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train(resume_from_checkpoint=trainer.engine.statement()["steps"] > 0)
        print(
            f"loss of other users' texts: {before:.2f}, now {trainer.evaluate()['eval_loss']:.2f}"
        )
        print(trainer.engine.statement()["text"])


if __name__ == "__main__":
    main()
