"""Requests to a gateway, and the parts of them that tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from streams.gateway.http_gateway import Gateway
from tests.waiting import HANGS_AFTER

STEP: Mapping[str, Any] = {
    "users": [1, 2, 3],
    "norms": [1.0, 0.5, 0.25],
    "mechanism": {"type": "gaussian", "noise_stddev": 4.0},
}
OTHER_STEP = {**STEP, "norms": [0.5, 0.5, 0.25]}


class Response(NamedTuple):
    """A response of a gateway."""

    status: int
    body: Any
    headers: Mapping[str, str]


def ask(
    gateway: Gateway | str,
    method: str,
    path: str,
    body: Any = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Send a request; a body that is not bytes is sent as JSON."""
    address = urlsplit(gateway if isinstance(gateway, str) else gateway.url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=HANGS_AFTER)
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = dict(headers or {}) | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        connection.request(method, path, sent, given)
        response = connection.getresponse()
        content = response.read()
        return Response(response.status, json.loads(content), dict(response.headers))
    finally:
        connection.close()


def opened(gateway: Gateway | str, run: str = "r", key: str | None = None, **options: Any) -> str:
    """Open an attempt of a run of dataset d; return its path."""
    path = f"/v1/datasets/d/runs/{run}/attempts"
    response = ask(gateway, "POST", path, options, key=key)
    assert response.status == 200, response.body
    return f"{path}/{response.body['attempt']}"


def create(gateway: Gateway | str, key: str | None = None, **policy: Any) -> Response:
    """Create dataset d."""
    terms = {"name": "d", "measure": "zcdp", "budget": 1.0, **policy}
    return ask(gateway, "POST", "/v1/datasets", terms, key=key)
