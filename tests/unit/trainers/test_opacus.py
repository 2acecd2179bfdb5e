"""Steps beside Opacus's own, with the same batches and the same noise: `make test-torch`.

If both make the same step, the accuracies of trainings differ by their coins and noise alone: by
nothing in expectation, where the noise has the same standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.sdk.roster_steps import poisson_sample

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
opacus = pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
PrivacyEngine = pytest.importorskip("streams.trainers").PrivacyEngine
adds_noise = pytest.importorskip("bench.training").adds_noise

USERS, STEPS, RATE, CLIP_NORM = 400, 12, 0.125, 0.7
IMAGES = torch.tensor(np.random.default_rng(0).normal(size=(USERS, 1, 8, 8)).astype(np.float32))
LABELS = torch.arange(USERS) % 10
DATASET = torch.utils.data.TensorDataset(IMAGES, LABELS)
LOSS = torch.nn.functional.cross_entropy


def linear() -> Any:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, bias=False))


def convolutional() -> Any:
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU()),
        *(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 32)),
        *(torch.nn.ReLU(), torch.nn.Linear(32, 10)),
    )


def made(build: Callable[[], Any]) -> dict[str, Any]:
    """Return a network with weights that are always the same, its optimizer, and a loader."""
    torch.manual_seed(3)
    module = build()
    return {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01),
        "data_loader": torch.utils.data.DataLoader(DATASET, batch_size=int(RATE * USERS)),
        "max_grad_norm": CLIP_NORM,
    }


def flat(module: Any) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def seeded(step: int) -> np.random.Generator:
    # With 2 of 10 first numbers, a pooling or ReLU is so near a tie that rounding decides it.
    return np.random.default_rng([8, step])


@pytest.mark.slow
@pytest.mark.parametrize("build", [linear, convolutional])
def test_steps_equal_those_of_opacus_up_to_rounding(build: Callable[[], Any]) -> None:
    generator = np.random.default_rng()
    with Turnstile.in_memory(partitions=1) as service:
        engine = PrivacyEngine(service, dataset="faces", run="a")
        module, optimizer, loader = engine.make_private_with_epsilon(
            population=USERS,
            **made(build),
            target_epsilon=3.0,
            target_delta=1e-5,
            steps=STEPS,
            examples_are_independent=True,
            not_private_generator=generator,
        )
        noise_stddev = engine.statement()["noise_multiplier"] * CLIP_NORM
        theirs, their_optimizer, _ = opacus.PrivacyEngine().make_private(
            **made(build),
            noise_multiplier=0.0,  # the hook adds it
        )
        begun, batches = flat(module), iter(loader)
        for step in range(STEPS):
            generator.bit_generator.state = seeded(step).bit_generator.state
            images, labels = next(batches)
            optimizer.zero_grad()
            LOSS(module(images), labels).backward()
            optimizer.step()

            coins, everybody = seeded(step), np.ones(USERS, dtype=np.bool_)
            drawn = poisson_sample(everybody, RATE, not_private_generator=coins)
            their_optimizer.attach_step_hook(adds_noise(coins, noise_stddev))
            their_optimizer.zero_grad()
            LOSS(theirs(IMAGES[drawn]), LABELS[drawn]).backward()
            their_optimizer.step()
            assert flat(module) == pytest.approx(flat(theirs), rel=0.0, abs=2e-5)
    assert np.abs(flat(module) - begun).mean() > 0.01
