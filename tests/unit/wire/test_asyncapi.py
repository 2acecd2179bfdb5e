"""deploy/asyncapi.yaml and streams/schemas say the same; its examples are what a worker answers.

The structure is checked with a schema of the parts of AsyncAPI 3.0 that the document uses, written
here from the specification: no package on PyPI ships the official one. It is stricter than that
one, since it knows nothing else.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from streams import schemas
from streams.config import Config
from streams.ledger.ledger import Channel, Ledger
from streams.schemas import (
    decode_answer,
    decode_request,
    encode,
    tombstone_offset,
)
from streams.topics.topics import CLIENT_TOPICS, SETTINGS
from tests.readme import TOP

DOCUMENT: dict[str, Any] = yaml.load(
    (TOP / "deploy" / "asyncapi.yaml").read_text(), yaml.CSafeLoader
)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]
CHANNELS: dict[str, Any] = DOCUMENT["channels"]

RECORDS: dict[str, type[msgspec.Struct]] = {
    name: record
    for name, record in vars(schemas).items()
    if isinstance(record, type)
    and issubclass(record, msgspec.Struct)
    and record.__module__.startswith(schemas.__name__)
}
REQUESTS = [r.__name__ for r in (*schemas.Request.__args__, schemas.Signed)]
ANSWERS = [r.__name__ for r in schemas.Answer.__args__]


# --- structure ----------------------------------------------------------------------------------


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def table(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": r"^[\w.-]+$"},
        "additionalProperties": values,
    }


TEXT = {"type": "string", "minLength": 1}
REFERENCE = closed(["$ref"], **{"$ref": {"type": "string", "pattern": "^#/"}})
SCHEMA = {"$ref": "http://json-schema.org/draft-07/schema#"}
STRUCTURE = closed(
    ["asyncapi", "info", "servers", "channels", "operations", "components"],
    asyncapi={"const": "3.0.0"},
    info=closed(["title", "version", "description"], title=TEXT, version=TEXT, description=TEXT),
    defaultContentType={"const": "application/msgpack"},
    servers=table(
        closed(["host", "protocol"], host=TEXT, protocol={"const": "kafka"}, description=TEXT)
    ),
    channels=table(
        closed(
            ["address", "messages", "bindings"],
            address=TEXT,
            title=TEXT,
            description=TEXT,
            servers={"type": "array", "items": REFERENCE},
            messages=table(REFERENCE),
            bindings=closed(
                ["kafka"],
                kafka=closed(
                    ["topic", "partitions", "replicas", "topicConfiguration", "bindingVersion"],
                    topic=TEXT,
                    partitions={"type": "integer", "minimum": 1},
                    replicas={"type": "integer", "minimum": 1},
                    topicConfiguration={"type": "object"},
                    bindingVersion={"const": "0.5.0"},
                ),
            ),
        )
    ),
    operations=table(
        closed(
            ["action", "channel", "messages"],
            action={"enum": ["send", "receive"]},
            channel=REFERENCE,
            summary=TEXT,
            messages={"type": "array", "items": REFERENCE},
            reply=closed(
                ["channel"], channel=REFERENCE, messages={"type": "array", "items": REFERENCE}
            ),
        )
    ),
    components=closed(
        ["messages", "schemas"],
        messages=table(
            closed(
                ["name", "title", "contentType", "payload"],
                name=TEXT,
                title=TEXT,
                summary=TEXT,
                contentType={"enum": ["application/msgpack", "application/json"]},
                payload=REFERENCE,
                bindings=closed(
                    ["kafka"],
                    kafka=closed(
                        ["key", "bindingVersion"], key=SCHEMA, bindingVersion={"const": "0.5.0"}
                    ),
                ),
                examples={
                    "type": "array",
                    "items": closed(["payload"], name=TEXT, summary=TEXT, payload={}),
                },
            )
        ),
        schemas=table(SCHEMA),
    ),
)


def resolve(reference: str) -> Any:
    target: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    return target


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for value in node.values() for found in references(value)]


def test_document_has_the_structure_of_asyncapi_3() -> None:
    jsonschema.Draft7Validator(STRUCTURE).validate(DOCUMENT)


def test_every_reference_leads_somewhere() -> None:
    found = references(DOCUMENT)
    assert len(found) > 50
    for reference in found:
        assert isinstance(resolve(reference), dict), reference


def test_operations_use_messages_of_their_own_channel() -> None:
    for operation in DOCUMENT["operations"].values():
        for part in (operation, operation.get("reply")):
            if part:
                channel = part["channel"]["$ref"]
                assert all(m["$ref"].startswith(f"{channel}/messages/") for m in part["messages"])


def test_every_message_and_every_channel_is_used() -> None:
    used = {m["$ref"].rsplit("/", 1)[1] for c in CHANNELS.values() for m in c["messages"].values()}
    assert used == MESSAGES.keys()
    received = {o["channel"]["$ref"].rsplit("/", 1)[1] for o in DOCUMENT["operations"].values()}
    assert received == CHANNELS.keys()


# --- topics -------------------------------------------------------------------------------------


def typed(name: str, value: str) -> Any:
    """Return the value of a topic's setting as YAML has it."""
    return value.split(",") if name == "cleanup.policy" else yaml.safe_load(value)


