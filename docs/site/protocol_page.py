"""``{asyncapi} FILE``: channels, records and their fields, from an AsyncAPI document.

Of AsyncAPI and JSON Schema it knows what that document uses; what it does not know is an error of
the build, so that nothing is left out of the page in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_KNOWN = {
    *("$ref", "type", "description", "title", "const", "enum", "format", "pattern", "default"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "examples"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "items", "contentEncoding"),
    *("properties", "required", "additionalProperties", "oneOf", "anyOf", "allOf", "if", "then"),
    *("not", "contentMediaType", "else", "$comment", "minProperties", "maxProperties"),
    *("dependentRequired", "propertyNames", "prefixItems"),
}
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "pattern": "matches `{}`",
    "default": "`{}` if it is not given",
}


class AsyncApi(SphinxDirective):
    """Renders a document as sections in Markdown, which the page's own parser reads."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The sections."""
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        document = Document(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
        return self.parse_text_to_nodes("\n".join(document.lines()), allow_section_headings=True)


class Document:
    """An AsyncAPI document whose references are followed."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole

    def lines(self) -> Iterator[str]:
        """The page, in Markdown."""
        yield from ("## In general", "", self._whole["info"]["description"])
        yield from ("", "## Topics", "")
        for channel in self._whole["channels"].values():
            yield from (f"### `{channel['address']}`", "", channel.get("description", ""), "")
            names = filter(_is_shown, (_name(message) for message in channel["messages"].values()))
            yield "Records: " + ", ".join(f"[{name}](#{self._anchor(name)})" for name in names)
            yield ""
        yield from ("## Records", "")
        for name, message in self._whole["components"]["messages"].items():
            if _is_shown(name):
                yield from self._message(name, self._followed(message))
        records = self._whole["components"]["messages"]
        schemas = self._whole["components"]["schemas"].items()
        parts = [(name, schema) for name, schema in schemas if name not in records]
        if parts:
            yield from ("## Parts of records", "")
        for name, schema in parts:
            yield from (f"({self._anchor(name)})=", f"### {name}", "")
            yield from self._schema(schema)

    @staticmethod
    def _anchor(name: str) -> str:
        return f"record-{name.lower()}"

    def _message(self, name: str, message: dict[str, Any]) -> Iterator[str]:
        yield from (f"({self._anchor(name)})=", f"### {message.get('title', name)}", "")
        yield from (message.get("summary", ""), "", message.get("description", ""), "")
        yield from self._schema(message["payload"])

    def _schema(self, schema: dict[str, Any]) -> Iterator[str]:
        schema = self._flat(schema)
        fields = schema.get("properties")
        if not fields:
            yield from (self._words(schema), "")
            return
        yield from (schema.get("description", ""), "")
        yield from ("| field | | |", "| --- | --- | --- |")
        required = set(schema.get("required", ()))
        for field, of in fields.items():
            given = "" if field in required else "*optional* "
            yield f"| `{field}` | {given}{self._kind(of)} | {_cell(self._rest(of))} |"
        yield ""

    def _flat(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema with what it is made of (``allOf``, references at its top) merged into it."""
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

    def _kind(self, schema: dict[str, Any]) -> str:
        """Of a field: a link to its part, or its type."""
        if "$ref" in schema:
            name = _name(schema)
            return f"[{name}](#{self._anchor(name)})"
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
        bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
        return " ".join([schema.get("description", ""), "; ".join(bounds)]).strip()

    def _words(self, schema: dict[str, Any]) -> str:
        kind = self._kind({key: value for key, value in schema.items() if key != "$ref"})
        return f"{kind}. {self._rest(schema)}"

    def _followed(self, reference: dict[str, Any]) -> dict[str, Any]:
        found: Any = reference
        while "$ref" in found:
            place: Any = self._whole
            for step in found["$ref"].removeprefix("#/").split("/"):
                place = place[step]
            found = place
        return found


def _name(reference: dict[str, Any]) -> str:
    """What a reference refers to."""
    return str(reference["$ref"].rpartition("/")[2])


def _check_known(schema: dict[str, Any]) -> None:
    if unknown := set(schema) - _KNOWN:
        raise ValueError(f"the page does not know {sorted(unknown)} of a schema")


def _is_shown(name: str) -> bool:
    """The form in JSON is not: its fields are those of the record, which is shown."""
    return not name.endswith("Json")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("asyncapi", AsyncApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
