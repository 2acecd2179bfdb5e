"""The OpenAPI document describes the gateway that serves it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from streams.gateway.http_operations import OPERATIONS
from streams.gateway.problems import STATUSES
from tests.gateways import gateway_to
from tests.keys import private_key, public
from tests.readme import TOP
from tests.unit.gateway.asking import STEP, ask, create, opened
from tests.unit.sdk.partitions import Partitions

STORED = (TOP / "deploy" / "openapi.json").read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = json.loads(STORED)
COLLECTS = "/v1/datasets/d/runs/collects"
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_gateway_serves_the_stored_document() -> None:
    with gateway_to(Partitions()) as gateway:
        assert ask(gateway, "GET", "/openapi.json").body == DOCUMENT


def test_every_operation_field_and_status_is_described() -> None:
    described = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}
    for name, schema in SCHEMAS.items():
        assert schema["description"], name
        for field, content in schema["properties"].items():
            assert content.get("description") or field == "type", (name, field)
    for methods in DOCUMENT["paths"].values():
        for one in methods.values():
            assert set(one["responses"]) == {"200", *map(str, STATUSES.values())}


def test_schemas_are_valid_and_every_reference_is_defined() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = re.findall(r'"\$ref": "#/([^"]+)"', STORED)
    assert references
    for reference in references:
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]


def test_responses_fit_their_schemas() -> None:
    with gateway_to(Partitions(), curators=public("carol")) as gateway:
        made = create(gateway, user_ids="integer", assume_independent_timing=True)
        path = opened(gateway)
        collecting = opened(gateway, "collects", collect={"clip_norm": 1.0})
        norms = {name: STEP[name] for name in ("users", "norms")}
        noise = {"mechanism": STEP["mechanism"]}
        asked, key = {"users": STEP["users"]}, private_key("carol")
        responses = [
            (made, "Dataset"),
            (ask(gateway, "GET", path), "AttemptState"),
            (ask(gateway, "POST", f"{path}/steps/0", STEP), "ChargeDecision"),
            (ask(gateway, "GET", collecting), "AttemptState"),
            (ask(gateway, "POST", f"{COLLECTS}/steps/0/norms", norms), "SentNorms"),
            (
                ask(gateway, "POST", f"{collecting}/steps/0/collected", noise),
                "CollectedChargeDecision",
            ),
            (ask(gateway, "GET", f"{path}/halts"), "HaltList"),
            (ask(gateway, "GET", "/v1/datasets"), "DatasetList"),
            (ask(gateway, "GET", "/v1/datasets/d/budget"), "BudgetList"),
            (ask(gateway, "POST", "/v1/datasets/d/balances", asked, key=key), "BalanceList"),
            (create(gateway, budget=2.0), "HttpProblem"),
        ]
    for response, name in responses:
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
        jsonschema.Draft202012Validator(schema).validate(response.body)
