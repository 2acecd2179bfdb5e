"""The Faust Kafka transport, with the changes that a worker needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import (
    CorruptRecordException,
    IllegalStateError,
    NoOffsetForPartitionError,
)
from aiokafka.record.default_records import DefaultRecordBatch
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from streams.kafka.batches import FetchedBatches, RecordBatch
from streams.worker.ports import End, Ending, StreamRecord

_PAUSE = 0.005  # seconds
_FETCH_WAIT_MS = 100
"""The time for which a broker without new records holds a fetch. Requests on the same connection
wait for it, such as the offset request of an acquisition. Faust's value of 1.5 seconds made a
failover that much slower."""


class _PartitionRecords(fetcher.PartitionRecords):
    """The records of one fetch from one partition."""

    def _consumer_record(self, tp: Any, record: Any) -> StreamRecord:
        return StreamRecord(tp.topic, tp.partition, *record)


def read_batches_within_limits(kind: type[RecordBatch]) -> None:
    """Read batches as of this kind in every aiokafka consumer of this process.

    aiokafka's own reader expands compressed batches without a limit.
    """
    fetcher.MemoryRecords = partial(
        FetchedBatches, kind=kind, control=DefaultRecordBatch, corrupt=CorruptRecordException
    )
    fetcher.PartitionRecords = _PartitionRecords


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """Runs the Kafka client."""

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = _FETCH_WAIT_MS
        return consumer

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        """Fetch directly in the loop of this thread, without Faust's queue of calls."""
        consumer = self._ensure_consumer()
        fetch = self._fetch_records(
            consumer, active_partitions, timeout=timeout, max_records=consumer._max_poll_records
        )
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fetch, self.thread_loop))


class AcquiringConsumer(driver.Consumer):
    """A consumer whose start offsets come from Redis."""

    app: Any  # a ``TurnstileApp``

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Acquire the assigned partitions and seek to where their states continue.

        Faust calls this after every rebalance, to seek to the committed offsets of the group. A
        seek in ``on_partitions_assigned`` instead would be undone by it.
        """
        app = self.app
        try:
            while True:
                assigned = [tp for tp in self.assignment() if tp.topic == app.norms_topic]
                positions = await app.owned.acquire([tp.partition for tp in assigned])
                seeks = {
                    tp: positions[tp.partition] for tp in assigned if tp.partition in positions
                }
                try:
                    if seeks:
                        await self.seek_wait(seeks)
                    return seeks
                except IllegalStateError:
                    continue  # a rebalance took one of them away meanwhile
        except Exception as error:
            # Faust would log the error and continue at the consumer's present offsets.
            end: End = app.end
            end(Ending.FAILED, f"cannot acquire the assigned partitions: {error}", error)

    async def _wait_next_records(self, timeout: float) -> Any:
        if self.flow_active and not self._get_active_partitions():
            await asyncio.sleep(_PAUSE)  # Faust sleeps for a second
            return {}, self._get_active_partitions()
        return await super()._wait_next_records(timeout)

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        # Faust would pass each record on its own through tasks, a queue, a stream and an agent.
        # With a charge to several partitions, the first was decided and published before the
        # records of the next arrived. So the app gets all records of a fetch, and Faust gets none.
        app = self.app
        decided = {tp for tp in active_partitions if app.owned.decides(tp.partition)}
        wanted = {tp for tp in decided if app.owned.has_room(tp.partition)}
        if not wanted:
            await asyncio.sleep(_PAUSE)
            return {}
        fetched = await self._fetched(wanted, timeout if wanted == decided else _PAUSE)
        generation = app.consumer_generation_id
        for record in chain.from_iterable(fetched.values()):
            if generation != app.consumer_generation_id:
                break  # a rebalance took place while the queue was full: the rest is fetched again
            await app.take(record)
        return {}

    async def _fetched(self, wanted: set[TP], timeout: float) -> Any:
        try:
            return await super()._getmany(wanted, timeout)
        except self.consumer_stopped_errors:
            raise
        except NoOffsetForPartitionError:
            return {}  # a fetch from before a rebalance: the start offset is not known yet
        except Exception as error:
            # Above all a fetch at an offset that the log does not have: the next acquisition of the
            # partition finds the reason.
            self.app.end(Ending.FAILED, f"cannot read the log: {error!r}", error)


class NoTables(TableManager):
    """Skips Faust's wait of a second for its tables at every start."""

    async def sleep(self, n: Any, *, loop: Any = None) -> None:
        """Return at once: the app has no tables."""


class AcquiringTransport(driver.Transport):
    """Faust's Kafka transport with ``AcquiringConsumer``."""

    Consumer = AcquiringConsumer
