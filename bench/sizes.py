"""``python -m bench.sizes``: time and memory of a private step in models of the size people train.

Each row of the table is a process of its own, and processes take turns: this library, Opacus with
hooks (``grad_sample_mode="hooks"``), and Opacus with ghost clipping (``"ghost"``). All make the
same steps: full batches, one user per example, noise of the clip norm.

Time is CPU time, the median over the steps but the first one. Memory is the largest resident size
of the process during the steps, over that before them.

PyTorch and Opacus are needed: ``make bench-torch``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from opacus import PrivacyEngine as OpacusEngine
from torch import nn
from torch.nn import functional

from streams import Turnstile
from streams.trainers import PrivacyEngine

WORDS, WIDTH, LAYERS, HEADS, RANK = 1_000, 256, 6, 4, 8
METHODS = ("hooks", "ghost", "ours")


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of two matrices of low rank (LoRA)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.base(rows) + self.up(self.down(rows))


class Block(nn.Module):
    """Attention to earlier words, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        seen = self.before(rows)
        heads = [
            layer(seen).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        found = functional.scaled_dot_product_attention(*heads, is_causal=True)
        rows = rows + self.out(found.transpose(1, 2).flatten(2))
        return rows + self.narrow(functional.gelu(self.wide(self.between(rows))))


class Language(nn.Module):
    """A causal language model of 5.25 million weights; with adapters only these are trained."""

    def __init__(self, *, with_adapters: bool = False, length: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if with_adapters:
            self.requires_grad_(False)
            for block in self.blocks:
                block.query, block.value = Adapted(block.query), Adapted(block.value)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device).repeat(len(words), 1)
        rows = self.words(words) + self.places(places)
        for block in self.blocks:
            rows = block(rows)
        return self.last(self.norm(rows))


class LossOfWords(nn.Module):
    """The mean over an example's words, then over examples, as Opacus's ghost clipping takes it."""

    reduction = "mean"

    def forward(self, logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        each = functional.cross_entropy(logits.transpose(1, 2), words, reduction="none")
        return each.mean() if self.reduction == "mean" else each.mean(dim=1)


class Size(NamedTuple):
    """A model, and the number of rows in a step."""

    words: str
    network: Callable[[], nn.Module]
    rows: int
    length: int

    def data(self, device: str) -> torch.utils.data.TensorDataset:
        torch.manual_seed(1)
        words = torch.randint(0, WORDS, (self.rows, self.length + 1)).to(device)
        return torch.utils.data.TensorDataset(words[:, :-1], words[:, 1:])


SIZES = {
    "all": Size("transformer, all weights", Language, 8, 64),
    "adapters": Size(
        f"transformer, adapters of rank {RANK}", lambda: Language(with_adapters=True), 8, 64
    ),
}


def step_of(size: Size, method: str, device: str, steps: int) -> Callable[[], None]:
    """Make a training, and return a function that makes its next step."""
    module = size.network().to(device)
    trained = [one for one in module.parameters() if one.requires_grad]
    optimizer: Any = torch.optim.SGD(trained, lr=1e-3)
    loader: Any = torch.utils.data.DataLoader(size.data(device), batch_size=size.rows)
    arguments: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    criterion: Any = LossOfWords()
    if method == "ours":
        service = Turnstile.in_memory(partitions=1)
        service.create_dataset("d", measure="gdp", budget=300.0)
        private = PrivacyEngine(service, dataset="d", run="r").make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            population=size.rows,
            max_physical_batch_size=size.rows,
            steps=steps,
            examples_are_independent=True,
            **arguments,
        )
        module, optimizer, loader = private
    else:
        with_criterion = {"criterion": criterion} if method == "ghost" else {}
        module, optimizer, *made = OpacusEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            poisson_sampling=False,
            grad_sample_mode=method,
            **with_criterion,
            **arguments,
        )
        criterion = made[0] if method == "ghost" else criterion
    batches = (batch for _ in range(steps) for batch in loader)

    def step() -> None:
        words, following = next(batches)
        optimizer.zero_grad()
        criterion(module(words), following).backward()
        optimizer.step()

    return step


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def largest_resident() -> int:
    """Return the largest of these since it was reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def measure(size: Size, method: str, steps: int) -> dict[str, float]:
    """Make steps in this process; return the CPU seconds of one, and MiB over the start."""
    step = step_of(size, method, "cpu", steps)
    begun, seconds = resident(), []
    Path("/proc/self/clear_refs").write_text("5")  # resets the largest resident size
    for _ in range(steps):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    mebibytes = (largest_resident() - begun) / 2**20
    return {"seconds": float(np.median(seconds[1:])), "mebibytes": mebibytes}


def main() -> None:
    """Measure every size with every method in turns, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)  # a size and a method
    parser.add_argument("--out", type=Path, default=Path("out/sizes.md"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.alone:
        name, method = options.alone
        print(json.dumps(measure(SIZES[name], method, options.steps)))
        return
    names = [options.only] if options.only else list(SIZES)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name in names:
            for method in METHODS:
                command = [sys.executable, "-m", "bench.sizes", "--alone", name, method]
                command += ["--steps", str(options.steps)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                told = subprocess.run(command, env=environment, capture_output=True, check=True)
                found.setdefault((name, method), []).append(json.loads(told.stdout))
                print(name, method, found[name, method][-1], file=sys.stderr, flush=True)
    text = [
        "| model | | Opacus, hooks | Opacus, ghost | ours | ours / ghost |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        weights = sum(
            one.numel() for one in SIZES[name].network().parameters() if one.requires_grad
        )
        words = f"{SIZES[name].words}, {weights:,} trained"
        for what, unit in (("seconds", "CPU s per step"), ("mebibytes", "peak MiB over start")):
            values = [
                float(np.median([one[what] for one in found[name, method]])) for method in METHODS
            ]
            digits = max(0, 2 - math.floor(math.log10(max(values))))
            cells = [f"{value:.{digits}f}" for value in values]
            text.append(f"| {words} | {unit} | {' | '.join(cells)} | {values[2] / values[1]:.2f} |")
            words = ""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
