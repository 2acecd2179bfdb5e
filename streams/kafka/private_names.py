"""The private names of Faust, aiokafka and kafka-python on which this release relies.

A new release of these packages may rename them. An override under the old name would then never be
called: a limit on decompression would be off, for example, without any error. Worker and answerer
therefore check all names before they connect, and ``pyproject.toml`` has upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import CodeType
from typing import Final, NamedTuple

from streams.config import ConfigurationError


class PrivateName(NamedTuple):
    """A name, with the package that has it and the module here that uses it.

    Attributes:
        package: the distribution.
        owner: ``module:class`` whose code uses the name.
        name: of a method or an attribute.
        used_in: the module of ``streams``.
    """

    package: str
    owner: str
    name: str
    used_in: str


def _of(package: str, owner: str, used_in: str, *names: str) -> list[PrivateName]:
    return [PrivateName(package, owner, name, f"streams.{used_in}") for name in names]


_DRIVER: Final = "faust.transport.drivers.aiokafka"
_ACCUMULATOR: Final = "aiokafka.producer.message_accumulator"
PRIVATE_NAMES: Final = (
    *_of("faust-streaming", f"{_DRIVER}:AIOKafkaConsumerThread", "worker.transport",
         "_create_worker_consumer", "_ensure_consumer", "_fetch_records"),
    *_of("faust-streaming", f"{_DRIVER}:Consumer", "worker.transport",
         "_new_consumer_thread", "_wait_next_records", "_getmany", "_get_active_partitions"),
    *_of("faust-streaming", "faust:App", "worker.transport",
         "_create_directories", "_new_transport"),
    *_of("faust-streaming", "faust.worker:Worker", "worker.faust_app", "_sentinel_task"),
    *_of("aiokafka", "aiokafka.consumer.fetcher:Fetcher", "worker.transport",
         "MemoryRecords", "PartitionRecords"),
    *_of("aiokafka", "aiokafka.consumer.fetcher:PartitionRecords", "worker.transport",
         "_consumer_record"),
    *_of("aiokafka", "aiokafka:AIOKafkaConsumer", "worker.transport",
         "_fetch_max_wait_ms", "_max_poll_records"),
    *_of("aiokafka", "aiokafka:AIOKafkaProducer", "kafka.log", "_wait_on_metadata"),
    *_of("aiokafka", "aiokafka:AIOKafkaProducer", "kafka.fenced_producer",
         "_message_accumulator", "_txn_manager"),
    *_of("aiokafka", f"{_ACCUMULATOR}:MessageAccumulator", "kafka.fenced_producer",
         "_pending_batches", "_batches"),
    *_of("aiokafka", f"{_ACCUMULATOR}:MessageBatch", "kafka.fenced_producer", "_drain_waiter"),
    *_of("aiokafka", "aiokafka.producer.transaction_manager:TransactionManager",
         "kafka.fenced_producer", "_transaction_waiter"),
    *_of("kafka-python", "kafka:KafkaConsumer", "kafka.kafka_clients", "_fetcher"),
    *_of("kafka-python", "kafka.consumer.fetcher:Fetcher", "kafka.kafka_clients",
         "PartitionRecords"),
    *_of("kafka-python", "kafka.record.memory_records:MemoryRecords", "kafka.kafka_clients",
         "_buffer"),
    *_of("kafka-python", "kafka.admin:KafkaAdminClient", "kafka.facts", "_manager"),
)  # fmt: skip


def check_private_names() -> None:
    """Check that the code of the installed packages uses every private name.

    Raises:
        ConfigurationError: one is unused, so overriding or reading it would have no effect.
    """
    for package, owner, name, _ in PRIVATE_NAMES:
        if name not in _names_in(owner):
            raise ConfigurationError(
                f"{package} {version(package)} does not use {owner.replace(':', '.')}.{name}, on "
                "which this release relies: install the packages that dp-turnstile requires, with "
                "pip install dp-turnstile"
            )


@cache
def _names_in(owner: str) -> frozenset[str]:
    """Return the names that the functions of a class and its bases use; none if it is missing."""
    module, _, name = owner.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return frozenset()
    functions = [one for base in found.__mro__ for one in vars(base).values()]
    functions = [getattr(one, "fget", None) or getattr(one, "__func__", one) for one in functions]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    return frozenset(name for code in codes for name in _names_of(code))


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
