"""Keeps what a release leaves in Redis, with the log that it comes from.

    git worktree add --detach RELEASE COMMIT
    PYTHONPATH=RELEASE python tests/recorded/redis_dump.py tests/recorded/NAME.redis

It runs the service of that release, so this file may use nothing but what the first one had. Files
are added, and never changed. Partition 0 is kept with its users half in pages, if the release had
them, and half in what came since.
"""

import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import redis
from kafka import KafkaConsumer, TopicPartition

from streams import Turnstile
from streams.local import LocalStack

PREFIX, PARTITIONS = "kept.", 2
WORKER = """
import pathlib, sys
from streams.cli.main import main
flag = pathlib.Path({flag!r})
try:
    from streams.worker.compaction import Compaction
    Compaction.is_due = lambda self: flag.exists()
except ImportError:
    from streams.worker.processor import Processor
    Processor.wants_fold = lambda self: flag.exists()
sys.exit(main(["worker"]))
"""


class Dump(msgspec.Struct):
    """What was kept of partition 0, and its log."""

    topic: str  # hexadecimal
    partitions: int
    records: list[tuple[int, bytes | None]]  # offset and value
    decided: list[bytes]  # what was said to topic halts
    keys: dict[str, dict[bytes, bytes] | list[bytes]]  # without the prefix


def charge(run, rng: np.random.Generator, users: np.ndarray | list[str], steps: int) -> None:
    for _ in range(steps):
        some = rng.choice(len(users), 25, replace=False)
        run.charge([users[i] for i in some], rng.random(25), noise_stddev=2.0)


def contents(client: redis.Redis) -> dict[str, dict[bytes, bytes] | list[bytes]]:
    found = {}
    for key in client.scan_iter(f"{PREFIX}{{norms-0}}:*"):
        name = key.decode().removeprefix(f"{PREFIX}{{norms-0}}:")
        is_list = client.type(key) == b"list"
        found[name] = client.lrange(key, 0, -1) if is_list else client.hgetall(key)
    return found


def records(kafka: str, topic: str) -> list[tuple[int, bytes | None]]:
    consumer = KafkaConsumer(bootstrap_servers=kafka, group_id=None, consumer_timeout_ms=2000)
    place = TopicPartition(PREFIX + topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found = [(record.offset, record.value) for record in consumer]
    consumer.close()
    return found


def wait(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def main(out: Path) -> None:
    flag = Path(tempfile.mkdtemp()) / "compact"
    rng = np.random.default_rng(11)
    command = (sys.executable, "-c", WORKER.format(flag=str(flag)))
    with LocalStack(
        workers=1, partitions=PARTITIONS, prefix=PREFIX, worker_command=command
    ) as stack:
        client = redis.Redis.from_url(stack.redis)
        with Turnstile(stack.kafka, prefix=PREFIX, timeout=60.0) as turnstile:
            turnstile.create_dataset("numbers", budget=0.4)
            turnstile.create_dataset("names", measure="gdp", budget=0.9, on_exhaustion="clip")
            runs = [
                (turnstile.run("numbers", "r"), np.arange(60)),
                (turnstile.run("names", "r"), [f"é{i}" for i in range(60)]),
            ]
            for run, users in runs:
                charge(run, rng, users, 6)
            flag.touch()
            wait(lambda: not any(len(contents(client).get(k, ())) for k in ("changes", "deltas")))
            flag.unlink()
            for run, users in runs:
                charge(run, rng, users, 6)
        log = records(stack.kafka, "norms")
        stack.stop_worker(0)
        keys = contents(client)
        assert int(keys["meta"][b"next"]) == log[-1][0] + 1
        topic = keys["meta"].get(b"topic", b"").decode()
        said = [value for _, value in records(stack.kafka, "halts")]
    out.write_bytes(msgspec.msgpack.encode(Dump(topic, PARTITIONS, log, said, keys)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
