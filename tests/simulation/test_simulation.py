"""No seed breaks a guarantee, each removed guarantee is noticed, and a seed replays exactly."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from streams.ledger.ledger import Ledger
from tests.audit.auditor import Auditor
from tests.simulation.audit import AUDITORS, forget
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.process import Process
from tests.simulation.simulation import simulate
from tests.simulation.world import World

_SEEDS = 75
"""The number of seeds that `make test` runs; `make nightly` runs 10,000 others."""
_AT_ONCE = 5
_MUTATED_SEEDS = 200
_FURTHER = [pytest.param(n, marks=pytest.mark.slow) for n in range(_AT_ONCE, _SEEDS, _AT_ONCE)]


@pytest.mark.parametrize("first", [0, *_FURTHER])
def test_no_fault_breaks_a_guarantee(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        outcome = simulate(seed)
        forget()
        assert outcome.wrong is None, f"make simulate SEED={seed}\n{outcome.wrong}"


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_applies_to_the_code(name: str) -> None:
    with mutated(name):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("version-not-compared", 68),
        ("partitions-not-compared", 6),
        ("layouts-not-compared", 1),
        ("topics-not-watched", 5),
        ("trims-taken-for-another-log", 23),
        ("outbox-not-republished", 14),
        ("lock-not-held", 52),
        ("overdue-records-awaited", 16),
        ("signatures-not-verified", 5),
        ("signatures-of-other-partitions-accepted", 18),
        ("every-key-is-allowed", 1),
        ("unsigned-requests-accepted", 1),
        ("every-client-creates-nested-datasets", 5),
        ("removed-keys-stay-allowed", 1),
        ("older-access-lists-accepted", 18),
        ("numbers-begin-again-with-a-new-dataset", 570),
        ("access-lists-not-merged", 1),
        ("older-step-handed-back", 12),
        ("attempts-not-checked", 3),
        ("levels-not-deferred", 18),
        ("calls-accepted-during-a-step", 4),
        ("levels-charged-twice", 830),
        ("reserves-rounded-down", 17),
        ("last-units-missed", 48),
        ("unknown-erasure-keys-accepted", 1080),
        ("hashes-of-erased-users-published", 4),
        ("parent-grants-not-applied", 116),
        ("budgets-charged-separately", 116),
        ("parent-levels-not-checked", 165),
        ("only-first-parents-charged", 18),
        ("one-of-several-budgets-held", 40),
        ("holds-not-checked-at-a-charge", 1),
        ("budgets-taken-over-unasked", 0),
        ("budgets-taken-over-by-repeated-openings", 1),
        ("budgets-freed-by-other-runs", 2),
        ("shares-not-added-up", 2),
        ("windows-of-other-runs-answered-again", 0),
        ("files-of-runs-not-compared", 0),
        ("collections-not-dropped", 0),
        ("late-norms-accepted", 0),
        ("changed-norms-accepted", 0),
        ("collections-not-merged", 0),
        ("erased-users-stay-collected", 0),
        ("too-many-norms-charged", 0),
        ("norms-of-other-terms-kept", 0),
        ("terms-changed-after-the-first-step", 0),
        ("last-parts-not-published", 0),
    ],
)
def test_a_removed_guarantee_is_noticed(name: str, first: int) -> None:
    """Each mutation starts at the first seed that finds it, or shortly before."""
    for seed in range(first, first + _MUTATED_SEEDS):
        with mutated(name):
            outcome = simulate(seed)
        forget()
        if outcome.wrong:
            return
    pytest.fail(f"{_MUTATED_SEEDS} seeds find nothing wrong with {name}")


def kept() -> Iterator[str]:
    """Yield the objects and caches of simulations that are in memory."""
    gc.collect()
    for found in gc.get_objects():
        if isinstance(found, World | Process | Auditor | Ledger):
            yield type(found).__name__
    for module in AUDITORS:
        for name, function in vars(module).items():
            if hasattr(function, "cache_info") and function.cache_info().currsize:
                yield f"{module.__name__}.{name}"


@pytest.mark.slow
def test_many_seeds_in_one_process_leave_nothing_in_memory() -> None:
    before = Counter(kept())
    for seed in range(3):
        simulate(seed)
        forget()
    assert Counter(kept()) <= before


@pytest.mark.process
def test_seed_replays_exactly_with_other_hashes() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "3"],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            check=True,
            capture_output=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert traces[0] == traces[1]
