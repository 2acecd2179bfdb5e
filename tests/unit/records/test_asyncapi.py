"""The generated documents in ``deploy`` are valid AsyncAPI documents.

The structure is checked with a schema of the parts of AsyncAPI 3.0 that the document uses, written
here from the specification: no package on PyPI ships the official one.
"""

from __future__ import annotations

import base64
from typing import Any

import jsonschema
import pytest
import yaml

from docs.wire import asyncapi
from streams import records
from tests.readme import TOP

DOCUMENT: dict[str, Any] = yaml.load(
    (TOP / "deploy" / "asyncapi.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]
CHANNELS: dict[str, Any] = DOCUMENT["channels"]


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
    defaultContentType={"enum": ["application/msgpack", "application/json"]},
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


@pytest.mark.parametrize("name", ["asyncapi.yaml", "asyncapi-answers.yaml"])
def test_document_has_the_structure_of_asyncapi_3(name: str) -> None:
    text = (TOP / "deploy" / name).read_text(encoding="utf-8")
    jsonschema.Draft7Validator(STRUCTURE).validate(yaml.load(text, yaml.CSafeLoader))


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


# --- content ------------------------------------------------------------------------------------


def test_a_field_without_a_text_is_an_error() -> None:
    class Undescribed(records.Rejected, frozen=True, kw_only=True, tag="undescribed"):
        extra: int

    Undescribed.__module__ = "elsewhere"
    with pytest.raises(LookupError):
        asyncapi.field_texts(Undescribed)


def test_the_text_of_a_reason_has_the_limits_of_the_code() -> None:
    text = asyncapi.reason_texts()["too-large"]
    for limit in (
        f"{records.MAX_CHARGE_USERS} users",
        f"{records.MAX_REQUEST_BYTES >> 20} MiB",
        f"{records.MAX_ACCOUNTS} accounts",
        f"{records.MAX_BALANCES} balances",
        f"{records.MAX_ROSTERS} rosters",
        f"{records.MAX_ANSWER_BYTES >> 20} MiB",
        f"{records.MAX_DATASETS} datasets",
    ):
        assert limit in text


def test_examples_are_valid_under_their_own_schemas() -> None:
    for message in MESSAGES.values():
        for example in message.get("examples", []):
            schema = {**message["payload"], "components": {"schemas": SCHEMAS}}
            jsonschema.Draft202012Validator(schema).validate(example["payload"])


@pytest.mark.parametrize("form", ["application/json", "application/msgpack"])
def test_every_output_has_an_example_in_both_forms(form: str) -> None:
    shown: dict[str, list[Any]] = {}
    for message in MESSAGES.values():
        if message["contentType"] == form:
            payloads = [example["payload"] for example in message.get("examples", [])]
            shown.setdefault(message["name"], []).extend(payloads)
    outputs = {MESSAGES[name]["name"] for name in MESSAGES if f"{name}Msgpack" in MESSAGES}
    assert all(shown[name] for name in outputs)
    rejected = [payload["reason"] for payload in shown["rejected"]]
    expected = ["STEP_OUT_OF_ORDER", "NOT_ALLOWED", "LOG_RETIRED"]
    assert rejected == [records.Reason[name] for name in expected]
    if form == "application/msgpack":
        reasons = {byte for one in shown["decision"] for byte in base64.b64decode(one["reasons"])}
        assert set(records.HALT_REASONS) <= reasons
