"""The examples of the documentation with several datasets."""

from __future__ import annotations

from streams.sdk.client import Turnstile
from tests.readme import blocks_of_several_datasets


def test_readme_example_has_one_budget_over_its_datasets() -> None:
    example, _ = blocks_of_several_datasets()
    with Turnstile.in_memory() as turnstile:
        exec(example, {"t": turnstile})
        decided = []
        for dataset in ("ads", "search", "person"):
            run = turnstile.run(dataset, "r")
            decided.append(run.charge([7], [1.0], noise_stddev=8.0).admitted.tolist())
            run.close()
        assert decided == [[True]] * 3
        refused = turnstile.run("ads", "again").charge([7], [1.0], noise_stddev=2.0)
        assert not refused.admitted.any()
        (halt,) = turnstile.halts("ads", follow=False)
        assert halt.refused_by in ("ads", "person")


def test_the_example_of_shares_is_charged_side_by_side() -> None:
    _, example = blocks_of_several_datasets()
    with Turnstile.in_memory() as turnstile:
        exec(example, {"t": turnstile})
        parts = ["company-ads", "company-search"]
        runs = [turnstile.run(part, "r") for part in parts]
        steps = [run.charge([7], [1.0], noise_stddev=8.0) for run in runs]
        assert [step.admitted.tolist() for step in steps] == [[True], [True]]
