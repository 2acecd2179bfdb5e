"""Yu et al.: what rounding norms saves, the private release of individual epsilons, training with
individual clip norms, and membership inference."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from accounting import NormGrid, ReportAccountant, zcdp_budget
from accounting.release import ExactNoise
from bench.papers.images import CLASSES, Images
from bench.papers.norms import Training
from bench.papers.norms import train as train_network
from bench.papers.rows import Row, with_error
from bench.papers.sampled import Plan, mean_and_error, noise_of, train

_STATISTICS = Path(__file__).parents[2] / "examples" / "private_statistics.py"
_DELTA = 1e-5
_FRACTIONS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
_RELEASE_EPSILON = 0.1
_YU_USERS = 60_000
_TRAINING_EPSILON = 2.4
_TRIALS = 4
_EPOCHS = 6
_ATTACKED_TRAININGS = 5
_DRAWS = 10


def losses(training: Training) -> list[Row]:
    """Fig. 5: epsilon beside a user's final loss."""
    epsilons, logs = _epsilons(training), np.log(np.maximum(training.losses, 1e-12))
    return [
        Row(
            f"Y Fig. 5 ({training.data}, {len(epsilons):,} users)",
            "Pearson's r of ε and the logarithm of the final loss",
            "> 0.9",
            f"{float(np.corrcoef(epsilons, logs)[0, 1]):.2f}",
        )
    ]


def attacks(images: Images) -> list[Row]:
    """Appendix D: how often a threshold on the loss tells a class's members from other images."""
    found = [_attack(images, seed) for seed in range(_ATTACKED_TRAININGS)]
    what = "success of the attack, average of the classes"
    return [Row(f"Y App. D ({images.name})", what, "about 50 %", with_error(found))]


def _attack(images: Images, seed: int) -> float:
    """Train on a draw of as many images; return the mean success over classes in percent."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(images.train) + len(images.test))
    rows = np.concatenate([images.train, images.test])[order]
    labels = np.concatenate([images.train_labels, images.test_labels])[order]
    users = len(images.train)
    drawn = Images(images.name, rows[:users], labels[:users], rows[users:], labels[users:])
    network = train_network(drawn, followed=0, seed=seed)
    by_class = [
        threshold_success(
            network.losses[drawn.train_labels == one],
            network.test_losses[drawn.test_labels == one],
            random,
        )
        for one in range(CLASSES)
    ]
    return 100.0 * float(np.mean(by_class))


def threshold_success(
    members: np.ndarray, others: np.ndarray, random: np.random.Generator
) -> float:
    """Return how often the attack is right on as many members as others, in the mean of draws.

    The threshold is the best of one half of the losses. The attack is on the other half.
    """
    half = min(len(members), len(others)) // 2
    right = []
    for _ in range(_DRAWS):
        drawn = [random.permutation(losses)[: 2 * half] for losses in (members, others)]
        known, attacked = np.reshape(drawn, (2, 2, half)).swapaxes(0, 1)
        thresholds = known.ravel()
        below = (known[:, :, np.newaxis] <= thresholds).mean(axis=1)
        threshold = thresholds[(below[0] - below[1]).argmax()]
        caught, falsely = (attacked <= threshold).mean(axis=1)
        right.append((1.0 + caught - falsely) / 2.0)
    return float(np.mean(right))


def rounding(training: Training) -> list[Row]:
    """Table 1: divergences computed with and without rounding norms to a hundredth of C."""
    users, steps = training.norms.shape
    source = f"Y Table 1 ({training.data}, {users:,} users, {steps:,} steps)"
    levels, distinct = NormGrid(1.0).levels, len(np.unique(training.norms))
    return [
        Row(source, "divergences with rounding", "1e2", f"{levels}"),
        Row(source, "divergences without rounding", "1e7", f"{distinct:.1e}"),
    ]


def release(training: Training) -> list[Row]:
    """Table 2: mean and quantiles of epsilon under (0.1, 1e-5)-DP, half of rho for each."""
    grid = NormGrid(float(training.norms.max()))
    accountant = ReportAccountant(training.mechanism, grid)
    counts = grid.counts(training.norms)
    values = np.asarray(accountant.epsilon(counts, _DELTA, method="renyi"))
    random = np.random.default_rng(2)
    populations = {
        f"{len(values):,} users": values,
        f"{_YU_USERS:,} users drawn from them": random.choice(values, _YU_USERS),
    }
    upper = float(accountant.epsilon(_every_step_at_the_clip_norm(training, grid), _DELTA, "renyi"))
    half = zcdp_budget(_RELEASE_EPSILON, _DELTA) / 2.0
    noise, statistics = ExactNoise(random), runpy.run_path(str(_STATISTICS))
    rows = []
    for name, population in populations.items():
        mean = statistics["release_mean"](population, upper, half, noise)
        quantiles = statistics["release_quantiles"](population, _FRACTIONS, upper, half, noise)
        released = np.array([mean.estimate, *quantiles])
        true = np.array([population.mean(), *np.quantile(population, _FRACTIONS)])
        errors = np.abs(released / true - 1.0)
        what = f"average error, released at ε = {_RELEASE_EPSILON:g}, δ = 1e-5"
        source = f"Y Table 2 ({training.data}, {name})"
        rows.append(Row(source, what, "1.13 %", f"{errors.mean():.2%}"))
    return rows


def clipping(images: Images) -> list[Row]:
    """Table 3: individual clip norms against one for all, at the same noise and steps.

    C is about the median gradient at the beginning, as in the paper. Nobody is left out: the noise
    is such that C itself is admitted in all steps.
    """
    is_mnist = images.name == "MNIST"
    clip_norm, rate = 1.0, 0.02 if is_mnist else 0.1
    epoch = round(1.0 / rate)
    steps = _EPOCHS * epoch
    noise = noise_of(_TRAINING_EPSILON, steps, rate, clip_norm)
    ways = {
        "one clip norm for all": (None, "97.26 ± 0.11 %"),
        "individual, from a full pass in each epoch": (epoch, "97.17 ± 0.12 %"),
    }
    return [
        Row(
            f"Y Table 3 ({images.name}, {steps} steps)",
            f"accuracy at ε = {_TRAINING_EPSILON:g}, {words}",
            published,
            mean_and_error(
                [
                    train(
                        images,
                        Plan(_TRAINING_EPSILON, clip_norm, noise, rate, 4.0, steps, pass_every),
                        seed,
                    )
                    for seed in range(_TRIALS)
                ]
            ),
        )
        for words, (pass_every, published) in ways.items()
    ]


def _epsilons(training: Training) -> np.ndarray:
    grid = NormGrid(float(training.norms.max()))
    accountant = ReportAccountant(training.mechanism, grid)
    return np.asarray(accountant.epsilon(grid.counts(training.norms), _DELTA, method="renyi"))


def _every_step_at_the_clip_norm(training: Training, grid: NormGrid) -> np.ndarray:
    return np.array([0] * (grid.levels - 1) + [training.steps])
