"""Whatever is sent to a gateway, its response is one of its document, and no failure (5xx).

Half of the generated requests are sent to a run that exists, so that they reach the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.gateways import gateway_to
from tests.keys import private_key, public
from tests.readme import TOP
from tests.unit.gateway.asking import ask, create, opened
from tests.unit.sdk.partitions import Partitions

schemathesis = pytest.importorskip("schemathesis")

DOCUMENT = json.loads((TOP / "deploy" / "openapi.json").read_text(encoding="utf-8"))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


class Live:
    """A gateway with an open run."""

    def __init__(self, url: str) -> None:
        self.url, self.sent, self.key = url, 0, private_key("carol")
        create(url, user_ids="mixed", assume_independent_timing=True)
        self.path = opened(url)
        self.collecting = opened(url, "collects", collect={"clip_norm": 1.0})

    def place(self, given: dict[str, Any], operation: str) -> dict[str, Any]:
        """Return the parameters of a path: every other time, those of the open run."""
        self.sent += 1
        if self.sent % 2:
            return given
        path = self.collecting if operation in ("send_norms", "charge_collected") else self.path
        run, _, attempt = path.split("/")[-3:]
        found = {"dataset": "d", "run": run, "attempt": attempt}
        if operation in ("open_attempt", "close_run"):
            found["run"] = "other"  # the open run stays open
        if "step" in given:
            found["step"] = str(ask(self.url, "GET", path).body.get("step", 0))
        return {name: found[name] for name in given}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with gateway_to(Partitions(), curators=public("carol"), largest=2**16) as gateway:
        yield Live(gateway.url)


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(examples(60), suppress_health_check=list(HealthCheck))
def test_every_response_is_one_of_the_document(case: Any, live: Live) -> None:
    operation = case.operation.definition.raw["operationId"]
    case.path_parameters = live.place(dict(case.path_parameters or {}), operation)
    if operation == "list_balances" and live.sent % 2 == 0:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {live.key}"}
    response = case.call(base_url=live.url.rstrip("/"))
    assert response.status_code < 500, response.text
    # Some requests of the right form make no sense, such as two equal ids: status 422.
    case.validate_response(response, excluded_checks=[schemathesis.checks.positive_data_acceptance])
