"""Koskela, Tobaben and Honkela: Gaussian DP against Renyi DP, individual epsilons by PLD, and what
a filter does to groups of users."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accounting import (
    NormGrid,
    ReportAccountant,
    gdp_budget,
    gdp_to_epsilon,
    renyi_to_epsilon,
)
from accounting.release.clipping import clip_factors, norm_products, row_norms
from bench.papers.images import CLASSES, Images
from bench.papers.norms import Training, class_means, cross_entropy
from bench.papers.rows import BLUE, GREY, ORANGE, Row, figure, save, with_error
from streams import Turnstile
from streams.trainers.loop import rounded_rows, row_products, softmax

_NOISE_MULTIPLIER = 100.0
_DELTA = 1e-5
_STEPS = np.arange(1, 601)
_ORDERS = 1.0 + np.geomspace(1e-2, 1e3, 2000)
_HISTOGRAM_DELTA = 1e-6
_FIG4_STEPS = (200, 420, 1000, 2000)
_FIG5_EPSILONS = (0.5, 1.0, 2.0)
_MOST_STEPS = 4_000
_EPSILON, _CLIP_NORM, _LEARNING_RATE = 1.0, 0.7, 20.0
_FULL_STEPS = 50
"""The steps that the budget pays for at the clip norm. The filter makes as many again."""
_TRIALS = 5


def gdp_against_renyi(out: Path) -> list[Row]:
    """App. C.4 and Fig. 3: private gradient descent with noise 100 and norms of 1."""
    rho = _STEPS / (2.0 * _NOISE_MULTIPLIER**2)
    renyi = renyi_to_epsilon(_ORDERS, rho[:, np.newaxis] * _ORDERS, _DELTA)
    gdp = gdp_to_epsilon(np.sqrt(2.0 * rho), _DELTA)
    simple = rho + 2.0 * np.sqrt(-rho * np.log(_DELTA))  # Mironov's bound at its best order
    at_420 = renyi[_STEPS == 420][0]
    drawing = figure()
    axes = drawing.subplots()
    for epsilon, color, name in (
        (simple, GREY, "zCDP, simple"),
        (renyi, ORANGE, "Rényi"),
        (gdp, BLUE, "Gaussian DP"),
    ):
        axes.plot(_STEPS, epsilon, color=color, label=name)
    axes.set(xlabel="steps", ylabel=f"ε at δ = {_DELTA:g}", xlim=(0, 600), ylim=(0, None))
    save(drawing, out / "koskela-fig3.png")
    source = "K App. C.4, Fig. 3"
    return [
        Row(source, "ε of 420 steps by Rényi DP", "0.8156", f"{at_420:.4f}"),
        Row(source, "GDP steps for that ε", "495", _steps_within(gdp, at_420)),
        Row(source, "GDP steps for ε = 0.8", "478", _steps_within(gdp, 0.8)),
        Row(source, "Rényi steps for ε = 0.8", "405", _steps_within(renyi, 0.8)),
        Row(source, "simple zCDP steps for ε = 0.8", "268", _steps_within(simple, 0.8)),
    ]


def more_steps(out: Path) -> list[Row]:
    """Figs. 4 and 5: other numbers of steps, and the most steps within other epsilons."""
    steps = np.arange(1, _MOST_STEPS + 1)
    rho = steps / (2.0 * _NOISE_MULTIPLIER**2)
    by_renyi = renyi_to_epsilon(_ORDERS, rho[:, np.newaxis] * _ORDERS, _DELTA)
    by_gdp = gdp_to_epsilon(np.sqrt(2.0 * rho), _DELTA)
    drawing = figure(columns=2)
    fewer, most = drawing.subplots(1, 2)
    deltas = np.geomspace(1e-8, 1e-2, 40)
    for number in _FIG4_STEPS:
        one = rho[number - 1]
        renyi = [float(renyi_to_epsilon(_ORDERS, one * _ORDERS, delta)) for delta in deltas]
        gdp = [float(gdp_to_epsilon(np.sqrt(2.0 * one), delta)) for delta in deltas]
        fewer.plot(renyi, deltas, color=ORANGE)
        fewer.plot(gdp, deltas, color=BLUE)
    fewer.set(xlabel="ε", ylabel="δ", yscale="log", title=f"{_FIG4_STEPS} steps")
    for epsilon, color, name in ((by_renyi, ORANGE, "Rényi"), (by_gdp, BLUE, "Gaussian DP")):
        most.plot(epsilon, steps, color=color, label=name)
    most.set(xlabel=f"ε at δ = {_DELTA:g}", ylabel="most steps")
    save(drawing, out / "koskela-fig4-5.png")
    rows = [
        Row(
            "K Fig. 4",
            f"ε of {number} steps by Rényi DP, by Gaussian DP",
            "a plot",
            f"{by_renyi[number - 1]:.3f}, {by_gdp[number - 1]:.3f}",
        )
        for number in _FIG4_STEPS
    ]
    for limit in _FIG5_EPSILONS:
        renyi_steps, gdp_steps = (int(steps[e <= limit].max()) for e in (by_renyi, by_gdp))
        rows.append(
            Row(
                "K Fig. 5",
                f"steps for ε = {limit:g} by Rényi DP, by Gaussian DP",
                "a plot",
                f"{renyi_steps:,}, {gdp_steps:,} ({gdp_steps / renyi_steps - 1.0:.0%} more)",
            )
        )
    return rows


def individual_epsilons(training: Training, out: Path) -> list[Row]:
    """Fig. 1: one user's privacy curve, and histograms of epsilon."""
    grid = NormGrid(float(training.norms.max()))
    accountant = ReportAccountant(training.mechanism, grid)
    counts = grid.counts(training.norms[:1000])
    by_pld = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="pld")
    by_renyi = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="renyi")
    by_saddle_point = accountant.epsilon(counts, _HISTOGRAM_DELTA, method="saddlepoint")

    median_user = int(np.argsort(by_pld)[len(by_pld) // 2])
    deltas = np.geomspace(1e-10, 1e-1, 60)
    drawing = figure(columns=2)
    curve, histogram = drawing.subplots(1, 2)
    one = counts[median_user]
    exact = [float(accountant.epsilon(one, delta)) for delta in deltas]
    curve.plot(exact, deltas, color=BLUE, label="PLD")
    curve.set(xlabel="ε", ylabel="δ", yscale="log", title="the median user")
    edges = np.linspace(0.0, float(by_renyi.max()), 50)
    histogram.hist(by_pld, edges, color=BLUE, alpha=0.7, label="PLD")
    histogram.hist(by_renyi, edges, color=ORANGE, alpha=0.6, label="Rényi")
    histogram.set(xlabel=f"ε at δ = {_HISTOGRAM_DELTA:g}", ylabel="users")
    save(drawing, out / "koskela-fig1.png")

    source = f"K Fig. 1 ({training.data})"
    width = by_pld.bounds.upper - by_pld.bounds.lower
    inside = np.mean((by_saddle_point >= by_pld.bounds.lower) & (by_pld <= by_renyi))
    quantiles = "/".join(f"{q:.3f}" for q in np.quantile(by_pld, [0.1, 0.5, 0.9]))
    renyi_quantiles = "/".join(f"{q:.3f}" for q in np.quantile(by_renyi, [0.1, 0.5, 0.9]))
    return [
        Row(source, "ε by PLD at quantiles 0.1/0.5/0.9 of 1,000 users", "a histogram", quantiles),
        Row(source, "the same by Rényi DP", "a histogram, larger", renyi_quantiles),
        Row(source, "widest interval of the PLD bounds", "", f"{width.max():.2g}"),
        Row(source, "users whose bounds by PLD, saddle point and Rényi agree", "", f"{inside:.1%}"),
    ]


def filtered_classes(images: Images, out: Path) -> list[Row]:
    """Section 6 and Fig. 2: groups when the worst case would stop, and after as many steps more.

    The paper's groups are patients with and without a diagnosis; here they are classes of images.
    """
    found = np.array([_filter(images, seed) for seed in range(_TRIALS)])
    epsilon, loss, accuracy = found.transpose(2, 0, 1, 3)  # (trials, before and after, classes)
    drawing = figure(columns=2)
    names = f"average ε at δ = {_DELTA:g}", "test loss"
    for axes, name, values in zip(drawing.subplots(1, 2), names, (epsilon, loss), strict=True):
        for place, (time, color) in enumerate((("before", GREY), ("after", BLUE))):
            where = np.arange(CLASSES) + 0.4 * place
            axes.bar(where, values[:, place].mean(axis=0), 0.4, color=color, label=time)
        axes.set(xlabel="class", ylabel=name, xticks=range(CLASSES))
    save(drawing, out / "koskela-fig2.png")

    trials, shares = np.arange(_TRIALS), np.bincount(images.test_labels) / len(images.test)
    private, exposed = epsilon[:, 0].argmin(axis=1), epsilon[:, 0].argmax(axis=1)
    pairs = zip(epsilon[:, 0], loss[:, 0], strict=True)
    cells = (
        (
            "Pearson's r of a class's average ε and its test loss, before filtering",
            "positive",
            with_error([float(np.corrcoef(*pair)[0, 1]) for pair in pairs], 3),
        ),
        (
            "largest less smallest average ε: before, after",
            "smaller after",
            _before_and_after(np.ptp(epsilon, axis=2), 3),
        ),
        (
            "test loss of the class with the smallest ε",
            "smaller after",
            _before_and_after(loss[trials, :, private]),
        ),
        (
            "test loss of the class with the largest ε",
            "larger after",
            _before_and_after(loss[trials, :, exposed]),
        ),
        (
            "groups whose test loss is larger after",
            "4 of 5",
            f"{with_error((loss[:, 1] > loss[:, 0]).sum(axis=1), 1)} of {CLASSES}",
        ),
        (
            "best less worst class, accuracy in points",
            "larger after",
            _before_and_after(100.0 * np.ptp(accuracy, axis=2), 1),
        ),
        (
            "accuracy on all test images in percent",
            "hardly better",
            _before_and_after(100.0 * accuracy @ shares, 1),
        ),
    )
    source = f"K sec. 6, Fig. 2 ({images.name}, {_FULL_STEPS} steps and as many with the filter)"
    return [Row(source, *cell) for cell in cells]


def _filter(images: Images, seed: int) -> list[list[np.ndarray]]:
    """Train by filtered gradient descent (Algorithm 1, full batches).

    Returns:
        before and after filtering, each class's average epsilon, test loss and test accuracy.
    """
    random = np.random.default_rng(seed)
    noise_stddev = np.sqrt(_FULL_STEPS) * _CLIP_NORM / gdp_budget(_EPSILON, _DELTA)
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "images", measure="gdp", epsilon=_EPSILON, delta=_DELTA, user_ids="integer"
    )
    run = service.run("images", "training")
    rows, targets = rounded_rows(images.train), np.eye(CLASSES)[images.train_labels]
    lengths = row_norms(rows)
    weights, squares = np.zeros((rows.shape[1], CLASSES)), np.zeros(len(rows))
    found = []
    for step in range(1, 2 * _FULL_STEPS + 1):
        residuals = softmax(row_products(rows, weights)) - targets
        norms = norm_products(row_norms(residuals), lengths)
        clipped = np.minimum(norms, _CLIP_NORM)
        granted = run.charge(
            images.users, clipped, noise_stddev=noise_stddev, clip_norm=_CLIP_NORM
        ).granted
        squares += granted**2
        gradient = rows.T @ (residuals * clip_factors(norms, granted)[:, np.newaxis])
        gradient += random.normal(0.0, noise_stddev, gradient.shape)
        weights -= _LEARNING_RATE / len(rows) * gradient
        if step % _FULL_STEPS == 0:
            scores = images.test @ weights
            epsilons = np.asarray(gdp_to_epsilon(np.sqrt(squares) / noise_stddev, _DELTA))
            of_test = (
                cross_entropy(scores, images.test_labels),
                scores.argmax(axis=1) == images.test_labels,
            )
            found.append(
                [
                    class_means(epsilons, images.train_labels),
                    *(class_means(values, images.test_labels) for values in of_test),
                ]
            )
    return found


def _before_and_after(values: np.ndarray, digits: int = 2) -> str:
    return ", ".join(with_error(values[:, time], digits) for time in (0, 1))


def _steps_within(epsilon: np.ndarray, limit: float) -> str:
    return str(int(_STEPS[epsilon <= limit].max()))
