from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streams.sdk.errors import Fenced, InvalidRequest, ReleasedTwice
from streams.trainers.checkpoint import Checkpoint

NAME = ("digits", "night-7")


def test_checkpoint_returns_the_model_and_the_released_step(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "run.npz")
    assert checkpoint.released() == -1
    assert checkpoint.load(NAME) is None
    for step in (0, 7):
        checkpoint.save(NAME, 1, step, {"model": np.arange(3.0) + step, "kept": np.array([step])})
    assert checkpoint.released() == 7
    saved = Checkpoint(str(tmp_path / "run.npz")).load(NAME)
    assert saved is not None
    assert saved.released == 7
    arrays = {key: array.tolist() for key, array in saved.arrays.items()}
    assert arrays == {"model": [7.0, 8.0, 9.0], "kept": [7]}


def test_a_write_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path / "run.npz")
    checkpoint.save(NAME, 1, 3, {"model": np.ones(2)})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        checkpoint.save(NAME, 1, 4, {"model": np.zeros(2)})
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert checkpoint.released() == 3
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


STALLS = """
import resource, signal, sys
import numpy as np
from streams.trainers.checkpoint import Checkpoint

def stall(number, frame):
    print("stalls", flush=True)
    signal.pause()

signal.signal(signal.SIGXFSZ, stall)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))
Checkpoint(sys.argv[1]).save(("digits", "night-7"), 1, 3, {"model": np.ones(1000)})
"""
"""A program that stops in the middle of writing a checkpoint."""


@pytest.mark.process
def test_a_save_removes_the_unfinished_file_of_a_killed_process(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "run[1].npz")
    arguments = [sys.executable, "-c", STALLS, str(checkpoint.path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"stalls\n"
            (unfinished,) = tmp_path.iterdir()
            checkpoint.save(NAME, 2, 4, {"model": np.ones(2)})
            assert set(tmp_path.iterdir()) == {checkpoint.path, unfinished}
        finally:
            writer.kill()
    checkpoint.save(NAME, 2, 5, {"model": np.ones(2)})
    assert set(tmp_path.iterdir()) == {checkpoint.path}


def test_checkpoint_of_another_run_is_not_replaced(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "run.npz")
    checkpoint.save(NAME, 1, 3, {"model": np.ones(2)})
    other = ("digits", "night-8")
    with pytest.raises(InvalidRequest):
        checkpoint.load(other)
    with pytest.raises(InvalidRequest):
        checkpoint.save(other, 9, 9, {"model": np.zeros(2)})
    assert checkpoint.load(NAME) is not None


@pytest.mark.parametrize(
    ("attempt", "released", "refused"),
    [
        (1, 4, Fenced),  # an earlier attempt, whatever step it has come to
        (1, 99, Fenced),
        (2, 3, ReleasedTwice),
        (3, 3, ReleasedTwice),  # a later attempt that does not know of a step
        (2, 4, None),
        (2, 5, None),
        (3, 4, None),  # a successor takes the file over
    ],
)
def test_a_file_of_a_later_attempt_or_step_is_not_replaced(
    tmp_path: Path, attempt: int, released: int, refused: type[Exception] | None
) -> None:
    checkpoint = Checkpoint(tmp_path / "run.npz")
    checkpoint.save(NAME, 2, 4, {"model": np.ones(2)})
    if refused is None:
        checkpoint.save(NAME, attempt, released, {"model": np.zeros(2)})
        assert checkpoint.released() == released
    else:
        with pytest.raises(refused):
            checkpoint.save(NAME, attempt, released, {"model": np.zeros(2)})
        saved = checkpoint.load(NAME)
        assert saved is not None
        assert (saved.released, saved.arrays["model"].tolist()) == (4, [1.0, 1.0])


def test_another_file_is_not_taken_for_no_checkpoint(tmp_path: Path) -> None:
    path, other = tmp_path / "run.npz", np.array('[9, "digits", "night-7", 1, 1]')
    for arrays in ({"model": np.ones(2)}, {"turnstile": other}):
        np.savez(path, **arrays)
        with pytest.raises(InvalidRequest):
            Checkpoint(path).load(NAME)
    for content in (b"", b"PK\x03\x04", b"text", b"\x93NUMPY", path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InvalidRequest):
            Checkpoint(path).released()
