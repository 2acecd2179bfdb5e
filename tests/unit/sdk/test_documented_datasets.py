"""The examples of the documentation with several datasets: parents, shares and epochs."""

from __future__ import annotations

from typing import Any

import pytest

from streams import RunIsClosed, Turnstile
from tests.readme import blocks_of_epochs, blocks_of_several_datasets

(RELEASE,) = blocks_of_epochs()
CHARGES, CLOSING = RELEASE.split("# Per week")


def decided(names: dict[str, Any], release: str = CHARGES) -> dict[str, list[bool]]:
    exec(release, names)
    return {week: decision.admitted.tolist() for week, decision in names["decisions"].items()}


def of_person(release: str) -> str:
    """Return the release with a budget for a lifetime, which its weeks take over in turn."""
    opened = release.replace("released=-1", "released=-1, take_over=True")
    assert opened != release
    return opened.replace("epsilon=1.0", 'parents="person", epsilon=1.0')


def service_of_person(**policy: Any) -> dict[str, Any]:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("person", **policy)
    return {"t": turnstile}


def test_release_charges_each_week_until_it_is_closed() -> None:
    names: dict[str, Any] = {"t": Turnstile.in_memory()}
    first = decided(names)
    assert first == {"2026-W12": [True], "2026-W13": [True, True]}
    assert decided(names) == first
    exec("# Per week" + CLOSING, names)
    with pytest.raises(RunIsClosed):
        decided(names)


def test_a_lifetime_budget_bounds_all_weeks_and_is_charged_once() -> None:
    names = service_of_person(measure="steps", budget=1, noise_multiplier=8.0)
    release = of_person(CHARGES).replace("epsilon=1.0, delta=1e-6", 'measure="zcdp", budget=1.0')
    first = decided(names, release)
    assert first == {"2026-W12": [True], "2026-W13": [False, True]}
    assert decided(names, release) == first


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
