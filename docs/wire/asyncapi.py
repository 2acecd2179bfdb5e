"""Generates the AsyncAPI documents in ``deploy`` from records, topics and prose in this folder.

The text of a record is its docstring, that of a field the string below it. Answers in the examples
are computed by a ledger.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from docs.wire.examples import PARTITION, PARTITIONS, encoded, endings, requests
from streams import records
from streams.answerer.published_answers import (
    CorrectedWindow,
    Correction,
    PrivateAnswer,
    WindowsSum,
)
from streams.config import Config
from streams.kafka.answer_topics import ANSWER_SETTINGS, ANSWERS
from streams.kafka.topics import CLIENT_TOPICS, SETTINGS
from streams.ledger.ledger import Ledger
from streams.records.json_outputs import (
    DecisionJson,
    HaltedJson,
    HaltEvent,
    OdometerJson,
    RosterDecisionJson,
    to_json,
)

HERE = Path(__file__).parent

RECORDS: dict[str, type[msgspec.Struct]] = {
    name: record
    for name, record in vars(records).items()
    if isinstance(record, type)
    and issubclass(record, msgspec.Struct)
    and record.__module__.startswith(records.__name__)
}
JSON_FORMS: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    records.Decision: DecisionJson,
    records.Halted: HaltedJson,
    records.RosterDecision: RosterDecisionJson,
    records.OdometerRecord: OdometerJson,
}
"""The outputs whose JSON has lists in place of packed arrays. All other records have one schema."""
SCHEMAS = RECORDS | {one.__name__: one for one in (*JSON_FORMS.values(), HaltEvent)}
REQUESTS: list[type[msgspec.Struct]] = [*get_args(records.Request), records.Signed]
REPLIES: list[type[msgspec.Struct]] = [*get_args(records.Answer)]

_TITLES = {
    "norms": (
        "Requests",
        "All requests that can change a budget, in the order of their decisions. "
        "This log is the source of truth. Records of the type norm have the user as key; for all "
        "others the sender selects the partition.",
    ),
    "halts": (
        "Answers",
        "Decisions with their HALT events, and the answers to all other requests. The "
        "answer to a record of partition p is in partition p. A record may appear more than "
        "once. Drop a record whose field `offset` is lower than the highest that you have seen "
        "in its partition, or equal to it with the same `type` and `part` (most have none): a step "
        "that another attempt repeats is answered again, with the same offset. If two different "
        "decisions of one step are in the topic, release nothing.",
    ),
    "odometer": (
        "Odometer records",
        "An upper bound on what each user has spent. The topic is "
        "compacted: the newest record of a key remains. A record without a value says that "
        "the user of the key was erased. A record is in the partition of its user, which is not "
        "the partition that the key hashes to.",
    ),
    "rejects": (
        "Rejected requests",
        "Requests that were not applied, with the reason and the "
        "original bytes. A request rejected in partition p is in partition p. A step with a "
        "rejected part has no decision there and must not be released.",
    ),
}
_KEYS = {
    "halts": "The run, or the dataset if the answer is about no run, in UTF-8.",
    "odometer": "The JSON array [dataset, user].",
    "rejects": "The run in UTF-8. None if the request could not be read.",
}
_COMMON = {
    "type": "The kind of the record.",
    "attempt": "The attempt of the run.",
    "request": "A random string by which the sender recognises the answers.",
    "partition": "The partition that answers.",
    "offset": "The offset of the request in that partition.",
}
"""Descriptions of fields without a text of their own."""


def document() -> dict[str, Any]:
    """Return the document of the service: requests, answers, odometer records and rejections."""
    return {
        **_head("dp-turnstile", "protocol.md", "application/json"),
        "channels": {topic: _channel_of(topic) for topic in CLIENT_TOPICS},
        "operations": _operations(),
        "components": {"messages": dict(_messages()), "schemas": _schemas()},
    }


def answers_document() -> dict[str, Any]:
    """Return the document of the answers that answerers publish."""
    text = "One partition. Records are kept until the operator sets a retention."
    names, settings = ["Answer", "Correction"], ANSWER_SETTINGS[ANSWERS]
    channel = _channel(ANSWERS, "Private answers", text, names, 1, settings)
    kinds = {
        "Answer": PrivateAnswer,
        "Correction": Correction,
        "CorrectedWindow": CorrectedWindow,
        "WindowsSum": WindowsSum,
    }
    _, found = msgspec.json.schema_components(
        list(kinds.values()), ref_template="#/components/schemas/{name}"
    )
    schemas = {name: _described_record(found[kind.__name__], kind) for name, kind in kinds.items()}
    for name in names:
        schemas[name]["properties"] = {
            field: _without_null(content) for field, content in schemas[name]["properties"].items()
        }
    return {
        **_head("dp-turnstile, private answers", "answers.md", "application/json"),
        "channels": {ANSWERS: channel},
        "operations": {
            "receiveAnswers": {
                "action": "receive",
                "channel": _reference("channels", ANSWERS),
                "summary": "Follow the answers.",
                "messages": [
                    _reference("channels", ANSWERS, "messages", name.lower()) for name in names
                ],
            }
        },
        "components": {
            "messages": {
                name: {
                    "name": name.lower(),
                    "title": title,
                    "contentType": "application/json",
                    "payload": _reference("components", "schemas", name),
                }
                for name, title in zip(
                    names, ("A private answer", "The correction of a block"), strict=True
                )
            },
            "schemas": schemas,
        },
    }


def _without_null(content: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional field that is absent instead of null."""
    if content.get("default", "") is not None or "anyOf" not in content:
        return content
    choices = [choice for choice in content["anyOf"] if choice != {"type": "null"}]
    return {"description": content["description"], **choices[0]} if len(choices) == 1 else content


