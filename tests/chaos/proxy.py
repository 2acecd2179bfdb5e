"""A network that fails: a relay on a loopback port, between clients and one server.

passing --slow--> slow       each chunk is delayed
passing --freeze-> frozen    connections stay open and transfer no data
passing --cut----> cut       open connections end, and new ones are refused
any     --heal---> passing   data that a frozen connection has received is delivered
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from streams.local.server_process import LOOPBACK

_Result = TypeVar("_Result")

_PIECE = 256 * 1024
_SLOW = 0.05
"""The delay of each chunk in each direction, in seconds, while the network is slow."""


class Network(Enum):
    """The states of a proxy."""

    PASSING = "passing"
    SLOW = "slow"
    FROZEN = "frozen"
    CUT = "cut"


class Proxy:
    """Relays one port to another in its own thread until it is closed."""

    def __init__(self, port: int, target: int) -> None:
        """Listen on ``port`` of the loopback address for connections to ``target`` there."""
        self.port = port
        self._target = target
        self._network = Network.PASSING
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}")
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._relay, LOOPBACK, port))

    @property
    def address(self) -> str:
        """Return the address that clients connect to, as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    def slow(self) -> None:
        """Delay each chunk."""
        self._become(Network.SLOW)

    def freeze(self) -> None:
        """Transfer no data, and keep all connections open."""
        self._become(Network.FROZEN)

    def cut(self) -> None:
        """End all open and new connections."""
        self._become(Network.CUT)

    def heal(self) -> None:
        """Transfer data without delay."""
        self._become(Network.PASSING)

    def close(self) -> None:
        """End all connections and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _become(self, network: Network) -> None:
        async def change() -> None:
            self._network = network
            (self._flows.clear if network is Network.FROZEN else self._flows.set)()
            if network is Network.CUT:
                for writer in list(self._open):
                    writer.transport.abort()

        self._call(change())

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._network is Network.CUT:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(LOOPBACK, self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (self._flow(reader, back), self._flow(there, writer))
        tasks = [asyncio.ensure_future(flow) for flow in both]
        self._open |= {writer, back}
        self._tasks.update(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for end in (writer, back):
                end.close()
            self._open -= {writer, back}
            self._tasks.difference_update(tasks)

    async def _flow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while piece := await reader.read(_PIECE):
                if self._network is Network.SLOW:
                    await asyncio.sleep(_SLOW)
                await self._flows.wait()
                writer.write(piece)
                await writer.drain()

    async def _close(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
