"""Settings under which records vanish are a problem, reported with its remedy; others are not."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from streams.config import Config
from streams.kafka.answer_topics import ANSWER_SETTINGS
from streams.kafka.results import TopicsSeen
from streams.kafka.topics import (
    HALTS,
    MIN_IN_SYNC,
    NEEDED,
    NORMS,
    ODOMETER,
    REJECTS,
    SETTINGS,
    SNAPSHOTS,
    TOPICS,
    Topics,
    ensure_topics,
)

CONFIG = Config(kafka="broker:9092", prefix="t.", partitions=2)
TOPIC_ID = UUID(int=7)
DAY_MS = 24 * 60 * 60 * 1000


class Admin:
    """A broker's topics, as its administrators see them."""

    def __init__(self, changes: dict[str, dict[str, str]]) -> None:
        self.settings = {name: {**NEEDED[name], **changes.get(name, {})} for name in TOPICS}
        self.partitions = dict.fromkeys(TOPICS, 2)
        self.hidden: set[str] = set()
        self.default_in_sync = "1"

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "partitions": [{}] * self.partitions[known], "topic_id": TOPIC_ID}
            for name in names
            if (known := name.removeprefix(CONFIG.prefix)) in self.partitions
        ]

    def describe_configs(self, asked: list[Any], config_filter: str) -> dict[str, Any]:
        return {
            "topic": {
                CONFIG.topic(name): {} if name in self.hidden else _described(settings)
                for name, settings in self.settings.items()
            }
        }

    def create_topics(
        self, wanted: dict[str, Any], validate_only: bool = False, **_: Any
    ) -> dict[str, Any]:
        topics = []
        for name, options in wanted.items():
            settings = {MIN_IN_SYNC: self.default_in_sync, **options["configs"]}
            topics.append({"name": name, "configs": _described(settings)})
            if not validate_only:
                self.partitions[name.removeprefix(CONFIG.prefix)] = options["num_partitions"]
                self.settings[name.removeprefix(CONFIG.prefix)] = settings
        return {"topics": topics}

    def close(self) -> None:
        pass


def _described(settings: dict[str, str]) -> dict[str, dict[str, str]]:
    return {setting: {"value": value} for setting, value in settings.items()}