def _head(title: str, prose: str, content_type: str) -> dict[str, Any]:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": title,
            "version": f"{records.VERSION}.0.0",
            "description": (HERE / prose).read_text(encoding="utf-8"),
        },
        "defaultContentType": content_type,
        "servers": {
            "broker": {
                "host": Config().kafka,
                "protocol": "kafka",
                "description": "The broker of docker-compose.yml, and the default of every client.",
            }
        },
    }


def _records_of(topic: str) -> list[type[msgspec.Struct]]:
    others = {"odometer": [records.OdometerRecord], "rejects": [records.Rejected]}
    return {"norms": REQUESTS, "halts": REPLIES, **others}[topic]


def _message_names(topic: str) -> list[str]:
    other = "Json" if topic == "norms" else "Msgpack"
    return [record.__name__ + form for record in _records_of(topic) for form in ("", other)]


def _channel_of(topic: str) -> dict[str, Any]:
    title, text = _TITLES[topic]
    names = _message_names(topic)
    return _channel(topic, title, text, names, Config().partitions, SETTINGS[topic])


def _channel(
    topic: str,
    title: str,
    description: str,
    messages: list[str],
    partitions: int,
    settings: Mapping[str, str],
) -> dict[str, Any]:
    config = Config()
    return {
        "address": config.topic(topic),
        "title": title,
        "description": description,
        "servers": [_reference("servers", "broker")],
        "messages": {_lower(name): _reference("components", "messages", name) for name in messages},
        "bindings": {
            "kafka": {
                "topic": config.topic(topic),
                "partitions": partitions,
                "replicas": config.replication,
                "topicConfiguration": {
                    name: value.split(",") if name == "cleanup.policy" else yaml.safe_load(value)
                    for name, value in settings.items()
                },
                "bindingVersion": "0.5.0",
            }
        },
    }


def _operations() -> dict[str, Any]:
    def about(topic: str) -> dict[str, Any]:
        names = map(_lower, _message_names(topic))
        return {
            "channel": _reference("channels", topic),
            "messages": [_reference("channels", topic, "messages", name) for name in names],
        }

    summaries = {
        "halts": "Wait for the P answers to a request; follow HALT events.",
        "odometer": "Follow what users have spent.",
        "rejects": "Learn why a request was rejected.",
    }
    publish = {
        "action": "send",
        "summary": "Send requests.",
        **about("norms"),
        "reply": about("halts"),
    }
    return {
        "publishRequests": publish,
        **{
            f"receive{_TITLES[topic][0].title().replace(' ', '')}": {
                "action": "receive",
                "summary": summary,
                **about(topic),
            }
            for topic, summary in summaries.items()
        },
    }


def _messages() -> Iterator[tuple[str, dict[str, Any]]]:
    shown = _examples()
    for topic in CLIENT_TOPICS:
        for record in _records_of(topic):
            tag = str(record.__struct_config__.tag)
            text = inspect.getdoc(record) or ""
            message = {
                "name": tag,
                "title": tag.replace("-", " ").capitalize(),
                "summary": " ".join(text.split("\n\n")[0].split()),
                "contentType": "application/msgpack",
                "payload": _reference("components", "schemas", record.__name__),
            }
            if topic in _KEYS:
                key = {"type": "string", "description": _KEYS[topic]}
                message["bindings"] = {"kafka": {"key": key, "bindingVersion": "0.5.0"}}
            in_msgpack = _with_examples(message, shown.get((tag, False), []))
            schema = JSON_FORMS.get(record, record).__name__
            form = {
                "contentType": "application/json",
                "payload": _reference("components", "schemas", schema),
            }
            in_json = _with_examples({**message, **form}, shown.get((tag, True), []))
            # Clients send MessagePack, and workers publish JSON, unless they are told otherwise.
            if topic == "norms":
                yield from ((record.__name__, in_msgpack), (f"{record.__name__}Json", in_json))
            else:
                other = {**in_msgpack, "title": f"{message['title']} in MessagePack"}
                yield from ((record.__name__, in_json), (f"{record.__name__}Msgpack", other))


