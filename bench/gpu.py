"""``python -m bench.gpu``: gradients on a GPU beside the CPU, and steps beside Opacus's.

1. Sums of the same stored rows and gradients are computed on the CPU and on the device. They must
   be equal, bit for bit, norms included.
2. Steps of this library and of Opacus's ghost clipping take turns on the device, in the models of
   ``bench.sizes`` and in a larger one: milliseconds per step and peak memory.

Without a GPU it says so, and exits with status 0. ``--device cpu`` runs the same code on the CPU.
It takes less than ten minutes: ``make gpu``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from functools import partial

import numpy as np
import torch

from bench.sizes import SIZES, WORDS, Language, Size, largest_resident, step_of
from streams.trainers.device_sums import DeviceSum, Factored, Part, Written

_COUNTS = np.array([1, 3, 2, 1, 8, 1])


def parts_on(device: str, rows: int, dtype: torch.dtype) -> list[Part]:
    """Return the same gradients of six users on any device: of linear layers with one row and with
    many, an embedding, a weight that both kinds share, and a written part.
    """
    generator = torch.Generator().manual_seed(rows)
    examples = int(_COUNTS.sum())

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    factored = [
        Factored(normal(examples, t, p), normal(examples, t, q), _COUNTS, (p, q))
        for t, p, q in ((1, 300, 200), (rows, 256, 1024), (rows, 8, 256), (rows, 300, 1))
    ]
    places = torch.randint(0, WORDS, (examples, rows), generator=generator).to(device)
    words = Factored(None, normal(examples, rows, 64), _COUNTS, (WORDS, 64), places)
    left, right = normal(examples, rows, WORDS), normal(examples, 2 * rows, 64)
    tied = Factored(left, right, _COUNTS, (WORDS, 64), places)
    users = len(_COUNTS)
    return [
        *factored,
        words,
        tied,
        Written(normal(users, 50)),
        Written(normal(users, 70_000) * 0.1),
    ]


def sum_on(device: str, rows: int, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and the norms of these gradients."""
    made = DeviceSum(-23, clip_norm=100.0, expected=6.0)
    norms = made.add(parts_on(device, rows, dtype), np.linspace(20.0, 100.0, len(_COUNTS)))
    return made.total()[1], norms


def compare(device: str) -> bool:
    """Print whether sums and norms on the device are those on the CPU; return it."""
    is_equal = True
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for rows in (1, 16, 128):
            (sums, norms), (of_cpu, norms_of_cpu) = (
                sum_on(one, rows, dtype) for one in (device, "cpu")
            )
            same = np.array_equal(sums, of_cpu) and np.array_equal(norms, norms_of_cpu)
            is_equal &= same
            print(f"{dtype}, {rows} rows: {'equal' if same else 'DIFFERENT'}, {len(sums):,} sums")
    return is_equal


def steps_on(device: str, steps: int, *, is_small: bool) -> None:
    """Print time and memory of steps, in turns."""
    sizes = dict(SIZES)
    if not is_small:
        sizes["long"] = Size(
            "transformer, all weights, 512 words", partial(Language, length=512), 32, 512
        )
    is_cuda = device.startswith("cuda")
    print("| model | method | ms per step | peak MiB |\n| --- | --- | --- | --- |")
    for size in sizes.values():
        for method in ("ghost", "ours"):
            if is_cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            step, taken = step_of(size, method, device, steps), []
            for _ in range(steps):
                start = time.perf_counter()
                step()
                if is_cuda:
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
            peak = torch.cuda.max_memory_allocated() if is_cuda else largest_resident()
            spent = 1e3 * float(np.median(taken[1:]))
            print(f"| {size.words} | {method} | {spent:.1f} | {peak / 2**20:.0f} |", flush=True)


def main() -> None:
    """Compare sums and steps, where there is a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("Not run: PyTorch finds no GPU on this machine.")
        return
    print(f"PyTorch {torch.__version__}, device {options.device}")
    is_equal = compare(options.device)
    steps_on(options.device, options.steps, is_small=options.device == "cpu")
    if not is_equal:
        sys.exit("sums on the device are not those on the CPU")


if __name__ == "__main__":
    main()
