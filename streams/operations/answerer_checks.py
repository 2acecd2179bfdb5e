"""The checks of answerers: their topics, input and health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from streams.config import Config
from streams.kafka.answer_topics import ANSWER_NEEDS, ANSWER_SETTINGS, ANSWERS, ANSWERS_STATE
from streams.kafka.facts import TopicFacts
from streams.operations.check_tables import Facts, Level, Row, Table
from streams.operations.endpoints import AnswererSeen
from streams.operations.server_checks import altering, copies_of, setting_of

AREA = "answerers"


def of_answerers(facts: Facts, config: Config) -> Iterator[Table]:
    """Yield the checks of answerers; none if the service never had any."""
    if not isinstance(facts.kafka, str):
        known = facts.kafka.answers
        yield Table(AREA, list(_topics(known, config, bool(facts.answerers))))
        for name, topic in (known or {}).items():
            title = config.topic(name)
            yield Table(AREA, list(_topic(name, title, topic, config)), {"topic": title})
    for one in facts.answerers:
        yield Table(AREA, [_health(one)], {"answerer": one.address})
        if one.topic in facts.inputs:
            rows = list(_input(one, facts.inputs[one.topic], config))
            yield Table(AREA, rows, {"answerer": one.address, "topic": one.topic})


def _topics(known: Mapping[str, TopicFacts] | None, config: Config, answers: bool) -> Iterator[Row]:
    """Yield the checks of the topics together; ``answers``: whether there are answerers."""
    there = {ANSWERS, ANSWERS_STATE} if known is None else known.keys()
    creates = "The next answerer creates it, or `turnstile topics create`"
    yield (
        known is None and answers and Level.WARNING,
        "this user may not see their topics",
        "They are not compared with the needs of answerers",
        "Give this user Describe on them: `turnstile acl`",
    )
    yield (
        ANSWERS_STATE not in there and (there or answers) and Level.WRONG,
        f"there is no {config.topic(ANSWERS_STATE)}, the record of answered windows",
        "If it was deleted, runs that have answered cannot continue, and a new run would charge "
        "the answered windows again",
        f"{creates}. Give each file of queries another run name, and a start after its last "
        "answer: `turnstile answers` shows it",
    )
    yield (
        ANSWERS not in there and (there or answers) and Level.WRONG,
        f"there is no {config.topic(ANSWERS)}",
        "No answer can be published, and published answers are lost",
        creates,
    )


def _topic(name: str, title: str, topic: TopicFacts, config: Config) -> Iterator[Row]:
    yield from copies_of(title, topic)
    yield (
        topic.partitions != 1 and Level.WRONG,
        f"{title} has {topic.partitions} partitions, and one is needed",
        "Answers need the order of a single partition, so no answerer starts",
        "If nothing was answered yet, delete it and run `turnstile topics create`",
    )
    needed = "Marks or answers could be lost, or kept forever, so no answerer starts"
    for setting in ANSWER_NEEDS:
        wanted = ANSWER_SETTINGS[name][setting]
        yield setting_of(config, title, topic, setting, wanted, None, needed)
    if name != ANSWERS_STATE:
        return
    yield (
        topic.replicas == 1 and Level.WARNING,
        f"{title} has one copy of every record",
        "If one broker loses its disk, runs that have answered cannot continue, and a new run "
        "would charge the answered windows again",
        "Keep three copies (`kafka-reassign-partitions`; TURNSTILE_REPLICATION=3 for topics that "
        "are created) and min.insync.replicas=2",
    )


def _health(one: AnswererSeen) -> Row:
    if not one.problem:
        closes = ""
        if one.closes is not None:
            moment = datetime.fromtimestamp(one.closes, UTC).isoformat(timespec="seconds")
            closes = f", its next window closes at {moment}"
        return Level.OK, f"{one.address} answers{closes}; {one.lag:.0f} events wait"
    return (
        Level.WRONG if one.ready or not one.topic else Level.WARNING,
        f"{one.address}: {one.problem}",
        "Windows are answered late or not at all; none is answered twice",
        "Read its log; start it again if it is gone",
    )


def _input(one: AnswererSeen, settings: Mapping[str, str] | None, config: Config) -> Iterator[Row]:
    """Yield the checks whether the input keeps the events of open windows, to be read again."""
    means = "A restarted answerer cannot rebuild it and exits: the run is over"
    there = settings or {}
    kept, size = int(there.get("retention.ms", "-1")) / 1000, there.get("retention.bytes", "-1")
    yield (
        settings is None and Level.WRONG,
        f"{one.address} reads {one.topic}, which does not exist",
        "No events arrive, and open windows cannot be rebuilt",
        "Restore it. A new topic of this name is another input, for another run",
    )
    yield (
        "compact" in there.get("cleanup.policy", "") and Level.WRONG,
        f"{one.topic}, which {one.address} reads, is compacted",
        "Events of a window may be missing when it is rebuilt. Its charge then differs and is "
        "rejected",
        altering(config, one.topic, "cleanup.policy", "delete"),
    )
    yield (
        one.clock == "arrival" and 0 <= kept < one.keeps and Level.WRONG,
        f"{one.topic} keeps events for {kept:g} s, and windows of {one.address} need them for "
        f"{one.keeps:g} s",
        f"Events are deleted while their window is open. {means}",
        altering(config, one.topic, "retention.ms", f"{2000 * one.keeps:.0f}"),
    )
    yield (
        int(size) >= 0 and Level.WARNING,
        f"{one.topic} has retention.bytes={size}",
        f"If there are many events, those of an open window are deleted. {means}",
        altering(config, one.topic, "retention.bytes", "-1"),
    )
