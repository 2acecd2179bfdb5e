"""The health endpoints and metrics of a worker or an answerer.

GET /livez    200 while the event loop runs. If it does not answer, restart the process.
GET /readyz   200 after the process was assigned its partitions, which may be none.
GET /healthz  200 if every assigned partition is decided. 503 lists the others with their problems.
GET /metrics  in the Prometheus text format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.http_server import HttpServer
from streams.store.misfit import Problem
from streams.worker.ownership import PartitionView

STALLED_AFTER = 10.0
"""Seconds for which records may wait while none is applied."""


class Assignment(Protocol):
    """The partitions that are assigned to a process."""

    @property
    def is_assigned(self) -> bool:
        """True if Kafka has assigned partitions to the process."""

    def views(self) -> Sequence[PartitionView]:
        """Return the present state of each partition."""


class HealthServer(HttpServer):
    """Serves the health endpoints on one address. There is no login: every client can read.

    ``exposition`` returns all metrics in the Prometheus text format.
    """

    def __init__(self, address: str, exposition: Callable[[], bytes], owned: Assignment) -> None:
        super().__init__(address)
        self._exposition, self._owned = exposition, owned
        self.get("/livez", self._live)
        self.get("/readyz", self._ready)
        self.get("/healthz", self._healthy)
        self.get("/metrics", self._measured)

    async def _live(self, _: web.Request) -> web.Response:
        return _json(200, {"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self._owned.is_assigned
        return _json(200 if ready else 503, {"ready": ready})

    async def _healthy(self, _: web.Request) -> web.Response:
        views = self._owned.views()
        problems = {view.partition: found for view in views if (found := problem_of(view))}
        return _json(
            503 if problems else 200,
            {
                "healthy": not problems,
                "partitions": [view.partition for view in views],
                "problems": [
                    {"partition": partition, **asdict(found)}
                    for partition, found in problems.items()
                ],
            },
        )

    async def _measured(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def problem_of(view: PartitionView) -> Problem | None:
    """Return why an assigned partition is not decided; None if it is."""
    if view.problem is not None:
        return view.problem
    if view.waiting is not None and view.waiting > STALLED_AFTER:
        return Problem(
            "stalled",
            f"records wait, and none was applied for {view.waiting:.0f} seconds",
            "Read the worker's log",
        )
    return None


def _json(status: int, content: dict[str, Any]) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(status=status, body=body, content_type="application/json")
