"""Pages about the wire in Markdown, from AsyncAPI and OpenAPI documents.

A page shows all records of its document, with all their fields. A part of JSON Schema that is
unknown here raises an error.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = {
    *("$ref", "type", "description", "title", "const", "enum", "format", "pattern", "default"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "examples"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "items", "contentEncoding"),
    *("properties", "required", "additionalProperties", "oneOf", "anyOf", "allOf", "if", "then"),
    *("not", "contentMediaType", "else", "$comment", "minProperties", "maxProperties"),
    *("dependentRequired", "propertyNames", "prefixItems", "discriminator"),
}
_RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " entries"),
)
_BOUNDS = {
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "pattern": "matches `{}`",
    "default": "default `{}`",
}
_COMMON = 4
"""A field that has one meaning in this many records is described once."""


class SchemaPage(ABC):
    """A page of a document with JSON schemas, whose references are followed."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._common: set[tuple[str, str]] = set()  # of a field's name and its meaning

    def text(self) -> str:
        """Return the page without its title."""
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._lines())).strip("\n") + "\n"

    @abstractmethod
    def _lines(self) -> Iterator[str]:
        """Yield the lines of the page."""

    def _title(self, name: str) -> str:
        message = self._document["components"].get("messages", {}).get(name, {})
        return str(message.get("title", name))

    def _link(self, name: str) -> str:
        return f"[{name}](#{self._title(name).lower().replace(' ', '-')})"

    def _schema(self, schema: dict[str, Any]) -> Iterator[str]:
        schema = self._flat(schema)
        fields = schema.get("properties")
        if not fields:
            yield from (f"{self._kind(schema)}. {self._rest(schema)}", "")
            return
        yield from (schema.get("description", ""), "")
        yield from ("| field | type | meaning |", "| --- | --- | --- |")
        required = set(schema.get("required", ()))
        for field, content in fields.items():
            given = "" if field in required else "*optional* "
            meaning = _cell(self._rest(content))
            if (field, meaning) in self._common:
                meaning = "[common](#common-fields)"
            yield f"| `{field}` | {given}{self._kind(content)} | {meaning} |"
        yield ""

    def _flat(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with its ``allOf`` and its own reference merged into it."""
        if "$ref" in schema:
            schema = {**self._followed(schema), **{k: v for k, v in schema.items() if k != "$ref"}}
        _check_known(schema)
        merged: dict[str, Any] = {"properties": {}, "required": []}
        for part in schema.get("allOf", ()):
            flat = self._flat(part)
            merged["properties"] |= flat.get("properties", {})
            merged["required"] += flat.get("required", [])
            merged |= {k: v for k, v in flat.items() if k not in ("properties", "required")}
        merged["properties"] |= schema.get("properties", {})
        merged["required"] += schema.get("required", [])
        rest = ("properties", "required", "allOf")
        return merged | {key: value for key, value in schema.items() if key not in rest}

    def _is_shown(self, name: str) -> bool:
        """Return False for the other form of a message, unless it has other fields."""
        messages = self._document["components"]["messages"]
        usual = messages.get(name.removesuffix("Msgpack"), {}).get("payload")
        is_other = name.endswith("Msgpack") and messages[name]["payload"] == usual
        return not is_other and not name.endswith("Json")

    def _kind(self, schema: dict[str, Any]) -> str:
        """Return the type of a field, or a link to its part."""
        if "$ref" in schema:
            return self._link(_name(schema))
        if "const" in schema:
            return f"`{schema['const']}`"
        if "enum" in schema:
            return " or ".join(f"`{value}`" for value in schema["enum"])
        for several, word in (("allOf", " and "), ("oneOf", " or "), ("anyOf", " or ")):
            if several in schema:
                return word.join(dict.fromkeys(self._kind(one) for one in schema[several]))
        if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
            return f"list of {self._kind(schema['items'])}"
        kind = schema.get("type", "anything")
        return " or ".join(kind) if isinstance(kind, list) else str(kind)

    def _rest(self, schema: dict[str, Any]) -> str:
        _check_known(schema)
        bounds = [
            _range(schema.get(least), schema.get(most)) + unit
            for least, most, unit in _RANGES
            if least in schema or most in schema
        ]
        bounds += [
            text.format(schema[key])
            for key, text in _BOUNDS.items()
            if schema.get(key) is not None  # the type tells already that a field can be null
        ]
        limits = "; ".join(bounds)
        if limits:
            limits = f"{limits[0].upper()}{limits[1:]}."
        return " ".join([schema.get("description", ""), limits]).strip()

    def _followed(self, reference: dict[str, Any]) -> dict[str, Any]:
        found: Any = reference
        while "$ref" in found:
            place: Any = self._document
            for step in found["$ref"].removeprefix("#/").split("/"):
                place = place[step]
            found = place
        return found


class WirePage(SchemaPage):
    """The page of one AsyncAPI document: topics and records."""

    def _lines(self) -> Iterator[str]:
        yield self._document["info"]["description"]
        yield from ("", "## Topics", "")
        for channel in self._document["channels"].values():
            yield from (f"### `{channel['address']}`", "", channel.get("description", ""), "")
            names = filter(
                self._is_shown, (_name(message) for message in channel["messages"].values())
            )
            yield f"Records: {', '.join(self._link(name) for name in names)}."
            yield ""
        yield from ("## Records", "")
        messages = self._document["components"]["messages"]
        shown = {name: self._followed(messages[name]) for name in messages if self._is_shown(name)}
        yield from self._common_fields([message["payload"] for message in shown.values()])
        for name, message in shown.items():
            yield from (f"### {self._title(name)}", "", message.get("description", ""), "")
            yield from self._schema(message["payload"])
        schemas = self._document["components"]["schemas"]
        parts = [name for name in schemas if name not in messages and not name.endswith("Json")]
        if parts:
            yield from ("## Parts of records", "")
        for name in parts:
            yield from (f"### {name}", "")
            yield from self._schema(schemas[name])

    def _common_fields(self, payloads: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the table of the fields that have one meaning in many records."""
        counts = Counter(
            (field, _cell(self._rest(content)))
            for payload in payloads
            for field, content in self._flat(payload)["properties"].items()
        )
        common: dict[str, str] = {}  # the meaning that a field has most often
        for (field, meaning), times in counts.most_common():
            if times >= _COMMON and field != "type":
                common.setdefault(field, meaning)
        self._common = set(common.items())
        if self._common:
            yield from ("### Common fields", "", "| field | meaning |", "| --- | --- |")
            yield from (f"| `{field}` | {meaning} |" for field, meaning in sorted(self._common))
            yield ""


class HttpPage(SchemaPage):
    """The page of one OpenAPI document: operations, problems, and bodies."""

    def _lines(self) -> Iterator[str]:
        yield self._document["info"]["description"]
        parts = self._document["components"]
        yield from (
            f"Bearer token: {one['description']}" for one in parts["securitySchemes"].values()
        )
        yield from ("", "## Operations", "", "| operation | request | body | response |")
        yield "| --- | --- | --- | --- |"
        operations = [
            (method, path, operation)
            for path, methods in self._document["paths"].items()
            for method, operation in methods.items()
        ]
        for method, path, operation in operations:
            body, response = operation.get("requestBody"), operation["responses"]["200"]
            cells = [
                _cell(f"`{operation['operationId']}`: {operation['summary']}"),
                f"`{method.upper()} {path}`",
                self._kind(_content(body)) if body else "none",
                self._kind(_content(response)),
            ]
            yield f"| {' | '.join(cells)} |"
        yield from ("", "| part of a path | type | meaning |", "| --- | --- | --- |")
        seen = {one["name"]: one for *_, operation in operations for one in operation["parameters"]}
        for name, one in seen.items():
            meaning = f"{one['description']} {self._rest(one['schema'])}"
            yield f"| `{name}` | {self._kind(one['schema'])} | {_cell(meaning)} |"
        yield from ("", "## Problems", "", "A problem is an [HttpProblem](#httpproblem).", "")
        codes = {
            _name(response): code
            for *_, operation in operations
            for code, response in operation["responses"].items()
            if "$ref" in response
        }
        for name, response in parts["responses"].items():
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
            yield from (f"### {codes[name]} {words}", "", response["description"], "")
        yield from ("## Bodies", "")
        for name, schema in parts["schemas"].items():
            yield from (f"### {name}", "")
            yield from self._schema(schema)


def _content(body: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a request's or a response's body."""
    (content,) = body["content"].values()
    return dict(content["schema"])


def _range(least: float | None, most: float | None) -> str:
    """Return a range in words, of which one end may be open."""
    if least is None or most is None:
        return f"at most {most}" if least is None else f"at least {least}"
    return f"{least}" if least == most else f"{least} to {most}"


def _name(reference: dict[str, Any]) -> str:
    """Return the name to which a reference leads."""
    return str(reference["$ref"].rpartition("/")[2])


def _check_known(schema: dict[str, Any]) -> None:
    if unknown := set(schema) - _KNOWN:
        raise ValueError(f"the page cannot show {sorted(unknown)} of a schema")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
