"""The private names of Faust, aiokafka and kafka-python on which this release relies.

A new release of these packages may rename them. An override under the old name would then never be
called: a limit on decompression would be off, for example, without any error. Worker and answerer
therefore check all names before they connect, and ``pyproject.toml`` has upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import CodeType
from typing import Final

from streams.config import ConfigurationError

_DRIVER: Final = "faust.transport.drivers.aiokafka"
_ACCUMULATOR: Final = "aiokafka.producer.message_accumulator"
_TRANSACTIONS: Final = "aiokafka.producer.transaction_manager:TransactionManager"
PRIVATE_NAMES: Final[Sequence[tuple[str, str, str]]] = (
    # the distribution, module:class whose code uses the names, and the names
    (
        "faust-streaming",
        f"{_DRIVER}:AIOKafkaConsumerThread",
        "_create_worker_consumer _ensure_consumer _fetch_records",
    ),
    (
        "faust-streaming",
        f"{_DRIVER}:Consumer",
        "_new_consumer_thread _wait_next_records _getmany _get_active_partitions",
    ),
    ("faust-streaming", "faust:App", "_create_directories _new_transport"),
    ("faust-streaming", "faust.worker:Worker", "_sentinel_task"),
    ("aiokafka", "aiokafka.consumer.fetcher:Fetcher", "MemoryRecords PartitionRecords"),
    ("aiokafka", "aiokafka.consumer.fetcher:PartitionRecords", "_consumer_record"),
    ("aiokafka", "aiokafka:AIOKafkaConsumer", "_fetch_max_wait_ms _max_poll_records"),
    (
        "aiokafka",
        "aiokafka:AIOKafkaProducer",
        "_wait_on_metadata _message_accumulator _txn_manager",
    ),
    ("aiokafka", f"{_ACCUMULATOR}:MessageAccumulator", "_pending_batches _batches"),
    ("aiokafka", f"{_ACCUMULATOR}:MessageBatch", "_drain_waiter"),
    ("aiokafka", _TRANSACTIONS, "_transaction_waiter"),
    ("kafka-python", "kafka:KafkaConsumer", "_fetcher"),
    ("kafka-python", "kafka.consumer.fetcher:Fetcher", "PartitionRecords"),
    ("kafka-python", "kafka.record.memory_records:MemoryRecords", "_buffer"),
    ("kafka-python", "kafka.admin:KafkaAdminClient", "_manager"),
)


def check_private_names() -> None:
    """Raise ``ConfigurationError`` unless the installed packages use every private name."""
    for package, owner, names in PRIVATE_NAMES:
        for name in set(names.split()) - _names_in(owner):
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
