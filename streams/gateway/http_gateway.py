"""The gateway's server: which requests are handled, when, and with which response.

1. The caller's key is read, and callers without the right are refused.
2. A place is taken, or the request is refused with 429. The place is free again when the work has
   ended, even if the caller has disconnected by then.
3. The body is read, within a limit of bytes and of seconds.
4. Requests of one attempt wait for each other, since two that publish the same step at once could
   not tell their answers apart.
5. A thread calls the SDK. Only its complete result is a response with status 200.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib import resources
from typing import Any, Final, get_args
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from streams.config import failure_of
from streams.gateway.callers import Callers, acting_for
from streams.gateway.http_operations import (
    OPERATIONS,
    PARAMETERS,
    GatewayCall,
    Operation,
    StoredFacts,
)
from streams.gateway.messages import HttpProblem
from streams.gateway.problems import (
    RETRIED,
    RETRY_AFTER,
    STATUSES,
    ProblemReason,
    RequestFailed,
    problem_of,
)
from streams.http_server import Handler, HttpServer
from streams.records.signatures import RequestSigner
from streams.sdk.client import Turnstile
from streams.sdk.connection import Deadline

logger = logging.getLogger("turnstile.gateway")

JSON: Final = "application/json"
PROBLEM_JSON: Final = "application/problem+json"
MOST_REQUESTS: Final = 32
LARGEST_BODY: Final = 8 * 1024 * 1024
_BODY_WITHIN = 30.0


class Gateway(HttpServer):
    """The gateway's server.

    Attributes:
        broken: set once answers of the service can no longer be received; start another gateway.
    """

    gives_up = False  # the work in a thread goes on, and keeps its place until it has ended

    def __init__(
        self,
        turnstile: Turnstile,
        stored: StoredFacts,
        address: str,
        certificate: ssl.SSLContext | None = None,
        *,
        timeout: float,
        callers: Callers | None = None,
        page: str | None = None,
        most: int = MOST_REQUESTS,
        largest: int = LARGEST_BODY,
    ) -> None:
        """Describe the server; ``start`` listens.

        Args:
            turnstile: a client of the service whose signer is a ``CallerSigner``.
            stored: reads the stored state of the service.
            address: host:port to listen on; port 0 takes a free port.
            certificate: for TLS.
            timeout: seconds that a request waits for all partitions.
            callers: the callers that are served; by default all.
            page: the URL at which callers reach the gateway through a proxy.
            most: maximum number of requests that are handled at the same time.
            largest: maximum size of a request body, in bytes.
        """
        super().__init__(address, page=page, certificate=certificate, largest=largest)
        self.broken = asyncio.Event()
        self._turnstile, self._stored, self._timeout = turnstile, stored, timeout
        self._callers = callers or Callers()
        self._most, self._busy = most, 0
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="turnstile-gateway")
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()
        document = resources.files("streams.gateway").joinpath("openapi.json").read_bytes()
        self.get("/openapi.json", _always(document))
        self.get("/livez", _always(b"{}"))
        for operation in OPERATIONS:
            serve = self.get if operation.method == "GET" else self.post
            serve(operation.path, self._handler(operation))

    async def stop(self) -> None:
        """Stop listening. Requests that are handled still end in their threads."""
        await super().stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def describe(self, error: web.Response) -> None:
        """Give an error of the server the body of a problem."""
        reasons = (reason for reason in ProblemReason if STATUSES[reason] == error.status)
        reason = next(reasons, ProblemReason.MALFORMED_REQUEST)
        detail = HTTPStatus(error.status).description
        problem = HttpProblem(status=error.status, reason=reason, detail=detail)
        error.body = msgspec.json.encode(problem)
        error.headers["Content-Type"] = PROBLEM_JSON

    def _handler(self, operation: Operation) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            try:
                # Steps 1 and 2.
                signer = self._callers.signer_of(request.headers.get("Authorization"))
                if operation.for_curator:
                    self._callers.check_curator(signer)
                if self._busy >= self._most:
                    raise RequestFailed(
                        ProblemReason.TOO_MANY_REQUESTS,
                        f"{self._most} requests are handled at this time: send this one again",
                    )
            except RequestFailed as error:
                return self._failed(error)
            self._busy += 1
            try:
                return await self._answer(operation, request, signer)
            finally:
                self._busy -= 1

        return handle

    async def _answer(
        self, operation: Operation, request: web.Request, signer: RequestSigner | None
    ) -> web.Response:
        """Return the response to a request; raise nothing, since its caller may be gone."""
        try:
            # Step 3.
            content = await self._read(operation, request)
            place = _place_of(request)
            deadline = Deadline.after(self._timeout)

            def work() -> bytes:
                body = operation.body and _decoded(content, operation.body)
                call = GatewayCall(self._turnstile, self._stored, deadline, place, body)
                with acting_for(signer):
                    return msgspec.json.encode(operation.answer(call))

            # Steps 4 and 5.
            loop = asyncio.get_running_loop()
            async with self._lock_of(place):
                encoded = await loop.run_in_executor(self._threads, work)
        except Exception as error:
            return self._failed(error)
        return web.Response(body=encoded, content_type=JSON)

    async def _read(self, operation: Operation, request: web.Request) -> bytes:
        if operation.body is None:
            return b""
        try:
            async with asyncio.timeout(_BODY_WITHIN):
                return await request.read()
        except TimeoutError:
            raise RequestFailed(
                ProblemReason.BODY_TIMEOUT, f"the body did not arrive in {_BODY_WITHIN:g} s"
            ) from None
        except ConnectionResetError:  # the caller hung up: the gateway has not failed
            raise RequestFailed(
                ProblemReason.MALFORMED_REQUEST, "the connection was closed before the body came"
            ) from None
        except web.HTTPRequestEntityTooLarge:
            raise RequestFailed(
                ProblemReason.BODY_TOO_LARGE, "the body is too large: charge fewer users per step"
            ) from None

    def _lock_of(self, place: Mapping[str, Any]) -> asyncio.Lock:
        """Return the lock of an attempt; a new one for requests that name none."""
        if "attempt" not in place:
            return asyncio.Lock()
        key = place["dataset"], place["run"], place["attempt"]
        lock = self._locks.get(key) or asyncio.Lock()
        self._locks[key] = lock
        return lock

    def _failed(self, error: Exception) -> web.Response:
        problem = problem_of(error)
        if problem.reason == ProblemReason.FAILED:
            logger.error("a request failed: %s", failure_of(error))
        if self._turnstile.is_broken:
            self.broken.set()
        response = web.Response(
            status=problem.status, body=msgspec.json.encode(problem), content_type=PROBLEM_JSON
        )
        if problem.status in RETRIED:
            response.headers["Retry-After"] = str(RETRY_AFTER)
        if problem.status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def _place_of(request: web.Request) -> dict[str, Any]:
    """Return the parameters of the path.

    Raises:
        RequestFailed: one of them is invalid.
    """
    try:
        return {
            name: msgspec.convert(text, PARAMETERS[name], strict=False)
            for name, text in request.match_info.items()
        }
    except msgspec.ValidationError as error:
        raise RequestFailed(ProblemReason.MALFORMED_REQUEST, f"the path: {error}") from None


def _decoded(content: bytes, body: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the body of a request.

    Raises:
        RequestFailed: it does not have this form. The text names the field and quotes no value.
    """
    try:
        return msgspec.json.decode(content, type=body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = f"the body: {error}"
        if "unknown field" in detail:
            detail += f". Known are {_fields_of(body)}"
        raise RequestFailed(ProblemReason.MALFORMED_REQUEST, detail) from None


def _fields_of(body: type[msgspec.Struct]) -> str:
    """Return the names of all fields of a body, with those of objects in brackets."""
    known = []
    for field in msgspec.structs.fields(body):
        inner: dict[str, None] = {}  # a set in the order of the fields
        for kind in get_args(field.type):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                tag = kind.__struct_config__.tag_field
                inner |= dict.fromkeys([*([tag] if tag else []), *kind.__struct_fields__])
        known.append(f"{field.name} ({', '.join(inner)})" if inner else field.name)
    return ", ".join(known)


def _always(content: bytes) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=JSON)

    return answer
