"""The journals of an answerer in memory, in a budget file and on Kafka behave in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from streams.answerer.file_journal import FileJournal
from streams.answerer.journal import Journal, JournalEntry
from streams.answerer.kafka_journal import KafkaJournal
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.config import Config
from streams.kafka.answer_topics import ensure_answer_topics
from streams.kafka.kafka_clients import new_admin
from streams.kafka.results import UnusableTopics
from streams.kafka.topics import ensure_topics
from streams.records.signatures import new_keys
from streams.sdk.budget_file import create_file
from tests.conformance.broker.conftest import BROKERS

Opened = Callable[..., Journal]


@pytest.fixture(params=[*BROKERS, "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens journals of datasets on topics on which nothing was written yet."""
    journals: list[Journal] = []
    pages = MemoryTopics()
    if request.param == "kafka":
        address = request.getfixturevalue("kafka")
        config = Config(kafka=address, prefix=f"t{uuid4().hex[:8]}.")
        ensure_answer_topics(config)
        ensure_answer_topics(config)  # again is fine
    path = str(tmp_path / "budgets.db")
    create_file(path, partitions=1)

    def opener(dataset: str = "d") -> Journal:
        makers: dict[str, Callable[[], Journal]] = {
            "memory": lambda: MemoryJournal(pages, dataset),
            "file": lambda: FileJournal(path, 30.0, dataset),
            "kafka": lambda: KafkaJournal(config, dataset),
        }
        journals.append(makers[request.param]())
        return journals[-1]

    yield opener
    for journal in journals:
        journal.close()


def entry(run: str, step: int, owner: str = "o", dataset: str = "d") -> JournalEntry:
    positions, windows = {0: step, 7: 2**40}, {"q": (0, 10 * step)}
    return JournalEntry(
        *("answered", dataset, run, 3, owner, step),
        positions=positions,
        windows=windows,
        answer=b"\x00\xff",
    )


def test_journal_entries_come_back_in_the_order_of_the_log(
    opened: Opened,
) -> None:
    first, second, other = opened(), opened(), opened()
    elsewhere = opened("d2")
    assert first.catch_up() == []
    first.append(entry("r", 0))
    other.append(entry("s", 5))
    elsewhere.append(entry("r", 7, dataset="d2"))
    second.append(entry("r", 1, "p"))
    first.append(entry("r", 2))
    wanted = [entry("r", 0), entry("s", 5), entry("r", 1, "p"), entry("r", 2)]
    assert list(first.catch_up()) == wanted
    assert first.catch_up() == []
    second.append(entry("r", 3, "p"))
    assert list(first.catch_up()) == [entry("r", 3, "p")]
    for journal in (second, other):
        assert list(journal.catch_up()) == [*wanted, entry("r", 3, "p")]
    assert list(elsewhere.catch_up()) == [entry("r", 7, dataset="d2")]
    assert len(opened().catch_up()) == 5


def test_what_was_written_last_is_there_when_it_is_read_back(opened: Opened) -> None:
    writer, reader = opened(), opened()
    for step in range(20):
        writer.append(entry("r", step))
        assert list(writer.catch_up()) == [entry("r", step)]
        assert list(reader.catch_up()) == [entry("r", step)]


def test_marks_that_are_forgotten_go_and_no_others_do(opened: Opened) -> None:
    first, other = opened(), opened()
    entries = [entry("r", step, owner) for step, owner in ((0, "o"), (1, "o"), (1, "p"), (2, "p"))]
    for one in entries:
        first.append(one)
    other.append(entry("s", 0))
    first.delete(entries[:2])
    first.delete([])
    first.append(entry("r", 3, "p"))  # after all of that
    left = [*entries[2:], entry("s", 0), entry("r", 3, "p")]
    assert list(opened().catch_up()) == list(other.catch_up()) == left
    # A journal that has read some of them reads on all the same.
    reading = opened()
    assert list(reading.catch_up()) == left
    first.delete(left[:1])
    first.append(entry("r", 4, "p"))
    assert list(reading.catch_up()) == [entry("r", 4, "p")]
    assert list(opened().catch_up()) == [*left[1:], entry("r", 4, "p")]


def test_answers_are_found_behind_a_place_and_by_their_run(opened: Opened) -> None:
    journal = opened()
    assert journal.published(0, "r") == []
    journal.publish(b"first", "r")
    journal.publish(b"not mine", "s")
    place = journal.end()
    journal.publish(b"second", "r")
    assert list(journal.published(0, "r")) == [b"first", b"second"]
    assert list(journal.published(0, "s")) == [b"not mine"]
    assert list(journal.published(place, "r")) == [b"second"]
    assert list(opened().published(place, "r")) == [b"second"]


@pytest.mark.process
def test_signed_journal_finds_only_signed_answers(kafka: str) -> None:
    (private, public), (other, _) = new_keys(), new_keys()
    plain = Config(kafka=kafka, prefix=f"t{uuid4().hex[:8]}.")
    ensure_topics(plain)  # answers are signed for the log that they are about
    ensure_answer_topics(plain)
    with ExitStack() as opened:

        def journal(**keys: str) -> KafkaJournal:
            made = KafkaJournal(replace(plain, **keys), "d")
            return opened.enter_context(closing(made))

        signing, reading = journal(signing_key=private), journal(signing_key=private)
        ringed = journal(signing_key=private, answer_keys=public)
        for writer, answer in (
            (journal(), b"unsigned"),
            (signing, b"first"),
            (journal(signing_key=other), b"by another"),
            (ringed, b"second"),
        ):
            writer.publish(answer, "r")
        assert reading.published(0, "r") == ringed.published(0, "r") == [b"first", b"second"]
        assert journal().published(0, "r") == [b"unsigned", b"first", b"by another", b"second"]


@pytest.mark.process
def test_answers_may_expire_and_journals_are_compacted(kafka: str) -> None:
    config = Config(kafka=kafka, prefix=f"t{uuid4().hex[:8]}.")
    ensure_answer_topics(config)

    def alter(name: str, **changes: str) -> None:
        settings = {key.replace("_", "."): value for key, value in changes.items()}
        topic = ConfigResource(ConfigResourceType.TOPIC, config.topic(name), settings)
        with closing(new_admin(config)) as admin:
            admin.alter_configs([topic])

    alter("answers", retention_ms="86400000")
    alter("answers-state", segment_bytes="33554432")
    ensure_answer_topics(config)
    for name, policy in (("answers-state", "delete"), ("answers", "compact")):
        alter(name, cleanup_policy=policy)
        with pytest.raises(UnusableTopics):
            ensure_answer_topics(config)
        alter(name, cleanup_policy="delete" if policy == "compact" else "compact")
    ensure_answer_topics(config)
