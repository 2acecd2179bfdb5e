"""The norms that the paper scripts account are those of real gradients."""

import numpy as np
import pytest

from bench.papers.images import load_digits
from bench.papers.norms import CLIP_NORM, _Network, train


def loss(network: _Network, image: np.ndarray, label: int) -> float:
    scores = network.forward(image[np.newaxis])[1][0]
    return float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label])


@pytest.mark.slow
def test_norm_is_that_of_the_gradient_of_the_loss() -> None:
    images = load_digits()
    network = _Network(images.train.shape[1], np.random.default_rng(0))
    network._second += np.random.default_rng(1).normal(size=network._second.shape)
    norms = network.norms(images.train[:3], images.train_labels[:3])
    for row, norm in enumerate(norms.tolist()):
        image, label = images.train[row], int(images.train_labels[row])
        squares = 0.0
        for weights in (network._first, network._second):
            for place in np.ndindex(weights.shape):
                kept = weights[place]
                weights[place] = kept + 1e-5
                above = loss(network, image, label)
                weights[place] = kept - 1e-5
                squares += ((above - loss(network, image, label)) / 2e-5) ** 2
                weights[place] = kept
        np.testing.assert_allclose(norm, np.sqrt(squares), rtol=1e-6)


def test_training_learns_and_its_norms_are_clipped() -> None:
    training = train(load_digits(), epochs=20, followed=50)
    assert training.norms.shape == (50, training.steps)
    assert training.norms.min() >= 0.0
    assert training.norms.max() <= CLIP_NORM
    assert training.accuracy > 0.8
    assert len(training.losses) > len(training.test_losses) > 0
    assert min(training.losses.min(), training.test_losses.min()) > 0.0
    assert training.class_accuracy.mean() == pytest.approx(training.accuracy, abs=0.05)
