"""The generated documents in ``deploy`` are valid AsyncAPI documents.

The structure is checked with the keys of the parts of AsyncAPI 3.0 that the documents use, written
here from the specification: no package on PyPI ships its schema.
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

KEYS = {
    # where an object is in a document: the keys it must have, and those it may have
    "": ("asyncapi info servers channels operations components", "defaultContentType"),
    "info": ("title version description", ""),
    "servers/*": ("host protocol", "description"),
    "channels/*": ("address messages bindings", "title description servers"),
    "channels/*/messages/*": ("$ref", ""),
    "channels/*/bindings/kafka": (
        "topic partitions replicas topicConfiguration bindingVersion",
        "",
    ),
    "operations/*": ("action channel messages", "summary reply"),
    "operations/*/channel": ("$ref", ""),
    "operations/*/messages/*": ("$ref", ""),
    "operations/*/reply": ("channel", "messages"),
    "components": ("messages schemas", ""),
    "components/messages/*": ("name title contentType payload", "summary bindings examples"),
    "components/messages/*/payload": ("$ref", ""),
    "components/messages/*/bindings/kafka": ("key bindingVersion", ""),
    "components/messages/*/examples/*": ("payload", "name summary"),
}


def found_at(node: Any, path: str) -> list[Any]:
    """Return the objects at a path, of which `*` stands for every key or position."""
    if not path:
        return [node]
    first, _, rest = path.partition("/")
    inner = node if isinstance(node, list) else list(node.values())
    inner = inner if first == "*" else [node[first]] if first in node else []
    return [found for one in inner for found in found_at(one, rest)]


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asyncapi.yaml", "asyncapi-answers.yaml"])
def test_document_has_the_structure_of_asyncapi_3(name: str) -> None:
    text = (TOP / "deploy" / name).read_text(encoding="utf-8")
    document = yaml.load(text, yaml.CSafeLoader)
    assert document["asyncapi"] == "3.0.0"
    for path, (needed, allowed) in KEYS.items():
        for found in found_at(document, path):
            assert {*needed.split()} <= found.keys() <= {*needed.split(), *allowed.split()}, path
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere() -> None:
    found = references(DOCUMENT)
    assert len(found) > 50
    for reference in found:
        assert isinstance(resolve(reference), dict), reference


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
