"""Derives findings from the facts about answerers: their topics, input and health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from streams.config import Config
from streams.kafka.answers import ANSWER_NEEDS, ANSWER_SETTINGS, ANSWERS, ANSWERS_STATE
from streams.kafka.facts import TopicFacts
from streams.operations.endpoints import AnswererSeen
from streams.operations.findings import Facts, Finding, Level
from streams.operations.servers import copies_of, kept_and_copied

AREA = "answerers"


def of_answerers(facts: Facts, config: Config) -> Iterator[Finding]:
    """Yield the findings about answerers; none if the service never had any."""
    yield from _of_topics(facts, config)
    for one in facts.answerers:
        yield replace(_of_answerer(one), about={"answerer": one.address})
        about = {"answerer": one.address, "topic": one.topic}
        for finding in _of_input(one, facts.inputs, config):
            yield replace(finding, about=about)


def _of_topics(facts: Facts, config: Config) -> Iterator[Finding]:
    if isinstance(facts.kafka, str):
        return
    known = facts.kafka.answers
    if known is None:
        if facts.answerers:
            yield _finding(
                Level.WARNING,
                "this user may not see their topics",
                "They are not compared with the needs of answerers",
                "Give this user Describe on them: `turnstile acl`",
            )
        return
    there = known.keys()
    if ANSWERS_STATE not in there and (there or facts.answerers):
        yield _finding(
            Level.WRONG,
            f"there is no {config.topic(ANSWERS_STATE)}, the record of answered windows",
            "If it was deleted, runs that have answered cannot continue, and a new run would "
            "charge the answered windows again",
            "The next answerer creates it, or `turnstile topics create`. Give each file of queries "
            "another run name, and a start after its last answer: `turnstile answers` shows it",
        )
    if ANSWERS not in there and (there or facts.answerers):
        yield _finding(
            Level.WRONG,
            f"there is no {config.topic(ANSWERS)}",
            "No answer can be published, and published answers are lost",
            "The next answerer creates it, or `turnstile topics create`",
        )
    for name, topic in known.items():
        yield from _of_topic(name, topic, config)


def _of_topic(name: str, topic: TopicFacts, config: Config) -> Iterator[Finding]:
    title = config.topic(name)
    found = list(copies_of(title, topic, AREA))
    if topic.partitions != 1:
        found.append(
            _finding(
                Level.WRONG,
                f"{title} has {topic.partitions} partitions, and one is needed",
                "Answers need the order of a single partition, so no answerer starts",
                "If nothing was answered yet, delete it and run `turnstile topics create`",
            )
        )
    for setting in ANSWER_NEEDS:
        actual, wanted = topic.settings.get(setting), ANSWER_SETTINGS[name][setting]
        if actual not in (None, wanted):
            found.append(
                _finding(
                    Level.WRONG,
                    f"{title} has {setting}={actual}, and {wanted} is needed",
                    "Marks or answers could be lost, or kept forever, so no answerer starts",
                    _command(config, title, setting, wanted),
                )
            )
    if name == ANSWERS_STATE:
        if topic.replicas == 1:
            found.append(
                _finding(
                    Level.WARNING,
                    f"{title} has one copy of every record",
                    "If one broker loses its disk, runs that have answered cannot continue, and a "
                    "new run would charge the answered windows again",
                    "Keep three copies (`kafka-reassign-partitions`; TURNSTILE_REPLICATION=3 for "
                    "topics that are created) and min.insync.replicas=2",
                )
            )
        most = int(ANSWER_SETTINGS[name]["segment.bytes"])
        if int(topic.settings.get("segment.bytes", most)) > most:
            found.append(
                _finding(
                    Level.WARNING,
                    f"{title} has segment.bytes={topic.settings['segment.bytes']}, and {most} is "
                    "advised",
                    "A starting answerer reads up to this much that was not compacted",
                    _command(config, title, "segment.bytes", str(most)),
                )
            )
    found = found or [_finding(Level.OK, kept_and_copied(title, topic))]
    yield from (replace(finding, about={"topic": title}) for finding in found)


def _of_answerer(one: AnswererSeen) -> Finding:
    if one.problem:
        return _finding(
            Level.WRONG if one.ready or not one.topic else Level.WARNING,
            f"{one.address}: {one.problem}",
            "Windows are answered late or not at all; none is answered twice",
            "Read its log; start it again if it is gone",
        )
    closes = "" if one.closes is None else f", its next window closes at {_moment(one.closes)}"
    return _finding(Level.OK, f"{one.address} answers{closes}; {one.lag:.0f} events wait")


def _of_input(
    one: AnswererSeen, inputs: Mapping[str, Mapping[str, str] | None], config: Config
) -> Iterator[Finding]:
    """Yield whether the input keeps the events of open windows, which may be read again."""
    if one.topic not in inputs:
        return
    settings = inputs[one.topic]
    if settings is None:
        yield _finding(
            Level.WRONG,
            f"{one.address} reads {one.topic}, which does not exist",
            "No events arrive, and open windows cannot be rebuilt",
            "Restore it. A new topic of this name is another input, for another run",
        )
        return
    means = "A restarted answerer cannot rebuild it and exits: the run is over"
    kept = int(settings.get("retention.ms", "-1")) / 1000
    if "compact" in settings.get("cleanup.policy", ""):
        yield _finding(
            Level.WRONG,
            f"{one.topic}, which {one.address} reads, is compacted",
            "Events of a window may be missing when it is rebuilt. Its charge then differs and is "
            "rejected",
            _command(config, one.topic, "cleanup.policy", "delete"),
        )
    if one.clock == "arrival" and 0 <= kept < one.keeps:
        yield _finding(
            Level.WRONG,
            f"{one.topic} keeps events for {kept:g} s, and windows of {one.address} need them for "
            f"{one.keeps:g} s",
            f"Events are deleted while their window is open. {means}",
            _command(config, one.topic, "retention.ms", f"{2000 * one.keeps:.0f}"),
        )
    if int(settings.get("retention.bytes", "-1")) >= 0:
        yield _finding(
            Level.WARNING,
            f"{one.topic} has retention.bytes={settings['retention.bytes']}",
            f"If there are many events, those of an open window are deleted. {means}",
            _command(config, one.topic, "retention.bytes", "-1"),
        )


def _finding(level: Level, what: str, means: str = "", do: str = "") -> Finding:
    return Finding(AREA, level, what, means, do)


def _command(config: Config, topic: str, setting: str, value: str) -> str:
    return (
        f"`python -m kafka.admin -b {config.kafka} configs alter -r topic -n {topic} "
        f"-c {setting}={value}`"
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
