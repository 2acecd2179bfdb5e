"""Trainings on two processes (gloo) release what one process does: `make test-torch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
pytestmark = pytest.mark.process


def train(folder: Path, ranks: int, **special: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the exit codes of all ranks, and the content of the result files."""
    folder.mkdir()
    outs = [folder / f"rank-{rank}.npz" for rank in range(ranks)]
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.unit.trainers.rank", str(folder / "meeting")),
                *(str(rank), str(ranks), str(out), json.dumps(special)),
            ],
            env={**os.environ, **({"WORLD_SIZE": str(ranks)} if special.get("alone") else {})},
            stderr=subprocess.DEVNULL,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        codes = [process.wait(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return codes, [dict(np.load(out)) for out in outs if out.exists()]


@pytest.mark.parametrize(
    "special",
    [{"users": True}, {}, {"ahead": True}, {"turns": True}],
    ids=["users with many examples", "users with one example", "charged ahead", "in turn"],
)
def test_two_ranks_train_the_model_of_one_bit_for_bit(tmp_path: Path, special: Any) -> None:
    alone, (one,) = train(tmp_path / "one", 1, **special)
    codes, both = train(tmp_path / "two", 2, **special)
    assert (alone, codes) == ([0], [0, 0])
    for other in both:
        assert other["noise"] == one["noise"]
        assert all(np.array_equal(one[name], other[name]) for name in one if name.isdigit())
    # Each rank has computed its own part.
    assert max(other["batches"] for other in both) < one["batches"]


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ({"alone": True}, ["InvalidRequest", "InvalidRequest"]),
        ({"wrapped": True}, ["InvalidRequest", "InvalidRequest"]),
        ({"users": True, "other users": 1}, ["InvalidRequest", "InvalidRequest"]),
        ({"on rank 1": {"max_grad_norm": 0.01}}, ["InvalidRequest", "InvalidRequest"]),
        ({"turns": True, "on rank 1": {"population": 100}}, ["InvalidRequest", "InvalidRequest"]),
        ({"on rank 1": {"loss_reduction": "sum"}}, ["InvalidRequest", "InvalidRequest"]),
        ({"on rank 1": {"max_physical_batch_size": 8}}, ["InvalidRequest", "InvalidRequest"]),
        ({"epsilon": -1.0}, ["InvalidRequest", "Unusable"]),
    ],
    ids=[
        *("not initialised", "wrapped in DDP", "other users", "other clip norm"),
        *("other population", "other reduction", "other batches", "rejected on rank 0"),
    ],
)
def test_ranks_that_cannot_train_together_are_refused(
    tmp_path: Path, special: Any, expected: list[str]
) -> None:
    codes, found = train(tmp_path / "two", 2, **special)
    assert codes == [1, 1]
    assert not found
    kinds = [tmp_path / "two" / f"rank-{rank}.error" for rank in range(2)]
    assert [kind.read_text() for kind in kinds] == expected
