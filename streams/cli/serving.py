"""The parts that the commands `dashboard` and `portal` share: both serve a page."""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from streams.cli.options import address_of, path_of
from streams.config import ConfigurationError
from streams.http_server import is_https, is_loopback


class Served(Protocol):
    """The server of a page."""

    async def start(self) -> None:
        """Listen."""

    async def stop(self) -> None:
        """Stop listening."""


def add_serving(command: argparse.ArgumentParser, listen: str) -> None:
    """Add the options for the address of a page and for TLS."""
    command.add_argument(
        "--listen",
        type=address_of,
        default=listen,
        metavar="HOST:PORT",
        help=f"(default {listen})",
    )
    command.add_argument("--certificate", type=path_of, metavar="FILE", help="for TLS (PEM)")
    command.add_argument(
        "--key", type=path_of, metavar="FILE", help="the key of the certificate, if in another file"
    )
    add_url(command)


def add_url(command: argparse.ArgumentParser) -> None:
    """Add the option for the URL of a page."""
    command.add_argument(
        "--url", type=_url_of, metavar="URL", help="of the page for browsers, at a proxy"
    )


def certificate_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS settings of a page that other machines may reach, None without TLS.

    Raises:
        ConfigurationError: other machines reach the address without TLS, or a file is unusable.
    """
    if options.certificate is None:
        if options.key is not None:
            raise ConfigurationError("--key is of a certificate: give --certificate as well")
        if not is_https(options.url) and is_reached_from_elsewhere(options):
            raise ConfigurationError(
                f"other machines reach {options.url or options.listen} without TLS: an observer of "
                "the network could read the page and take over a session. Give --certificate or, "
                "behind a proxy with TLS, the https --url of the page"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:
        raise ConfigurationError(f"--certificate {options.certificate}: {error}") from error
    return context


def is_reached_from_elsewhere(options: argparse.Namespace) -> bool:
    """Return whether browsers on other machines reach a page."""
    hosts = [options.listen.rpartition(":")[0]]
    if options.url is not None:
        hosts.append(urlsplit(options.url).hostname)
    return not all(map(is_loopback, hosts))


def _url_of(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no page: give one like https://privacy.example.org/"
        )
    return text


async def serve_until_stopped(
    served: Served, listen: str, started: Callable[[], None], closed: Callable[[], None]
) -> None:
    """Serve a page until SIGINT or SIGTERM.

    Args:
        served: the page.
        listen: its address.
        started: called when the server listens.
        closed: called at the end; it may block.

    Raises:
        ConfigurationError: the server cannot listen at this address.
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
