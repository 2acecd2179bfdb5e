"""Record logs and what the ledger made of them.

    python -m tests.recorded.record

A ledger that applies a recorded log differently charges users differently when a partition is
rebuilt. The texts of rejects, which are for people, are not recorded.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from streams.ledger import parts
from streams.ledger.ledger import Channel, Output
from streams.records import (
    Rejected,
    encode_output,
)
from tests.unit.ledger.ledgers import Log
from tests.unit.ledger.random_logs import RandomLog

HERE = Path(__file__).parent
SEEDS = range(7)
COLLECTING = 6
"""The seed of the log that collects norms, and whose decisions are published in small parts."""


class StoredState(msgspec.Struct):
    """The stored state of a partition in the middle of a log: merged pages, and later deltas."""

    next: int  # the offset to apply next
    pages: dict[str, bytes]
    deltas: list[bytes]


class Recording(msgspec.Struct, omit_defaults=True):
    """One partition's records, and the outputs, spent units, head and state they led to."""

    partition: int
    partitions: int
    records: list[bytes | None]
    outputs: list[list[Output]]
    spent: dict[str, list]
    head: bytes  # of the chain
    stored: StoredState
    part_bytes: int = parts.MAX_PART_BYTES


def random_log(seed: int) -> Log:
    """Return a log of all kinds of records, the same for each seed."""
    log = RandomLog(seed, partitions=3, partition=1, collects=seed == COLLECTING).grow(400)
    log.audit()
    return log


def with_parts_of(size: int) -> AbstractContextManager[Any]:
    """Publish decisions in parts of at most so many bytes."""
    return patch.object(parts, "MAX_PART_BYTES", size)


def recording_of(log: Log) -> Recording:
    """What is kept of a log."""
    spent = {
        name: [list(pair) for pair in log.spent(name).items()] for name in log.ledger.state.datasets
    }
    ledger = log.ledger
    published = [[_without_text(output) for output in each] for each in log.outputs]
    return Recording(
        ledger.state.partition,
        ledger.state.partitions,
        log.records,
        published,
        spent,
        ledger.chain.head,
        _state_in_the_middle(log),
        parts.MAX_PART_BYTES,
    )


def _state_in_the_middle(log: Log) -> StoredState:
    """Return the state after three quarters of a log, merged after the first half."""
    again = Log(log.ledger.state.partitions, log.ledger.state.partition)
    half, quarters = len(log.records) // 2, 3 * len(log.records) // 4
    for record in log.records[:half]:
        again.send(record)
    state = again.ledger.state
    merged = {name: state.take_page(name) for name in state.unmerged()}
    for record in log.records[half:quarters]:
        again.send(record)
    pages = {name: page for name, page in merged.items() if page is not None}
    return StoredState(quarters, pages, again.changes[half:])


def _without_text(output: Output) -> Output:
    """Return an output without the text of a reject, which may be worded otherwise."""
    if output.channel is not Channel.REJECTS:
        return output
    rejected = msgspec.msgpack.decode(output.value, type=Rejected)
    value = encode_output(msgspec.structs.replace(rejected, detail=""))
    return msgspec.structs.replace(output, value=value)


if __name__ == "__main__":
    for seed in SEEDS:
        with with_parts_of(600 if seed == COLLECTING else parts.MAX_PART_BYTES):
            recorded = recording_of(random_log(seed))
        (HERE / f"{seed}.msgpack").write_bytes(msgspec.msgpack.encode(recorded))
