"""`turnstile dashboard`: serve it until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import ssl
from collections.abc import Sequence

from streams.cli.output import Exit, note, show
from streams.config import Config, ConfigurationError
from streams.dashboard.server import Dashboard, is_loopback
from streams.dashboard.sessions import Sessions
from streams.operations.watching import Watch


def dashboard(options: argparse.Namespace, config: Config) -> int:
    """Serve the page; say where it is and, if nobody set one, the password."""
    host = options.listen.rpartition(":")[0]
    if not config.dashboard_password and not is_loopback(host):
        raise ConfigurationError(
            f"{options.listen} is reached from other machines: set "
            "TURNSTILE_DASHBOARD_PASSWORD_FILE to a file with a password, or listen on 127.0.0.1"
        )
    certificate = _certificate(options)
    if certificate is None and not is_loopback(host):
        note(
            "turnstile: without --certificate the password and the page are sent unencrypted: "
            "use it behind a proxy that encrypts, or give one"
        )
    addresses = options.worker or ([config.health] if config.health else [])
    asyncio.run(_serve(options, config, certificate, addresses))
    return Exit.OK


async def _serve(
    options: argparse.Namespace,
    config: Config,
    certificate: ssl.SSLContext | None,
    addresses: Sequence[str],
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    password = config.dashboard_password or secrets.token_urlsafe(9)
    watch = Watch(config, addresses, options.delta)
    served = Dashboard(watch, Sessions(password), options.listen, certificate)
    try:
        await served.start()
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {options.listen}: {error}") from error
    watch.start()
    show({"dashboard": served.url}, options.json)
    if not config.dashboard_password:
        note(f"The password of this start, for runs, spending and rejects: {password}")
    try:
        await stopped.wait()
    finally:
        await served.stop()
        await asyncio.to_thread(watch.close)


def _certificate(options: argparse.Namespace) -> ssl.SSLContext | None:
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
