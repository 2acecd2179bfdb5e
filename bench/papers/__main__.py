"""Compute results of the papers again: a table in Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.papers import asoodeh, feldman, koskela, yu
from bench.papers.images import load_digits
from bench.papers.mnist import load_mnist
from bench.papers.norms import train
from bench.papers.rows import markdown


def main() -> None:
    """Run everything; minutes with MNIST, less with the digits."""
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mnist-t10k; default: digits")
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="of the table")
    options = parser.parse_args()
    images = load_mnist(options.data / "mnist-t10k") if options.data else load_digits()
    training = train(images)
    rows = [
        *feldman.training(images),
        *koskela.filtered_classes(images),
        *yu.rounding(training),
        *yu.losses(training),
        *yu.attacks(images),
        *yu.release(training),
        *yu.clipping(images),
        *asoodeh.published_epsilons(),
    ]
    table = markdown(rows)
    print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
