"""Compute results of the papers again: a table in Markdown, and plots."""

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
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="of table and plots")
    options = parser.parse_args()
    images = load_mnist(options.data / "mnist-t10k") if options.data else load_digits()
    training = train(images)
    rows = [
        *feldman.filters(options.out),
        *feldman.full_batch_epsilons(),
        *feldman.training(images),
        *koskela.gdp_against_renyi(options.out),
        *koskela.more_steps(options.out),
        *koskela.individual_epsilons(training, options.out),
        *koskela.filtered_classes(images, options.out),
        *yu.rounding(training, options.out),
        *yu.groups(training, images, options.out),
        *yu.attacks(training, images, options.out),
        *yu.release(training, options.out),
        *yu.clipping(images),
        *asoodeh.curves(options.out),
        *asoodeh.error_and_time(),
    ]
    table = markdown(rows)
    print(table)
    (options.out / "table.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
