"""The examples of docs/library.md run as they stand there."""

import numpy as np
import pytest

from tests.readme import (
    blocks,
    blocks_of_a_file,
    blocks_of_a_private_stop,
    blocks_of_a_subscriber,
    blocks_of_epochs,
    blocks_of_sampled_training,
    blocks_of_several_datasets,
    blocks_of_the_library,
    blocks_of_the_service,
)


def test_every_example_is_run_by_some_test() -> None:
    """By those who know what each needs: here, with the trainers, and with the service."""
    run = [*blocks_of_the_library(), *blocks_of_the_service(), *blocks_of_sampled_training()]
    run += blocks_of_a_subscriber() + blocks_of_a_file() + blocks_of_a_private_stop()
    run += blocks_of_epochs() + blocks_of_several_datasets()
    assert [len(blocks_of_the_library()), len(blocks_of_the_service())] == [1, 2]
    assert sorted(run) == sorted(blocks())


@pytest.mark.slow
def test_the_example_of_the_library_runs_and_its_bounds_are_ordered() -> None:
    (example,) = blocks_of_the_library()
    names: dict[str, object] = {}
    exec(example, names)
    lower, estimate, upper = names["epsilon"].bounds
    assert np.all((lower <= estimate) & (estimate <= upper))
    assert np.all(upper < 2.0)  # no user lost more than the noise was chosen for
    assert names["admitted"].all()
