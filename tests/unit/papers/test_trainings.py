"""The trainings of the tables are charged as the tables say, on bounded and split data."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from accounting import NormGrid, PoissonGaussian, ReportAccountant, gdp_budget
from accounting.release.clipping import norm_products, row_norms
from bench.papers import dpsgd, norms, sampled, trainings
from bench.papers.dpsgd import Sampled
from bench.papers.images import CLASSES, CLIP_NORM, FEATURE_NORM, Images, features, load_digits
from bench.papers.mnist import IMAGES_FILE, LABELS_FILE, load_mnist, read_idx
from bench.papers.trainings import WAYS, FullBatches, Way, full_batches, samples
from bench.papers.yu import threshold_success
from streams.trainers.loop import row_products, softmax


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


@pytest.mark.parametrize("settings", [dpsgd.DIGITS, dpsgd.DIGITS_TUNED, dpsgd.MNIST])
def test_the_worst_case_spends_the_guarantee_and_hardly_less(settings: Sampled) -> None:
    def epsilon(multiplier: float) -> float:
        step = PoissonGaussian(multiplier, settings.sampling_rate)
        report = ReportAccountant(step, NormGrid(1.0, 1))
        return float(report.epsilon([settings.steps], settings.delta))

    assert epsilon(settings.worst_case_multiplier) <= settings.epsilon
    assert epsilon(0.998 * settings.worst_case_multiplier) > settings.epsilon


@pytest.mark.parametrize("settings", [trainings.DIGITS, trainings.MNIST])
@pytest.mark.parametrize("way", WAYS)
def test_full_batches_have_one_guarantee_in_every_way(way: Way, settings: FullBatches) -> None:
    charged = settings.full_steps if way == "individual" else settings.steps
    mu = math.sqrt(charged) * settings.clip_norm(way) / settings.noise_stddev(way)
    assert mu == pytest.approx(gdp_budget(settings.epsilon, settings.delta))


@pytest.mark.slow
def test_every_way_learns(digits: Images) -> None:
    found = [samples(digits, dpsgd.DIGITS, 1), full_batches(digits, trainings.DIGITS, 1)]
    for (accuracies,) in found:  # with a fixed seed
        assert len(accuracies) == len(WAYS)
        assert min(accuracies) > 0.8


def test_no_image_is_in_training_and_test(digits: Images) -> None:
    rows = np.vstack([digits.train, digits.test])
    assert len(np.unique(rows, axis=0)) == len(rows) == 1797
    assert digits.users.tolist() == list(range(len(digits.train)))


def test_every_image_has_the_feature_norm_and_a_blank_one_less() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12)).astype(np.float64)
    pixels[0] = 0.0
    lengths = np.linalg.norm(features(pixels), axis=1)
    np.testing.assert_allclose(lengths[1:], FEATURE_NORM)
    assert lengths[0] == pytest.approx(0.3)


def test_no_gradient_is_longer_than_the_clip_norm(digits: Images) -> None:
    assert row_norms(digits.train).max() <= FEATURE_NORM * (1 + 1e-12)
    for seed in range(5):
        weights = np.random.default_rng(seed).normal(0, 3, (digits.train.shape[1], CLASSES))
        residuals = softmax(row_products(digits.train, weights))
        residuals -= np.eye(CLASSES)[digits.train_labels]
        lengths = norm_products(row_norms(residuals), row_norms(digits.train))
        assert lengths.max() <= CLIP_NORM * (1 + 1e-12)


def test_the_worst_case_makes_as_many_steps_as_its_noise_is_for() -> None:
    for epsilon, steps in ((0.3, 100), (1.0, 30)):
        noise = sampled.noise_of(epsilon, steps, 0.1, 0.8)
        assert sampled.worst_case_steps(epsilon, noise, 0.1, 0.8) == steps
        assert sampled.worst_case_steps(epsilon, noise, 0.1, 1.2) < steps


@pytest.mark.slow
def test_every_way_to_set_levels_learns(digits: Images) -> None:
    noise = sampled.noise_of(8.0, 30, 0.1, 0.8)
    for pass_every, looks in ((None, 1), (10, 1), (0, 3)):
        plan = sampled.Plan(8.0, 0.8, noise, 0.1, 6.0, 30, pass_every, looks)
        assert sampled.train(digits, plan, seed=1) > 0.8


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> None:
    head = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def test_idx_files_are_read_in_their_shape(tmp_path: Path) -> None:
    values = np.arange(24).reshape(2, 3, 4)
    write_idx(tmp_path / "x.gz", values)
    np.testing.assert_array_equal(read_idx(tmp_path / "x.gz"), values)
    write_idx(tmp_path / "x.gz", values, kind=13)
    with pytest.raises(ValueError) as caught:
        read_idx(tmp_path / "x.gz")
    assert "x.gz" in str(caught.value)


def test_mnist_is_split_the_same_way_every_time(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_idx(tmp_path / IMAGES_FILE, random.integers(0, 256, (20, 4, 3)))
    write_idx(tmp_path / LABELS_FILE, random.integers(0, 10, 20))
    first, second = load_mnist(tmp_path), load_mnist(tmp_path)
    assert (len(first.train), len(first.test)) == (16, 4)
    np.testing.assert_array_equal(first.train, second.train)
    np.testing.assert_array_equal(first.test_labels, second.test_labels)


def loss(network: norms._Network, image: np.ndarray, label: int) -> float:
    scores = network.forward(image[np.newaxis])[1][0]
    return float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label])


@pytest.mark.slow
def test_norm_is_that_of_the_gradient_of_the_loss(digits: Images) -> None:
    network = norms._Network(digits.train.shape[1], np.random.default_rng(0))
    network._second += np.random.default_rng(1).normal(size=network._second.shape)
    found = network.norms(digits.train[:3], digits.train_labels[:3])
    for row, norm in enumerate(found.tolist()):
        example = digits.train[row], int(digits.train_labels[row])
        squares = 0.0
        for weights in (network._first, network._second):
            for place in np.ndindex(weights.shape):
                kept, ends = weights[place], []
                for change in (1e-5, -1e-5):
                    weights[place] = kept + change
                    ends.append(loss(network, *example))
                squares += ((ends[0] - ends[1]) / 2e-5) ** 2
                weights[place] = kept
        np.testing.assert_allclose(norm, np.sqrt(squares), rtol=1e-6)


def test_training_learns_and_its_norms_are_clipped(digits: Images) -> None:
    training = norms.train(digits, epochs=20, followed=50)
    assert training.norms.shape == (50, training.steps)
    assert 0.0 <= training.norms.min() <= training.norms.max() <= norms.CLIP_NORM
    assert training.accuracy > 0.8
    assert len(training.losses) > len(training.test_losses) > 0
    assert min(training.losses.min(), training.test_losses.min()) > 0.0
    assert training.class_accuracy.mean() == pytest.approx(training.accuracy, abs=0.05)


def test_attack_is_right_as_often_as_losses_tell_members() -> None:
    random = np.random.default_rng(0)
    losses = random.random(1_000)
    assert threshold_success(losses, losses + 1.0, random) == pytest.approx(1.0, abs=0.03)
    assert threshold_success(losses, random.random(400), random) == pytest.approx(0.5, abs=0.03)
    assert threshold_success(losses, losses + 0.5, random) == pytest.approx(0.75, abs=0.03)
