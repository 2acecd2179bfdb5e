"""What a worker or an answerer says over HTTP: is it alive, does it decide, and its metrics.

GET /livez    200 while its event loop turns; restarting it mends nothing else
GET /readyz   200 once it has been given its partitions (which may be none)
GET /healthz  200 if every partition that it was given is decided; 503 says which is not, and why
GET /metrics  for Prometheus
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.worker.partitions import PartitionView

STALLED_AFTER = 10.0
"""Seconds for which records may wait while none is applied."""


class Measured(Protocol):
    """What /metrics shows."""

    def exposition(self) -> bytes:
        """All of it, as Prometheus reads it."""


class Given(Protocol):
    """The partitions that a process was given."""

    @property
    def is_assigned(self) -> bool:
        """Whether it is known which they are."""

    def views(self) -> Sequence[PartitionView]:
        """How they are."""


class HealthServer:
    """Answers on one address for as long as the worker lives."""

    def __init__(self, address: str, metrics: Measured, owned: Given) -> None:
        """Describe it; ``start`` listens.

        Args:
            address: host:port; with 0.0.0.0 everybody who reaches the machine reads it.
            metrics: what /metrics shows.
            owned: the partitions of the worker.
        """
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._metrics, self._owned = metrics, owned
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or is not of this machine.
        """
        app = web.Application()
        for path, answer in (
            ("/livez", self._live),
            ("/readyz", self._ready),
            ("/healthz", self._healthy),
            ("/metrics", self._measured),
        ):
            app.router.add_get(path, answer)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _json(200, {"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self._owned.is_assigned
        return _json(200 if ready else 503, {"ready": ready})

    async def _healthy(self, _: web.Request) -> web.Response:
        views = self._owned.views()
        problems = {view.partition: problem for view in views if (problem := problem_of(view))}
        return _json(
            503 if problems else 200,
            {
                "healthy": not problems,
                "partitions": [view.partition for view in views],
                "problems": problems,
            },
        )

    async def _measured(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def problem_of(view: PartitionView) -> str | None:
    """Why a partition that a worker was given is not decided, if so."""
    if view.problem is not None:
        return view.problem
    if view.waiting is not None and view.waiting > STALLED_AFTER:
        return f"records wait, and none was applied for {view.waiting:.0f} seconds"
    return None


def _json(status: int, content: dict[str, Any]) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(status=status, body=body, content_type="application/json")
