"""Nested datasets."""

from __future__ import annotations

import numpy as np
import pytest

from streams import (
    BudgetHeld,
    Turnstile,
)


def test_one_budget_holds_over_all_datasets_of_a_person(turnstile: Turnstile, name: str) -> None:
    person, ads, search = (f"{name}-{kind}" for kind in ("person", "ads", "search"))
    turnstile.create_dataset(person, measure="zcdp", budget=0.2, assume_independent_timing=True)
    turnstile.create_dataset(ads, measure="zcdp", budget=1.0, parents=person)
    made = turnstile.create_dataset(search, measure="gdp", budget=0.5, parents=person)
    assert (made.parents, made.user_ids) == ([person], "one-kind")
    users = list(range(40))
    run = turnstile.run(ads, "r")
    assert [policy.dataset for policy in run.outer] == [person]
    assert run.charge(users[:30], np.ones(30), noise_stddev=2.0).admitted.all()  # rho 1/8
    roster = turnstile.run(search, "r").enrol(users, clip_norm=1.0)
    first = roster.charge(noise_stddev=2.0)  # mu 1/2: all of the budget of search
    assert first.halted.tolist() == users[:30]
    assert np.flatnonzero(first.exhausted).tolist() == users[30:]
    second = roster.charge(noise_stddev=4.0)
    assert second.readmitted.tolist() == users[:30]
    assert second.halted.tolist() == users[30:]
    decided = run.charge(users, np.ones(40), noise_stddev=2.0)
    assert not decided.admitted[:30].any()
    refused = {
        (halt.dataset, halt.step, halt.user): halt.refused_by
        for dataset in (ads, search)
        for halt in turnstile.halts(dataset, follow=False)
    }
    assert refused == {
        **{(search, 0, user): person for user in users[:30]},
        **{(search, 1, user): search for user in users[30:]},
        **{(ads, 1, user): person for user in users},
    }


def test_a_step_needs_the_budgets_of_all_parents(turnstile: Turnstile, name: str) -> None:
    person, site, ads = (f"{name}-{kind}" for kind in ("person", "site", "ads"))
    for outermost in (person, site):
        turnstile.create_dataset(outermost, measure="zcdp", budget=0.25)
    turnstile.create_dataset(ads, measure="zcdp", budget=0.25, parents=[site, person])
    alone = turnstile.run(site, "r")
    alone.charge([1], [1.0], noise_stddev=2.0)  # rho 1/8
    with pytest.raises(BudgetHeld) as held:
        turnstile.run(ads, "r")
    assert held.value.holder == (site, "r")
    alone.close()
    run = turnstile.run(ads, "r")
    assert [policy.dataset for policy in run.outer] == [person, site]
    for outermost in (person, site):
        with pytest.raises(BudgetHeld):
            turnstile.run(outermost, "other")
    admitted = [run.charge([1, 2], [1.0, 1.0], noise_stddev=2.0).admitted for _ in range(2)]
    assert [users.tolist() for users in admitted] == [[True, True], [False, True]]
    (halt,) = turnstile.halts(ads, follow=False)
    assert (halt.user, halt.refused_by) == (1, site)
    run.close()
    assert turnstile.erase(2, person) == sorted([person, site, ads])
    after = turnstile.run(site, "last").charge([2, 3], [0.1, 0.1], noise_stddev=2.0)
    assert after.erased.tolist() == [True, False]
