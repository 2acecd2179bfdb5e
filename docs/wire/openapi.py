"""The OpenAPI document of the gateway, made from its operations and the structs of its bodies.

The text of a field is the string below it. A field without one has the name of an argument of the
SDK, and its text is in the docstring of that method.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from docs.wire.asyncapi import plain, texts_below
from streams.gateway import messages
from streams.gateway.http_gateway import JSON, PROBLEM_JSON
from streams.gateway.http_operations import OPERATIONS, PARAMETERS, Operation
from streams.gateway.problems import RETRIED, STATUSES, ProblemReason
from streams.records import VERSION, Policy, Reason
from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.followers import Halt
from streams.sdk.run import Run

_INTRODUCTION = """\
Charge the steps of runs over HTTP, without a Kafka client. docs/gateway.md explains the use.

A step is charged once, however often its request is sent and to whichever gateway. Only a response
with status 200 is a decision: release nothing of a step before it, and nothing after a problem.
"""
_SOURCES: Mapping[type, object] = {
    messages.NewDataset: Turnstile.create_dataset,
    messages.NewAttempt: Turnstile.run,
    messages.NewCharge: Run.charge,
    messages.NewNorms: Turnstile.send_norms,
    messages.NewCollectedCharge: Run.charge,
    messages.NewRoster: Run.enrol,
    messages.NewRosterCharge: Run.enrol,
    messages.AttemptState: Run,
    messages.HaltedUser: Halt,
    messages.ChargeDecision: StepDecision,
    messages.RosterStepDecision: StepDecision,
    Halt: Halt,
}
_COMMON = {
    "dataset": "The name of the dataset.",
    "run": "The name of the run.",
    "attempt": "The number of the attempt.",
    "step": "The step: 0, 1, 2, ... in a run.",
    "partition": "The user's partition.",
    "offset": "The offset of the charge in the log.",
}
_PARAMETERS = {**_COMMON, "attempt": "The `attempt` that open_attempt returned."}
_RETRY_AFTER = {
    "required": True,
    "description": "Seconds after which the caller may send the same request again.",
    "schema": {"type": "integer", "minimum": 1},
}


def document() -> dict[str, Any]:
    """Return the document."""
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for operation in OPERATIONS:
        paths[operation.path][operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dp-turnstile gateway",
            "version": f"{VERSION}.0.0",
            "description": _INTRODUCTION,
        },
        "servers": [{"url": "http://127.0.0.1:8482"}],
        "security": [{}, {"key": []}],
        "paths": dict(paths),
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The caller's private key, as `turnstile keys new` makes it.",
                }
            },
            "responses": {_response_name(status): _problem(status) for status in _statuses()},
            "schemas": _schemas(),
        },
    }


def text() -> str:
    """Return the document as it is stored."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _summary(operation: Operation) -> str:
    return plain(inspect.getdoc(operation.answer) or "")


def _operation(operation: Operation) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", operation.path)
    found: dict[str, Any] = {
        "operationId": operation.answer.__name__,
        "summary": _summary(operation),
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": _portable(msgspec.json.schema(PARAMETERS[name])),
            }
            for name in names
        ],
        "responses": {
            "200": {"description": "Done.", "content": {JSON: _schema_of(operation.response)}},
            **{
                str(status): {"$ref": f"#/components/responses/{_response_name(status)}"}
                for status in _statuses()
            },
        },
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: _schema_of(operation.body)}}
    return found


def _schema_of(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}


def _statuses() -> list[int]:
    return sorted(set(STATUSES.values()))


def _response_name(status: int) -> str:
    return HTTPStatus(status).name.title().replace("_", "")


def _problem(status: int) -> dict[str, Any]:
    texts = _problem_texts()
    reasons = [reason for reason, code in STATUSES.items() if code == status]
    return {
        "description": "\n".join(f"- `{reason}`: {texts[reason]}" for reason in reasons),
        "content": {PROBLEM_JSON: _schema_of(messages.HttpProblem)},
        **({"headers": {"Retry-After": _RETRY_AFTER}} if status in RETRIED else {}),
    }


def _problem_texts() -> dict[str, str]:
    """Return the text of every reason of a problem."""
    kinds = (ProblemReason, Reason)
    return {str(kind[name]): text for kind in kinds for name, text in texts_below(kind).items()}


def _schemas() -> dict[str, Any]:
    kinds = [kind for each in OPERATIONS for kind in (each.response, each.body) if kind]
    _, found = msgspec.json.schema_components(
        [*kinds, messages.HttpProblem], ref_template="#/components/schemas/{name}"
    )
    owners = {**vars(messages), "Halt": Halt}
    for name, schema in found.items():
        owner = owners[name]
        schema.pop("title", None)
        schema["description"] = plain((inspect.getdoc(owner) or "").split("\n\nAttributes")[0])
        texts = _texts_of(owner)
        for field, content in schema["properties"].items():
            if field != "type":
                content["description"] = texts[field]
    found["HttpProblem"]["properties"]["reason"]["enum"] = list(_problem_texts())
    return {name: _portable(schema) for name, schema in sorted(found.items())}


def _texts_of(owner: type) -> dict[str, str]:
    """Return the texts of the fields of a struct."""
    texts = dict(_COMMON)
    if owner is messages.Dataset:
        texts |= texts_below(Policy)
    for base in reversed(owner.__mro__):
        if base in _SOURCES:
            texts |= _argument_texts(_SOURCES[base])
        is_written = base.__module__.startswith("streams.") and not base.__name__.startswith("_")
        if issubclass(base, msgspec.Struct) and is_written:  # others are made from a table
            texts |= texts_below(base)
    return texts


def _argument_texts(source: object) -> dict[str, str]:
    """Return the texts of the arguments or attributes in a docstring, in the words of JSON."""
    lines = inspect.getdoc(source) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n|\n)*)", lines + "\n", re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*\n(?:     .*\n)*)", section[1] if section else "", re.M)
    python = {"None": "null", "True": "true", "False": "false"}
    return {
        name: re.sub(r"\b(None|True|False)\b", lambda word: python[word[0]], plain(text))
        for name, text in entries
    }


def _portable(schema: Any) -> Any:
    """Return a schema without what Python alone needs at the end of a pattern."""
    if isinstance(schema, dict):
        return {name: _portable(content) for name, content in schema.items()}
    if isinstance(schema, list):
        return [_portable(content) for content in schema]
    return schema.replace(r"$(?!\n)", "$") if isinstance(schema, str) else schema
