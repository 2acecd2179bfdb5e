"""The journal on Kafka: the topics `answers-state` and `answers`, of one partition each.

Every entry has its own key. To delete an entry, the journal writes a tombstone for its key, and
Kafka removes both by compaction. The topic then contains the entries that are needed, and those in
segments that Kafka has not cleaned yet.

With a signing key, answers are signed, and answers without a valid signature are ignored. So no
other program can stop an answerer by writing to `answers`. Entries are not signed: only the
answerer may have the right to write them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

from streams.answerer.journal import JournalEntry, JournalUnavailable, decode_entry, key_of
from streams.config import Config
from streams.kafka.answer_topics import ANSWERS, ANSWERS_STATE
from streams.kafka.authentic import (
    ANSWERERS,
    RecordSigner,
    RecordVerifier,
    record_signer_of,
    verifier_of,
)
from streams.kafka.kafka_clients import new_producer, new_reader
from streams.kafka.security import explained
from streams.kafka.topics import Topics
from streams.records.signatures import Content, TrustStore

_POLL_MS = 200
_FETCH_WAIT_MS = 5  # short: an entry that was just written is available


class KafkaJournal:
    """The entries of a dataset's runs, and their published answers.

    Args:
        config: the address of Kafka.
        dataset: the dataset whose entries are read.

    Raises:
        JournalUnavailable: no broker answered.
        ConfigurationError: the signing key or the trust store is invalid.
        TopicsUnavailable: the id of the log is not available.
    """

    def __init__(self, config: Config, dataset: str) -> None:
        self._config = config
        self._dataset = f"{dataset}/".encode()
        self._entries = TopicPartition(config.topic(ANSWERS_STATE), 0)
        self._answers = TopicPartition(config.topic(ANSWERS), 0)
        self._written = 0  # the offset after the last entry of this journal
        self._signer, self._verifier = _signing(config)
        with self._reaching():
            self._reader = new_reader(config, fetch_max_wait_ms=_FETCH_WAIT_MS)
            self._reader.assign([self._entries])
            self._reader.seek_to_beginning(self._entries)
            self._producer = new_producer(config)

    def append(self, entry: JournalEntry) -> None:
        """Write an entry; return when all required replicas have it."""
        sent = self._sent(self._entries, key_of(entry), msgspec.msgpack.encode(entry))
        self._written = sent.offset + 1

    def catch_up(self) -> Sequence[JournalEntry]:
        """Return the entries of the dataset since the last call."""
        with self._reaching():
            end = max(self._end(self._reader, self._entries), self._written)
            found: dict[bytes, JournalEntry] = {}
            for record in self._read(self._reader, self._entries, end):
                if not record.key.startswith(self._dataset):
                    continue
                if record.value:
                    found[record.key] = decode_entry(record.value, self._entries.topic)
                else:
                    found.pop(record.key, None)
            return list(found.values())

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        """Write a tombstone for each entry, without waiting."""
        with self._reaching():
            for entry in entries:
                self._send(self._entries, key_of(entry), None)

    def end(self) -> int:
        """Return the end offset of `answers`."""
        with self._reaching():
            return self._end(self._reader, self._answers)

    def publish(self, answer: bytes, run: str) -> None:
        """Publish an answer of a run, signed if there is a key."""
        headers: list[tuple[str, bytes]] = []
        key = self._dataset + run.encode()
        if self._signer is not None:
            content = Content(key, answer)
            topic, partition = self._answers.topic, self._answers.partition
            (headers,) = self._signer.headers(topic, partition, [content])
        self._sent(self._answers, key, answer, headers)

    def published(self, since: int, run: str) -> Sequence[bytes]:
        """Return the authentic answers of a run from an offset on."""
        key = self._dataset + run.encode()
        with self._reaching():
            reader = new_reader(self._config)
            try:
                reader.assign([self._answers])
                begin = reader.beginning_offsets([self._answers])[self._answers]
                reader.seek(self._answers, max(begin, since))
                end = self._end(reader, self._answers)
                return [
                    answer.value
                    for answer in self._read(reader, self._answers, end)
                    if answer.key == key and answer.value and self._is_believed(answer)
                ]
            finally:
                reader.close()

    def close(self) -> None:
        """Disconnect."""
        self._producer.close()
        self._reader.close()

    def _sent(
        self,
        place: TopicPartition,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Any:
        """Send a record; return its metadata when all required replicas have it."""
        with self._reaching():
            return self._send(place, key, value, headers).get(timeout=self._config.timeout)

    def _send(
        self,
        place: TopicPartition,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Any:
        return self._producer.send(
            place.topic, value=value, key=key, partition=place.partition, headers=list(headers)
        )

    def _is_believed(self, answer: Any) -> bool:
        return self._verifier is None or self._verifier.admits(
            answer.topic, answer.partition, (answer.key, answer.value), answer.headers
        )

    @staticmethod
    def _read(reader: Any, place: TopicPartition, end: int) -> Iterator[Any]:
        """Yield the records with a key, from the reader's position up to an offset."""
        while reader.position(place) < end:
            for records in reader.poll(timeout_ms=_POLL_MS).values():
                yield from (record for record in records if record.key)

    @staticmethod
    def _end(reader: Any, place: TopicPartition) -> int:
        end: int = reader.end_offsets([place])[place]
        return end

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            raise JournalUnavailable(
                f"the topics of answers at {self._config.kafka} are unavailable: {explained(error)}"
            ) from error


def _signing(config: Config) -> tuple[RecordSigner | None, RecordVerifier | None]:
    """Return the signer and the verifier of answers; the verifier trusts at least the own key."""
    if not (config.signing_key or config.answer_keys):
        return None, None
    with Topics(config) as topics:
        log = topics.look().topic
    signer = record_signer_of(config, log, ANSWERERS)
    verifier = verifier_of(config, log, ANSWERERS)
    if signer is not None and verifier is None:
        verifier = RecordVerifier(TrustStore(signer.public), log, ANSWERERS)
    return signer, verifier