def _with_examples(message: dict[str, Any], shown: list[dict[str, Any]]) -> dict[str, Any]:
    return {**message, "examples": shown} if shown else message


def _examples() -> dict[tuple[str, bool], list[dict[str, Any]]]:
    """Return the examples by the tag of their record and whether they are in JSON."""
    found: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for group in (requests(), endings()):
        ledger = Ledger(partition=PARTITION, partitions=PARTITIONS)
        for offset, example in enumerate(group):
            tag = example.payload["type"]
            shown = {"name": example.name, "summary": example.summary, "payload": example.payload}
            found.setdefault((tag, example.is_json), []).append(shown)
            for output in ledger.apply(offset, encoded(example, _record(tag))):
                if records.tombstone_offset(output.value) is None:
                    in_msgpack = msgspec.json.encode(msgspec.msgpack.decode(output.value))
                    for value, is_json in ((in_msgpack, False), (to_json(output.value), True)):
                        payload = json.loads(value)
                        shown = {"name": f"{tag}-{example.name}", "payload": payload}
                        found.setdefault((payload["type"], is_json), []).append(shown)
    return found


def _record(tag: str) -> type[msgspec.Struct]:
    return next(record for record in RECORDS.values() if record.__struct_config__.tag == tag)


# --- schemas ------------------------------------------------------------------------------------


def _schemas() -> dict[str, Any]:
    _, generated = msgspec.json.schema_components(
        list(SCHEMAS.values()), ref_template="#/components/schemas/{name}"
    )
    reasons = "\n".join(f"- `{reason}`: {text}" for reason, text in reason_texts().items())
    for name, schema in generated.items():
        schema.pop("title", None)
        if name in SCHEMAS:
            generated[name] = _described_record(schema, SCHEMAS[name])
    generated["Reason"]["enum"] = [reason.value for reason in records.Reason]
    generated["Reason"]["description"] = (
        f"{plain(inspect.getdoc(records.Reason) or '')}\n\n{reasons}\n"
    )
    return generated


def _described_record(schema: dict[str, Any], record: type[msgspec.Struct]) -> dict[str, Any]:
    texts = field_texts(record)
    properties = {
        field: _described(content, texts.get(field, ""))
        for field, content in schema["properties"].items()
    }
    text = plain(inspect.getdoc(record) or "")
    described = {**schema, "description": text, "properties": properties}
    described.pop("title", None)
    return described


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    if "$ref" in schema:
        return {"description": text, "allOf": [schema]}
    return {"description": text, **schema}


def field_texts(record: type) -> dict[str, str]:
    """Return the text of every field: the string below it, in the class or in a base class.

    Raises:
        LookupError: a field has none.
    """
    texts = dict(_COMMON)
    for base in reversed(record.__mro__):
        if base.__module__.startswith("streams."):
            texts |= texts_below(base)
    names = [field.name for field in msgspec.structs.fields(record)]
    if missing := [name for name in names if name not in texts]:
        raise LookupError(f"{record.__name__}: {missing} have no text")
    return texts


def reason_texts() -> dict[str, str]:
    """Return the text of every reason of a rejection."""
    texts = texts_below(records.Reason)
    return {reason.value: texts[reason.name] for reason in records.Reason}


def texts_below(owner: type) -> dict[str, str]:
    """Return the string below each member or field of a class, by its name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for named, below in zip(definition.body, definition.body[1:], strict=False):
        target = (
            named.targets[0] if isinstance(named, ast.Assign) else getattr(named, "target", None)
        )
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            texts[target.id] = plain(str(ast.literal_eval(below.value)))
    return texts


def plain(text: str) -> str:
    """Return paragraphs, one line each, with single quotes of code."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("``", "`")


def _reference(*names: str) -> dict[str, str]:
    return {"$ref": "/".join(("#", *names))}


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


# --- YAML ---------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def text() -> str:
    """Return the document of the service as it is stored."""
    return _yaml("streams/records", document())


def answers_text() -> str:
    """Return the document of answers as it is stored."""
    return _yaml("streams/answerer/published_answers.py", answers_document())


def _yaml(source: str, content: dict[str, Any]) -> str:
    begin = f"# Generated by `make reference` from {source} and docs/wire.\n"
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return begin + body
