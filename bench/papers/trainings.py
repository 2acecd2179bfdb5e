"""Trainings under three accountings at the same guarantee: ``streams.demo.training.WAYS``.

At the smaller clip norm, the noise of individual accounting pays for all steps of every user, and
no user is charged individually. It follows from public numbers. Everything else is the same,
including the learning rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.papers.dpsgd import Sampled, train_individually, train_worst_case
from streams import Turnstile
from streams.demo.training import DIGITS, WAYS, Images, TrainingSettings, train_all_ways

MNIST = replace(DIGITS, epsilon=1.0, population=8_000, full_steps=30, steps=75, learning_rate=20.0)


def full_batches(images: Images, settings: TrainingSettings, seeds: int) -> np.ndarray:
    """Return the accuracy of each of the WAYS, all images in all steps, (seeds, 3)."""
    service = Turnstile.in_memory(partitions=1)
    datasets = [f"images-{seed}" for seed in range(seeds)]
    result = train_all_ways(service, datasets, images, settings)
    return np.column_stack([result.final(way) for way in WAYS])


def samples(images: Images, settings: Sampled, seeds: int) -> np.ndarray:
    """Return the accuracy of each of the WAYS, on Poisson samples (DP-SGD), (seeds, 3)."""
    return np.array([_sampled(images, settings, seed) for seed in range(1, seeds + 1)])


def _sampled(images: Images, settings: Sampled, seed: int) -> list[float]:
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "images", measure="renyi", epsilon=settings.epsilon, delta=settings.delta
    )
    run = service.run("images", "training")
    same, multiplier = settings.noise_stddev, settings.worst_case_multiplier
    baselines = ((settings.clip_norm, multiplier * settings.clip_norm), (same / multiplier, same))
    worst, smaller = (
        train_worst_case(images, settings, clip_norm=clip_norm, noise_stddev=noise, seed=seed)
        for clip_norm, noise in baselines
    )
    return [worst, train_individually(run, images, settings, seed=seed), smaller]
