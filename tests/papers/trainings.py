"""The demo's trainings beside a smaller clip norm for everybody, at the same guarantee.

At the smaller clip norm, the noise of the individual accounting pays for all steps of every user,
and no user is charged individually. For full batches it is the clip norm times
sqrt(worst_case_steps / steps), for samples the noise over ``worst_case_multiplier``. Both follow
from public numbers. Everything else is the same, including the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from streams import Turnstile
from streams.demo.images import Images
from streams.demo.sampled import SampledSettings, descend_sampled, train_sampled
from streams.demo.training import CLIP_NORM, Settings, descend

WAYS = ("worst case", "individual", "smaller clip norm")


def full_batches(images: Images, settings: Settings, seed: int) -> tuple[float, ...]:
    """Return the accuracy of each of the WAYS, all images in all steps."""
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset("images", measure="zcdp", budget=settings.rho, on_exhaustion="clip")
    smaller = CLIP_NORM * math.sqrt(settings.worst_case_steps / settings.steps)
    same, more = settings.noise_stddev, settings.noise_stddev_equal_steps
    plans = (
        {"noise_stddev": more},
        {"noise_stddev": same, "run": service.run("images", "training")},
        {"noise_stddev": same, "clip_norm": smaller},
    )
    traces = [
        descend(images, settings, noise=np.random.default_rng(seed), **plan) for plan in plans
    ]
    return tuple(float(trace.accuracy[-1]) for trace in traces)


def samples(images: Images, settings: SampledSettings, seed: int) -> tuple[float, ...]:
    """Return the accuracy of each of the WAYS, on Poisson samples (DP-SGD)."""
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "images", measure="renyi", epsilon=settings.epsilon, delta=settings.delta
    )
    run = service.run("images", "training")
    same, more = settings.noise_stddev, settings.noise_stddev_equal_steps
    smaller = replace(settings, clip_norm=same / settings.worst_case_multiplier)
    steps = {"steps": settings.steps, "seed": seed}
    return (
        float(descend_sampled(images, settings, noise_stddev=more, **steps)[-1]),
        float(train_sampled(run, images, settings, seed=seed).accuracy[-1]),
        float(descend_sampled(images, smaller, noise_stddev=same, **steps)[-1]),
    )