def test_channels_are_the_topics() -> None:
    config = Config()
    assert CHANNELS.keys() == set(CLIENT_TOPICS)
    for name, channel in CHANNELS.items():
        kafka = channel["bindings"]["kafka"]
        assert channel["address"] == kafka["topic"] == config.topic(name)
        assert (kafka["partitions"], kafka["replicas"]) == (config.partitions, config.replication)
        assert kafka["topicConfiguration"] == {
            setting: typed(setting, value) for setting, value in SETTINGS[name].items()
        }
    assert DOCUMENT["servers"]["broker"]["host"] == config.kafka


def test_operations_are_those_of_a_client() -> None:
    actions = {
        operation["channel"]["$ref"].rsplit("/", 1)[1]: operation["action"]
        for operation in DOCUMENT["operations"].values()
    }
    others = dict.fromkeys(set(CLIENT_TOPICS) - {"norms"}, "receive")
    assert actions == {"norms": "send", **others}


@pytest.mark.parametrize(
    ("channel", "records"),
    [
        ("norms", REQUESTS),
        ("halts", ANSWERS),
        ("odometer", ["OdometerCheckpoint"]),
        ("rejects", ["Rejected"]),
    ],
)
def test_channels_carry_the_records_of_their_topic(channel: str, records: list[str]) -> None:
    messages = [resolve(m["$ref"]) for m in CHANNELS[channel]["messages"].values()]
    carried = {(m["payload"]["$ref"].rsplit("/", 1)[1], m["contentType"]) for m in messages}
    encodings = ["msgpack", "json"] if channel == "norms" else ["msgpack"]
    assert carried == {(record, f"application/{e}") for record in records for e in encodings}


# --- records ------------------------------------------------------------------------------------

GENERATED = msgspec.json.schema_components(
    list(RECORDS.values()), ref_template="#/components/schemas/{name}"
)[1]


def plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema without names and prose, in one order, references replaced by what they name."""
    if isinstance(schema, list):
        return [plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return plain(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    result: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "allOf":
            (only,) = value
            result |= plain(only, definitions)
        elif word == "properties":
            result[word] = {name: plain(field, definitions) for name, field in value.items()}
        elif word in ("enum", "required", "anyOf"):
            result[word] = sorted(plain(value, definitions), key=json.dumps)
        elif word not in ("title", "description", "examples"):
            result[word] = plain(value, definitions) if word == "items" else value
    return result


def test_every_record_is_described() -> None:
    tagged = {name for name, record in RECORDS.items() if record.__struct_config__.tag}
    described = {message["payload"]["$ref"].rsplit("/", 1)[1] for message in MESSAGES.values()}
    assert described == tagged
    assert tagged == {*REQUESTS, *ANSWERS, "OdometerCheckpoint", "Rejected"}


@pytest.mark.parametrize("name", GENERATED)
def test_record_has_the_same_fields_types_defaults_and_limits_in_code_and_document(
    name: str,
) -> None:
    assert plain(SCHEMAS[name], SCHEMAS) == plain(GENERATED[name], GENERATED)


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_has_a_meaning(name: str) -> None:
    for field, schema in SCHEMAS[name]["properties"].items():
        assert schema.get("description", "").strip(), f"{name}.{field}"


def test_message_names_are_the_tags() -> None:
    for message in MESSAGES.values():
        record = RECORDS[message["payload"]["$ref"].rsplit("/", 1)[1]]
        assert message["name"] == record.__struct_config__.tag


def test_reasons_stand_in_the_order_of_the_checks_and_are_explained() -> None:
    assert SCHEMAS["Reason"]["enum"] == [reason.value for reason in schemas.Reason]
    prose = " ".join(SCHEMAS["Reason"]["description"].split())
    assert all(f" {reason.value}: " in prose for reason in schemas.Reason)


def test_limits_in_prose_are_those_of_the_code() -> None:
    assert SCHEMAS["Version"]["default"] == schemas.VERSION
    assert DOCUMENT["info"]["version"].startswith(f"{schemas.VERSION}.")
    reasons = SCHEMAS["Reason"]["description"]
    reasons = " ".join(reasons.split())
    for limit in (
        f"{schemas.MAX_CHARGE_USERS} users",
        f"{schemas.MAX_REQUEST_BYTES >> 20} MiB",
        f"{schemas.MAX_ACCOUNTS} accounts",
        f"{schemas.MAX_BALANCES} balances",
        f"{schemas.MAX_ROSTERS} other rosters",
        f"{schemas.MAX_ANSWER_BYTES >> 20} MiB",
        f"{schemas.MAX_DATASETS} datasets",
    ):
        assert limit in reasons


@pytest.mark.parametrize(
    ("side", "change"),
    [
        ("document", lambda schema: schema["properties"].update(extra={"type": "string"})),
        ("document", lambda schema: schema["properties"].pop("scale")),
        ("document", lambda schema: schema["required"].remove("norms")),
        ("code", lambda schema: schema["properties"].update(extra={"type": "string"})),
        ("code", lambda schema: schema["properties"]["step"].update(minimum=1)),
        ("code", lambda schema: schema["properties"]["scale"].pop("default")),
        ("code", lambda schema: schema["properties"]["mechanism"]["enum"].append("skellam")),
        ("code", lambda schema: schema["properties"]["type"].update(enum=["charge-2"])),
    ],
)
def test_a_change_on_one_side_only_is_noticed(side: str, change: Any) -> None:
    document, code = json.loads(json.dumps([SCHEMAS, GENERATED]))
    change((document if side == "document" else code)["Charge"])
    assert plain(document["Charge"], document) != plain(code["Charge"], code)


# --- examples -----------------------------------------------------------------------------------


def examples(channel: str) -> list[tuple[str, Any]]:
    """(content type, payload) of a channel's examples, in the order of the document."""
    return [
        (message["contentType"], example["payload"])
        for message in (resolve(m["$ref"]) for m in CHANNELS[channel]["messages"].values())
        for example in message.get("examples", [])
    ]


def as_sent(content_type: str, payload: Any) -> bytes:
    text = json.dumps(payload, separators=(",", ":")).encode()
    if content_type == "application/json":
        return text
    record = next(r for r in RECORDS.values() if r.__struct_config__.tag == payload["type"])
    return encode(msgspec.json.decode(text, type=record))


def as_shown(record: bytes) -> Any:
    """A MessagePack record in the JSON form of the document."""
    return json.loads(msgspec.json.encode(msgspec.msgpack.decode(record)))


def test_examples_are_valid_under_their_own_schemas() -> None:
    shown = 0
    for message in MESSAGES.values():
        for example in message.get("examples", []):
            schema = {**message["payload"], "components": {"schemas": SCHEMAS}}
            jsonschema.Draft202012Validator(schema).validate(example["payload"])
            shown += 1
    assert shown >= len(RECORDS)


