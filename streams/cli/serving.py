"""What the commands have in common that serve a page: `dashboard` and `portal`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
from collections.abc import Callable
from typing import Protocol

from streams.cli.options import address_of, path_of
from streams.config import ConfigurationError


class Served(Protocol):
    """A page's server."""

    async def start(self) -> None:
        """Listen."""

    async def stop(self) -> None:
        """Listen no more."""


def add_serving(command: argparse.ArgumentParser, listen: str) -> None:
    """Let a command be told where it listens, and as whom."""
    command.add_argument(
        "--listen",
        type=address_of,
        default=listen,
        metavar="HOST:PORT",
        help=f"(default {listen})",
    )
    command.add_argument(
        "--certificate", type=path_of, metavar="FILE", help="to be encrypted (PEM)"
    )
    command.add_argument("--key", type=path_of, metavar="FILE", help="of the certificate, if apart")


def certificate_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    """With what a page is encrypted, if it is.

    Raises:
        ConfigurationError: files that are none.
    """
    if options.certificate is None:
        if options.key is not None:
            raise ConfigurationError("--key is of a certificate: give --certificate as well")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:
        raise ConfigurationError(f"--certificate {options.certificate}: {error}") from error
    return context


async def serve_until_stopped(
    served: Served, listen: str, started: Callable[[], None], closed: Callable[[], None]
) -> None:
    """Serve a page until SIGINT or SIGTERM.

    Args:
        served: the page.
        listen: where.
        started: called when it listens.
        closed: called at the end; it may block.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await served.start()
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {listen}: {error}") from error
    started()
    try:
        await stopped.wait()
    finally:
        await served.stop()
        await asyncio.to_thread(closed)
