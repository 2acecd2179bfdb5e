"""deploy/asyncapi-answers.yaml and what an answerer publishes say the same."""

from __future__ import annotations

from typing import get_args

import jsonschema
import msgspec
import pytest
import yaml

from streams.answerer.answers import PrivateAnswer
from streams.answerer.queries import KINDS, Kind
from streams.config import Config
from streams.kafka.answers import ANSWER_SETTINGS, ANSWERS
from tests.readme import TOP
from tests.unit.answerer.asking import FILE, asked_of, event
from tests.unit.answerer.lives import World
from tests.unit.answerer.test_kinds import KINDS as QUERIES

DOCUMENT = yaml.safe_load((TOP / "deploy" / "asyncapi-answers.yaml").read_text(encoding="utf-8"))
SCHEMA = DOCUMENT["components"]["schemas"]["Answer"]


def test_the_document_has_the_fields_the_kinds_and_the_topic() -> None:
    fields = msgspec.structs.fields(PrivateAnswer)
    assert [field.encode_name for field in fields] == list(SCHEMA["properties"])
    assert {field.encode_name for field in fields if field.required} == set(SCHEMA["required"])
    assert tuple(SCHEMA["properties"]["kind"]["enum"]) == KINDS == get_args(Kind)
    (kafka,) = (channel["bindings"]["kafka"] for channel in DOCUMENT["channels"].values())
    assert kafka["topic"] == Config().topic(ANSWERS)
    assert kafka["partitions"] == 1
    settings = {
        name: ",".join(value) if isinstance(value, list) else str(value).lower()
        for name, value in kafka["topicConfiguration"].items()
    }
    assert settings == ANSWER_SETTINGS[ANSWERS]


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_every_kind_is_published_as_the_document_says(query: str) -> None:
    rest = 'name = "q"\nwindow = "10ms"\nnoise = 1.0'
    world = World(asked_of(f"{FILE}\n[[query]]\n{query}\n{rest}\n"))
    world.events = [event(1, time, x=2.5, c="a") for time in range(0, 30, 3)]
    world.live()
    assert len(world.pages.answers) == 2
    for _, value in world.pages.answers:
        jsonschema.Draft7Validator(SCHEMA).validate(msgspec.json.decode(value))
