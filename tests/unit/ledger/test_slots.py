"""A client cannot choose ids that collide, and usual ids rarely collide."""

import ast
import subprocess
import sys

import numpy as np
import pytest

from streams.ledger import slots
from tests.unit.ledger.random_logs import RandomLog

PUBLISHED = (0x9E3779B97F4A7C15, 0, 1)
"""A seed that an attacker knows."""


def mean_search(ids, seed=slots.SEED):
    """Return the mean number of places that a linear search for each id looks at.

    The table has four places per id, as that of a ``SlotTable`` with up to 131,072 users.
    """
    places = np.int64(4 * len(ids))
    taken, searched = set(), 0
    for place in slots.homes(ids, np.array(seed, dtype=np.uint64), places).tolist():
        searched += 1
        while place in taken:
            place = (place + 1) % int(places)
            searched += 1
        taken.add(place)
    return searched / len(ids)


def colliding(count, bits):
    """Return ids whose home is in the last of 2**bits parts of a table with the published seed."""
    homes = np.arange(count, dtype=np.uint64) + np.uint64((1 << bits) - 1 << (64 - bits))
    mixed = homes ^ (homes >> np.uint64(32))  # the inverse of folding: the upper half is unchanged
    return (mixed * np.uint64(pow(PUBLISHED[0], -1, 2**64))).view(np.int64)


def test_ids_chosen_to_collide_need_the_seed():
    ids = colliding(2_000, bits=13)
    assert mean_search(ids, PUBLISHED) > 500
    assert mean_search(ids) < 2


@pytest.mark.parametrize("stride", [1, 3, 2**20, 2**32, 2**40, 2**44 + 1, -(2**33)])
def test_equidistant_ids_are_spread_under_every_seed(stride):
    ids = np.arange(20_000, dtype=np.int64) * stride
    for number in range(20):
        drawn = np.random.default_rng(number).integers(0, 2**64, 3, dtype=np.uint64).tolist()
        assert mean_search(ids, (drawn[0] | 1, drawn[1], drawn[2] | 1)) < 1.5


@pytest.mark.process
def test_every_process_draws_its_own_seed():
    script = "from streams.ledger.slots import SEED; print(SEED)"
    seeds = {subprocess.check_output([sys.executable, "-c", script]) for _ in range(2)}
    assert len(seeds) == 2
    for first, _, second in map(ast.literal_eval, map(bytes.decode, seeds)):
        assert first % 2 == second % 2 == 1


def test_outputs_and_deltas_do_not_depend_on_the_seed(monkeypatch):
    logs = []
    for seed in (PUBLISHED, (3, 4, 5)):
        monkeypatch.setattr(slots, "SEED", seed)
        logs.append(RandomLog(3).grow(160))
    assert logs[0].outputs == logs[1].outputs
    assert logs[0].changes == logs[1].changes
