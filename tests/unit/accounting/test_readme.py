"""The examples of the README run as they stand there."""

import numpy as np

from tests.readme import blocks, blocks_of_the_library, blocks_of_the_service


def test_every_example_is_run_by_some_test() -> None:
    """Here, or in tests/integration/test_readme_service.py, which knows what each needs."""
    assert len(blocks_of_the_library()) == 1
    assert len(blocks_of_the_service()) == 2
    assert sorted(blocks_of_the_library() + blocks_of_the_service()) == sorted(blocks())


def test_the_example_of_the_library_runs_and_its_bounds_are_ordered() -> None:
    (example,) = blocks_of_the_library()
    names: dict[str, object] = {}
    exec(example, names)
    lower, estimate, upper = names["epsilon"].bounds
    assert np.all((lower <= estimate) & (estimate <= upper))
    assert np.all(upper < 2.0)  # no user lost more than the noise was chosen for
    assert names["admitted"].all()
