"""A TLS proxy for a Redis that was built without TLS.

The `redis-server` of the tests was built without TLS. The proxy stands for the server's own TLS
port, and the server announces the proxy's port.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from streams.local.server_process import LOOPBACK

_HANDSHAKE = b"\x16"  # the first byte of a TLS connection
_PIECE = 64 * 1024


class Encrypting:
    """A TLS port, in its own thread, until it is closed.

    Attributes:
        port: the port on which it listens.
        target: the port to which it connects, once that is known.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        target: int = 0,
        *,
        host: str = LOOPBACK,
        plain_too: bool = False,
    ) -> None:
        """Listen.

        Args:
            context: the server's TLS context.
            target: a port on the loopback address.
            host: a loopback address.
            plain_too: whether plain connections are relayed as well, for a Sentinel without TLS
            that must announce the port.
        """
        self.target = target
        self._context, self._plain_too = context, plain_too
        self._listening = socket.create_server((host, 0))
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"tls-{self.port}")
        self._thread.start()

    def close(self) -> None:
        """End all connections and the thread."""
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._accepting = self._loop.create_task(self._accept())
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)
        self._listening.close()
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _accept(self) -> None:
        connections: set[asyncio.Task[None]] = set()
        while True:
            client, _ = await self._loop.sock_accept(self._listening)
            connections.add(task := self._loop.create_task(self._serve(client)))
            task.add_done_callback(connections.discard)

    async def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            is_encrypted = await self._first(client) == _HANDSHAKE
            if not is_encrypted and not self._plain_too:
                client.close()
                return
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self._context if is_encrypted else None
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            try:
                there, back = await asyncio.open_connection(LOOPBACK, self.target)
                await _relay((reader, back), (there, writer))
            finally:
                writer.close()

    async def _first(self, client: socket.socket) -> bytes:
        """Return the first byte without consuming it."""
        readable = asyncio.Event()
        self._loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(client)
        return client.recv(1, socket.MSG_PEEK)


_Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _relay(there: _Way, back: _Way) -> None:
    """Relay data in both directions until one side closes."""
    flows = [asyncio.ensure_future(_pump(*way)) for way in (there, back)]
    try:
        await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for flow in flows:
            flow.cancel()
        there[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
