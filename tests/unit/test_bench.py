"""Every benchmark can be imported: what it uses of the product is still there."""

from importlib import import_module
from pkgutil import walk_packages

import pytest

import bench

NAMES = [found.name for found in walk_packages(bench.__path__, "bench.")]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_is_imported(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("coverage", "opacus", "torch"):  # which `make test` does without
            raise
        pytest.skip(f"{error.name} is not installed")
