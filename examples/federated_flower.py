"""Federated learning with Flower, in which each device decides with its own privacy filter.

    pip install 'flwr[simulation]'    # and this package
    python federated_flower.py        # simulates 100 devices, which store spent-0.db, ...

Each device clips its update, charges its own filter, and adds all of the noise itself. So its
answers are private towards the server too, whichever devices the server asks and whatever model it
sends. If the filter denies a round, the device answers with noise alone: the decision is private.
The guarantee compares a device that has its data with the same device without data.

Flower sends this code to the devices. A device must run no other code on its data: start its
SuperNode with ``--trusted-entities``. It must keep ``spent-N.db``. Not covered: how long an answer
takes, and whether the process is killed, for example for lack of memory.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from fractions import Fraction
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from accounting import Gaussian, GdpFilter, gdp_budget
from accounting.release import ExactNoise, clip_rows, row_norms
from accounting.research import LocalFilter

RULE = GdpFilter(gdp_budget(epsilon=4.0, delta=1e-6))  # of each device, for all rounds together
CLIP_NORM = 1.0
NOISE = 4.0  # standard deviation in every coordinate of a device's answer
GRID = 2.0**-20  # a power of two, so sums of its multiples are exact
DEVICES, ROUNDS = 100, 20


def is_admitted(device: object, norm: float) -> bool:
    """Charge the device's filter durably; return whether its data may go into the round."""
    with closing(sqlite3.connect(f"spent-{device}.db", isolation_level=None)) as file:
        file.execute("PRAGMA synchronous = EXTRA")
        file.execute("BEGIN EXCLUSIVE")  # two messages at once are charged one after the other
        file.execute("CREATE TABLE IF NOT EXISTS spent (budget INTEGER PRIMARY KEY, units INTEGER)")
        stored = [units for (units,) in file.execute("SELECT units FROM spent ORDER BY budget")]
        local = LocalFilter(RULE, spent=stored or None)
        admitted = local.admit(Gaussian(NOISE), norm)
        file.executemany("REPLACE INTO spent VALUES (?, ?)", enumerate(local.spent))
        file.execute("COMMIT")
    return admitted


def flat(arrays: Any) -> np.ndarray:
    """Return all entries of a Flower record as one row, (1, d)."""
    return np.hstack([array.ravel() for array in arrays.to_numpy_ndarrays()], dtype=float)[None]


def individual_filter(message: Message, context: Context, train: Any) -> Message:
    """Replace a client's answer by the model plus its clipped, charged and noisy update (a mod)."""
    if message.metadata.message_type != "train":
        raise ValueError("only training is charged: set fraction_evaluate=0.0")
    ((name, model),) = message.content.array_records.items()
    before = flat(model)
    update = np.zeros_like(before)
    try:
        ((_, trained),) = train(message, context).content.array_records.items()
        update += clip_rows(flat(trained) - before, [CLIP_NORM])
    except Exception as error:  # it may follow from the data, so the server must not see it
        print(f"{error!r}: this device answers with noise alone", file=sys.stderr)
    norm = min(float(row_norms(update)[0]), CLIP_NORM)
    if not is_admitted(context.node_config["partition-id"], norm):  # before anything is sent
        update[:] = 0.0
    noise, stddev = ExactNoise(), Fraction(NOISE) / Fraction(GRID)
    units = np.trunc(update[0] / GRID) + [noise.rounded_normal(stddev) for _ in update[0]]
    ends = np.cumsum([array.numpy().size for array in model.values()])
    parts = np.split(before[0] + units * GRID, ends[:-1])
    arrays = ArrayRecord(
        {
            key: Array(part.reshape(old.shape).astype(old.dtype))
            for (key, old), part in zip(model.items(), parts, strict=True)
        }
    )
    # Nothing else of the client's answer leaves: neither its losses nor its number of examples.
    content = RecordDict({name: arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


client, server = ClientApp(mods=[individual_filter]), ServerApp()


def examples(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features, and labels of -1 and 1: here random ones."""
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return rows, np.sign(rows[:, 0] - 0.5 * rows[:, 1])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take one gradient step of logistic regression on the device's 20 examples."""
    rows, labels = examples(int(context.node_config["partition-id"]), 20)
    (model,) = message.content["arrays"].to_numpy_ndarrays()
    slopes = labels / (1.0 + np.exp(labels * (rows @ model)))
    arrays = ArrayRecord([model + 4.0 * (slopes[:, None] * rows).mean(axis=0)])
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Average the answers of all devices in every round."""
    start = ArrayRecord([np.zeros(5)])
    result = FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=ROUNDS)
    rows, labels = examples(2**32, 1_000)
    right = np.mean(np.sign(rows @ result.arrays.to_numpy_ndarrays()[0]) == labels)
    print(f"{right:.0%} of the labels of examples outside the devices are right")


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=DEVICES)
