"""A server repeats and logs nothing of a request, refuses foreign names, and guards each answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from streams.http_server import LONGEST_FIELD, LONGEST_LINE, MOST_FIELDS, HttpServer, is_loopback

SECRET = "eyJ1c2VyIjoiYWRhIn0"
UNREADABLE = {
    "a long field": f"GET / HTTP/1.1\r\nAuthorization: {SECRET * LONGEST_FIELD}\r\n\r\n",
    "a long line": f"GET /?{SECRET * LONGEST_LINE} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "many fields": "GET / HTTP/1.1\r\n" + f"A: {SECRET}\r\n" * (MOST_FIELDS + 1) + "\r\n",
    "no request": f"{SECRET}\r\n\r\n",
    "no version": f"GET /{SECRET} SPDY/9\r\n\r\n",
    "an odd field": f"GET / HTTP/1.1\r\nHost: localhost\r\n{SECRET}\r\n\r\n",
    "an odd length": f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SECRET}\r\n\r\n",
    "no body": f"POST /?{SECRET} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}
READABLE = {
    "another path": f"GET /{SECRET} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another method": f"TRACE / HTTP/1.1\r\nHost: localhost\r\nX: {SECRET}\r\n\r\n",
    "another name": f"GET / HTTP/1.1\r\nHost: {SECRET}.example\r\n\r\n",
    "no name": f"GET / HTTP/1.0\r\nX: {SECRET}\r\n\r\n",
    "another site": f"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://{SECRET}\r\n\r\n",
    "a large body": f"POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9500\r\n\r\n{SECRET * 500}",
    "a failure": f"GET /fails?{SECRET} HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def serve(ask: Callable[[HttpServer], Awaitable[None]], **options: str) -> None:
    async def fail(request: web.Request) -> web.Response:
        raise KeyError(request.query_string)

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text="taken")

    async def asked() -> None:
        server = HttpServer("127.0.0.1:0", **options)
        server.get("/", take)
        server.post("/", take)
        server.get("/fails", fail)
        await server.start()
        try:
            await ask(server)
        finally:
            await server.stop()

    asyncio.run(asked())


async def sent(server: HttpServer, request: str) -> str:
    """The response to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request.encode())
    response = await reader.readuntil(b"\r\n\r\n")
    length = int(response.lower().partition(b"content-length: ")[2].split()[0])
    response += await reader.readexactly(length)
    writer.close()
    return response.decode()


@pytest.mark.parametrize(
    "request_", [*UNREADABLE.values(), *READABLE.values()], ids=[*UNREADABLE, *READABLE]
)
def test_nothing_of_a_refused_request_is_repeated_or_logged(
    request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(server: HttpServer) -> None:
        response = await sent(server, request_)
        assert response.split()[1] in {"400", "403", "404", "405", "413", "500"}
        assert SECRET not in response
        for name in ("Content-Security-Policy", "X-Content-Type-Options", "Cache-Control"):
            assert f"{name}: " in response
        assert "aiohttp" not in response

    caplog.set_level(logging.DEBUG)
    serve(ask)
    assert SECRET not in caplog.text
    is_bug = request_ == READABLE["a failure"]
    assert [record.levelname for record in caplog.records if record.name != "asyncio"] == (
        ["ERROR"] if is_bug else []
    )
    assert ("KeyError" in caplog.text) == is_bug


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:80", "[::1]", "own.example", "own.example:443"]
)
def test_its_own_names_are_answered(host: str) -> None:
    async def ask(server: HttpServer) -> None:
        fields = (f"Host: {host}", f"Origin: https://{host}", "Content-Length: 0")
        request = "\r\n".join(("POST / HTTP/1.1", *fields, "", ""))
        assert (await sent(server, request)).split()[1] == "200"

    serve(ask, page="https://own.example/")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_told_from_others(host: str, local: bool) -> None:
    assert is_loopback(host) is local