def seen(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> TopicsSeen:
    monkeypatch.setattr("streams.kafka.topics.new_admin", lambda *_, **__: admin)
    with Topics(CONFIG) as topics:
        return topics.look()


LOSING = [
    (NORMS, "retention.ms", "5000"),
    (NORMS, "retention.bytes", "1000000"),
    (NORMS, "cleanup.policy", "compact"),
    (NORMS, "cleanup.policy", "compact,delete"),
    (NORMS, "unclean.leader.election.enable", "true"),
    (HALTS, "cleanup.policy", "compact"),
    (HALTS, "max.message.bytes", "100000"),
    (ODOMETER, "cleanup.policy", "delete"),
    (ODOMETER, "max.message.bytes", "1000"),
    (REJECTS, "cleanup.policy", "compact"),
    (REJECTS, "max.message.bytes", "100000"),
    (SNAPSHOTS, "cleanup.policy", "delete"),
]


@pytest.mark.parametrize(("topic", "setting", "value"), LOSING)
def test_setting_that_loses_records_is_a_problem_with_a_remedy(
    topic: str, setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = seen(Admin({topic: {setting: value}}), monkeypatch).problem
    assert problem is not None
    wanted = NEEDED[topic][setting]
    assert f"topic t.{topic} has {setting}={value} where {wanted} is needed" in problem
    (command,) = re.findall(r"`([^`]*)`", problem)
    assert command.endswith(f"configs alter -r topic -n t.{topic} -c {setting}={wanted}")


KEEPING = [
    (NORMS, "retention.ms", "-1"),
    (HALTS, "retention.ms", str(2**40)),
    (HALTS, "retention.ms", "-1"),
    (HALTS, "max.message.bytes", str(2**30)),
    (REJECTS, "max.message.bytes", str(2**30)),
    (ODOMETER, "max.message.bytes", str(2**30)),
    (ODOMETER, "max.compaction.lag.ms", "60000"),
    (SNAPSHOTS, "segment.ms", "60000"),
]
ADVISED = [
    (NORMS, "max.message.bytes", "100000"),
    (HALTS, "retention.ms", "60000"),
    (REJECTS, "retention.ms", "60000"),
    (REJECTS, "compression.type", "producer"),
    (REJECTS, "segment.ms", str(7 * DAY_MS)),
    (HALTS, "segment.ms", str(7 * DAY_MS)),
    *(
        (topic, setting, str(value))
        for topic in (ODOMETER, SNAPSHOTS)
        for setting, value in (
            ("max.compaction.lag.ms", 2**63 - 1),
            ("segment.ms", 7 * DAY_MS),
            ("delete.retention.ms", 2 * DAY_MS),
        )
    ),
]


@pytest.mark.parametrize("name", [*SETTINGS, *ANSWER_SETTINGS])
def test_deleted_records_of_users_are_gone_within_days(name: str) -> None:
    settings = {**SETTINGS, **ANSWER_SETTINGS}[name]
    if settings["cleanup.policy"] == "compact":
        for setting in ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms"):
            assert int(settings[setting]) <= DAY_MS


@pytest.mark.parametrize(("topic", "setting", "value"), [*KEEPING, *ADVISED])
def test_a_setting_that_loses_no_record_is_at_most_a_warning(
    topic: str,
    setting: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = seen(Admin({topic: {setting: value}}), monkeypatch)
    assert found == TopicsSeen(TOPIC_ID.bytes, 2, None)
    advised = (topic, setting, value) in ADVISED
    assert [f"t.{topic} has {setting}={value}" in line for line in caplog.messages] == [
        True
    ] * advised


def test_invisible_settings_are_reported_and_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin({NORMS: {"retention.ms": "5000"}})
    admin.hidden = {NORMS}
    with caplog.at_level(logging.WARNING):
        assert seen(admin, monkeypatch).problem is None
    assert any("t.norms" in line for line in caplog.messages)


def test_topics_with_different_partition_counts_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin({})
    admin.partitions[HALTS] = 3
    found = seen(admin, monkeypatch)
    assert found.partitions == 2
    assert "the topics differ in their number of partitions" in (found.problem or "")


def test_a_log_that_is_gone_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin({})
    del admin.partitions[NORMS]
    assert "there is no topic t.norms" in (seen(admin, monkeypatch).problem or "")


def test_added_topic_has_as_many_partitions_as_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin({})
    admin.partitions = dict.fromkeys(TOPICS, 7)
    del admin.partitions[SNAPSHOTS]
    monkeypatch.setattr("streams.kafka.topics.new_admin", lambda *_, **__: admin)
    with Topics(CONFIG) as topics:
        assert topics.ensure().problem is None
    assert admin.partitions[SNAPSHOTS] == 7


@pytest.mark.parametrize("asked", [8, 4, Config.partitions])
def test_partitions_that_differ_from_the_topic_are_reported(
    asked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin({})
    admin.partitions = dict.fromkeys(TOPICS, 4)
    monkeypatch.setattr("streams.kafka.topics.new_admin", lambda *_, **__: admin)
    ensure_topics(replace(CONFIG, partitions=asked))
    assert ("has no effect" in caplog.text) is (asked == 8)


@pytest.mark.parametrize(
    ("copies", "default", "in_sync"),
    [(1, "1", "1"), (2, "1", "1"), (3, "1", "2"), (5, "1", "2"), (3, "2", "2"), (5, "3", "3")],
)
def test_with_three_copies_two_brokers_acknowledge_a_record(
    copies: int, default: str, in_sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin({})
    admin.partitions, admin.settings, admin.default_in_sync = {}, {}, default
    monkeypatch.setattr("streams.kafka.topics.new_admin", lambda *_, **__: admin)
    ensure_topics(replace(CONFIG, replication=copies))
    assert {name: found[MIN_IN_SYNC] for name, found in admin.settings.items()} == dict.fromkeys(
        TOPICS, in_sync
    )


def test_the_in_sync_copies_of_an_existing_topic_are_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin({name: {MIN_IN_SYNC: "1"} for name in TOPICS})
    monkeypatch.setattr("streams.kafka.topics.new_admin", lambda *_, **__: admin)
    ensure_topics(replace(CONFIG, replication=3))
    assert {found[MIN_IN_SYNC] for found in admin.settings.values()} == {"1"}
