"""What the training tables compare is charged as they say."""

from __future__ import annotations

import pytest

from bench.papers.images import load_digits
from bench.papers.sampled import Plan, noise_of, train, worst_case_steps

RATE, CLIP_NORM = 0.1, 0.8


def test_the_worst_case_makes_as_many_steps_as_its_noise_is_for() -> None:
    for epsilon, steps in ((0.3, 100), (1.0, 30)):
        noise = noise_of(epsilon, steps, RATE, CLIP_NORM)
        assert worst_case_steps(epsilon, noise, RATE, CLIP_NORM) == steps
        assert worst_case_steps(epsilon, noise, RATE, 1.5 * CLIP_NORM) < steps


@pytest.mark.slow
def test_every_way_to_set_levels_learns() -> None:
    images = load_digits()
    noise = noise_of(8.0, 30, RATE, CLIP_NORM)
    for pass_every, looks in ((None, 1), (10, 1), (0, 3)):
        plan = Plan(8.0, CLIP_NORM, noise, RATE, 6.0, 30, pass_every, looks)
        assert train(images, plan, seed=1) > 0.8
