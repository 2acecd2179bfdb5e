"""Writes a log and what a version of the fold made of it, to be kept.

    python -m tests.recorded.record NAME

A later version that folds a kept log differently is broken: users would be charged differently
when a partition is rebuilt. So files are added here, and never changed.
"""

import sys
from pathlib import Path

import msgspec
import numpy as np

from streams.ledger import Output
from streams.partitioner import partitions_of
from streams.schemas import Decision
from tests.streams.ledgers import Log

HERE = Path(__file__).parent


class Recording(msgspec.Struct):
    """One partition's records, and the outputs and spent units they led to."""

    partition: int
    partitions: int
    records: list[bytes | None]
    outputs: list[list[Output]]
    spent: dict[str, list]


def make_log(seed: int) -> Log:
    """All measures, mechanisms, behaviours and kinds of ids, good and bad records."""
    rng = np.random.default_rng(seed)
    log = Log(partitions=3, partition=1)
    mine = [u for u, p in enumerate(partitions_of(np.arange(600), 3)) if p == 1]
    names = [f"é{i}" for i in range(300)]
    mine += [u for u, p in zip(names, partitions_of(names, 3), strict=True) if p == 1]
    datasets = {
        "zcdp": {"budget": 0.7},
        "clip": {"budget": 0.3, "on_exhaustion": "clip"},
        "gdp": {"budget": 1.1, "measure": "gdp"},
        "renyi": {"budget": [1.3, 3.0, 9.0], "measure": "renyi", "orders": [1.5, 4.0, 32.0]},
        "renyi-clip": {
            "budget": [1.3, 3.0],
            "measure": "renyi",
            "orders": [1.5, 4.1],
            "on_exhaustion": "clip",
        },
        "pure": {"budget": 0.2, "measure": "approx-dp"},
    }
    steps = dict.fromkeys(datasets, 0)
    for name, policy in datasets.items():
        log.create(name, **policy)
        log.open(dataset=name)
    for _ in range(70):
        name = str(rng.choice(list(datasets)))
        users = [mine[i] for i in rng.choice(len(mine), rng.integers(0, 80), replace=False)]
        norms = rng.choice([0.0, 0.1, 0.5, 1.0, np.pi / 4, 2.0], len(users)) * rng.choice([1, 0.37])
        mechanism, scale = "gaussian", float(rng.choice([2.0, 3.3, 10.0]))
        if name == "pure":
            mechanism = str(rng.choice(["laplace", "pure-dp"]))
            norms, scale = norms / 10, 2.0
        step = steps[name] - int(rng.random() < 0.1 and steps[name] > 0)
        answer = log.charge(step, users, norms, scale, dataset=name, mechanism=mechanism)
        if isinstance(answer, Decision) and answer.step == steps[name]:
            steps[name] += 1
        if rng.random() < 0.05:
            log.send([b"", b"\xc1", b'{"type":"charge"}', None][rng.integers(4)])
    return log


def recording_of(log: Log) -> Recording:
    """What is kept of a log."""
    spent = {name: [list(pair) for pair in log.spent(name).items()] for name in log.ledger.datasets}
    ledger = log.ledger
    return Recording(ledger.partition, ledger.partitions, log.records, log.outputs, spent)


if __name__ == "__main__":
    for seed in range(2):
        path = HERE / f"{sys.argv[1]}-{seed}.msgpack"
        path.write_bytes(msgspec.msgpack.encode(recording_of(make_log(seed))))
