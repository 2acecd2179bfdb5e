"""DP-FTRL beside DP-SGD, on made-up images and texts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.papers import correlated
from bench.papers.correlated import METHODS, Images, Task, Texts, Trial, train
from bench.papers.mnist import IMAGES_FILE, LABELS_FILE

WORDS = ("river", "stone", "cloud", "light", "don't")


def images(folder: Path) -> Task:
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 100, dtype=np.uint8)
    pixels = random.integers(0, 256, (100, 6, 6), dtype=np.uint8)
    (folder / "mnist-t10k").mkdir()
    for name, values in ((IMAGES_FILE, pixels), (LABELS_FILE, labels)):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        (folder / "mnist-t10k" / name).write_bytes(gzip.compress(head + values.tobytes()))
    return Images(folder)


def texts(folder: Path) -> Task:
    random = np.random.default_rng(0)
    pages = [" ".join(random.choice(WORDS, 30)).title() + ", 7!" for _ in range(100)]
    (folder / "one").write_text("\n%\n".join(pages[:60]))
    (folder / "two").write_text("\n%\n".join([*pages[60:], "too short"]))
    (folder / "two.dat").write_text("\n%\n".join(pages))
    return Texts(folder)


TASKS = (images, texts)


def loss(task: Any, weights: list[Any], user: int) -> float:
    """Return a user's loss, computed without the code that is tested for gradients."""
    if isinstance(task, Images):
        hidden = np.tanh(task._rows[user] @ weights[0]) / np.sqrt(32)
        scores = np.append(hidden, 0.3) @ weights[1]
        return float(np.log(np.exp(scores).sum()) - scores[task._labels[user]])
    total, codes = 0.0, task._codes[user]
    for place in range(3, len(codes)):
        row = np.append(np.eye(30)[codes[place - 3 : place]].ravel() / np.sqrt(3), 0.3)
        scores = row @ weights[0]
        total += float(np.log(np.exp(scores).sum()) - scores[codes[place]])
    return total / 64


@pytest.mark.parametrize("made", TASKS)
def test_gradients_are_those_of_the_loss(made: Any, tmp_path: Path) -> None:
    task = made(tmp_path)
    assert task.users == 80
    random = np.random.default_rng(1)
    weights = [random.normal(size=shape) for shape in task.shapes]
    ends = np.cumsum([one.size for one in weights])[:-1]
    for place, rows in enumerate(np.split(task.gradients(weights, np.array([3, 5])), ends, axis=1)):
        for entry in random.integers(0, weights[place].size, 5):
            for row, user in enumerate((3, 5)):
                moved = [one.copy() for one in weights]
                losses = []
                for change in (1e-4, -2e-4):
                    moved[place].flat[entry] += change
                    losses.append(loss(task, moved, user))
                slope = (losses[0] - losses[1]) / 2e-4
                assert rows[row][entry] == pytest.approx(slope, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made", TASKS)
def test_both_methods_train_under_one_budget(
    made: Any, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlated, "PASSES", 2)
    task = made(tmp_path)
    task.groups, task.population, task.clip_norm = 4, 80, 1.0
    weights = train(task, method, 1e4, Trial(8.0, 0.0, falls=False), 1)
    first = task.first(1)
    assert [one.shape for one in weights] == list(task.shapes)
    assert not any(np.array_equal(one, two) for one, two in zip(first, weights, strict=True))