def test_every_record_has_an_example() -> None:
    shown = {payload["type"] for channel in CHANNELS for _, payload in examples(channel)}
    tags = {r.__struct_config__.tag for r in RECORDS.values() if r.__struct_config__.tag}
    assert shown == tags


@pytest.mark.parametrize(("content_type", "payload"), examples("norms"))
def test_request_examples_decode(content_type: str, payload: Any) -> None:
    value = as_sent(content_type, payload)
    request: Any = decode_request(value)
    if payload["type"] == "signed":
        request = msgspec.json.decode(value, type=schemas.Signed)
    decoded = json.loads(msgspec.json.encode(request))
    policy = payload.get("policy", {})
    assert decoded == {**decoded, **payload, **({"policy": decoded["policy"]} if policy else {})}
    assert not policy or decoded["policy"] == {**decoded["policy"], **policy}


@pytest.mark.parametrize(("content_type", "payload"), examples("halts"))
def test_answer_examples_decode(content_type: str, payload: Any) -> None:
    answer = decode_answer(as_sent(content_type, payload))
    assert json.loads(msgspec.json.encode(answer)) == payload


@pytest.mark.parametrize(
    ("channel", "record"),
    [("odometer", schemas.OdometerCheckpoint), ("rejects", schemas.Rejected)],
)
def test_other_examples_decode(channel: str, record: type[msgspec.Struct]) -> None:
    for content_type, payload in examples(channel):
        decoded = msgspec.msgpack.decode(as_sent(content_type, payload), type=record)
        assert json.loads(msgspec.json.encode(decoded)) == payload


def test_examples_are_what_a_worker_answers() -> None:
    order = ["create-dataset", "withdraw-dataset", "open-run", "charge"]
    order += ["enrol", "charge-roster", "close-run", "erase", "close-dataset"]
    order += ["signed"]
    shown = [example for example in examples("norms") if example[1]["type"] in order]
    requests = sorted(shown, key=lambda example: order.index(example[1]["type"]))
    # What is about the dataset within the other one comes behind all that is about the other one.
    requests.sort(key=lambda example: _dataset_of(example[1]) == "digits")
    requests.sort(key=lambda example: (example[1].get("run"), example[1].get("step")) == LAST)
    requests.sort(key=lambda example: max(0, order.index(example[1]["type"]) - LAST_BUT))
    # The dataset with an access list comes last, and then the change of its list.
    requests.sort(key=lambda e: (e[1]["type"] == "signed", _dataset_of(e[1]) == "visits"))
    policy = examples("norms")[0][1]["policy"]
    ledger = Ledger(partition=2, partitions=policy["partitions"])
    answers: dict[str, list[Any]] = {channel.value: [] for channel in Channel}
    for offset, (content_type, payload) in enumerate(requests):
        value = as_sent(content_type, payload)
        for output in ledger.apply(offset, value):
            if tombstone_offset(output.value) is None:
                answers[output.channel.value].append(as_shown(output.value))
    for channel, answered in answers.items():
        shown = [payload for _, payload in examples(channel)]
        assert answered == sorted(shown, key=lambda payload: payload["offset"])


LAST_BUT = 7
"""Kinds of requests; those behind come behind everything else, one kind after the other."""
LAST = "ftrl-1", 2
"""A step that names somebody who was erased before."""


def _dataset_of(payload: Any) -> str | None:
    return payload.get("policy", payload).get("dataset")


def test_the_signed_example_has_the_request_that_is_shown_beside_it() -> None:
    (unsigned,) = (p for _, p in examples("norms") if p["type"] == "set-access")
    (shown,) = (p for _, p in examples("norms") if p["type"] == "signed")
    assert json.loads(base64.b64decode(shown["request"])) == unsigned


def test_the_refused_example_carries_the_bytes_of_the_request() -> None:
    (_, refused), *rest = examples("rejects")
    assert not rest
    assert as_sent(*examples("norms")[-1]) == base64.b64decode(refused["record"])
