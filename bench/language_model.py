"""Steps of a language model with LoRA beside Opacus's: CPU time, and memory beyond the start.

    python -m bench.language_model

Each training runs in a process of its own, in turns: Opacus with hooks, Opacus with ghost clipping,
and this library. All have the same model, texts, clip norm and loss: the mean over the texts, of
the mean over the tokens of each. Every text is of another user. Needs the extra huggingface, and
peft.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import opacus
import peft
import torch
import transformers
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch.nn import functional

from streams import Turnstile
from streams.trainers import PrivacyEngine

TEXTS, LENGTH, STEPS = 8, 64, 6
VOCABULARY, RANK = 4_000, 8
WAYS = ("hooks", "ghost", "ours")


def network() -> torch.nn.Module:
    """Return a model of 5.2 million weights, of which the adapters are trained."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=LENGTH,
    )
    adapter = peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, target_modules=["q_proj", "v_proj"], lora_dropout=0.0
    )
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter).train()


def made(way: str) -> tuple[Any, Any, Iterator[Any], Callable[[Any, Any], Any]]:
    """Return module, optimizer, batches and the loss of logits and labels."""
    module = network()
    texts = torch.randint(VOCABULARY, (TEXTS, LENGTH))
    criterion = torch.nn.CrossEntropyLoss()
    given: dict[str, Any] = {
        "module": module,
        "optimizer": torch.optim.AdamW(module.parameters(), lr=1e-3),
        "data_loader": torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(texts), batch_size=TEXTS
        ),
        "max_grad_norm": 0.1,
    }

    def mean_of_texts(logits: Any, labels: Any) -> Any:
        each = functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
        return each.mean(dim=1).mean()

    if way == "ours":
        engine = PrivacyEngine(Turnstile.in_memory(), dataset="texts", run="a")
        return *engine.make_private_with_epsilon(
            **given,
            users=np.arange(TEXTS),
            population=TEXTS,
            steps=STEPS,
            target_epsilon=8.0,
            target_delta=1e-5,
            max_physical_batch_size=TEXTS,
            examples_are_independent=True,
        ), mean_of_texts
    module, optimizer, *other = opacus.PrivacyEngine().make_private(
        **given, noise_multiplier=1.0, criterion=criterion, grad_sample_mode=way
    )
    batches = repeat((texts,))
    if way == "hooks":
        return module, optimizer, batches, mean_of_texts
    of_ghost: DPLossFastGradientClipping = other[0]

    def of_tokens(logits: Any, labels: Any) -> Any:
        shape = (len(labels), labels.shape[1], VOCABULARY)
        return of_ghost(logits.flatten(0, 1), labels.flatten(), shape=shape)

    return module, optimizer, batches, of_tokens


def measure(way: str) -> dict[str, float]:
    """Train, and return the median CPU time of a step in seconds, and the memory in MiB."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module, optimizer, batches, loss_of = made(way)
    begun, taken = _peak(), []
    batches = iter(batches)
    for _ in range(STEPS):
        began = time.process_time()
        (words,) = next(batches)
        optimizer.zero_grad()
        loss_of(module(input_ids=words).logits[:, :-1], words[:, 1:]).backward()
        optimizer.step()
        taken.append(time.process_time() - began)
    return {
        "seconds": float(np.median(taken[1:])),  # the first one also fills caches
        "memory": _peak() - begun,
        "weights": sum(parameter.numel() for parameter in module.parameters()),
        "trained": sum(p.numel() for p in module.parameters() if p.requires_grad),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> None:
    """Measure one way; without an argument all of them, in turns."""
    parser = argparse.ArgumentParser(prog="python -m bench.language_model")
    parser.add_argument("--way", choices=WAYS, help="measure this one here; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, "-m", "bench.language_model", "--way", way]
            found[way].append(json.loads(subprocess.check_output(command)))
    first = found["ours"][0]
    print(f"{first['weights']:,.0f} weights, {first['trained']:,.0f} trained; {TEXTS} texts of")
    print(f"{LENGTH} tokens; smallest and largest of {options.rounds} processes each")
    for way, runs in found.items():
        seconds, memory = ([run[name] for run in runs] for name in ("seconds", "memory"))
        print(
            f"{way}: {1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f} ms CPU time per step, "
            f"{min(memory):.0f} to {max(memory):.0f} MiB"
        )


if __name__ == "__main__":
    main()
