"""Every benchmark can be imported: what it uses of the product is still there."""

import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest

import bench
from bench import corrections, scale, years

NAMES = [found.name for found in walk_packages(bench.__path__, "bench.")]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_is_imported(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("coverage", "opacus", "torch"):  # which `make test` does without
            raise
        pytest.skip(f"{error.name} is not installed")


def test_tables_of_growth_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["users", "runs", "datasets"]
    monkeypatch.setattr(
        sys, "argv", ["scale", *(word for part in parts for word in (f"--{part}", "3"))]
    )
    scale.main()
    told = capsys.readouterr().out
    assert all(f"{part} of a partition" in told for part in parts)


@pytest.mark.slow
def test_a_simulated_year_is_answered_and_corrected() -> None:
    policy = corrections.policy_of(1.0, 1e-6)
    off, holds = corrections.corrected(years.year(0, users=20), "sum", 60, policy, seed=0)
    assert off.shape == holds.shape == (20, years.YEAR)
