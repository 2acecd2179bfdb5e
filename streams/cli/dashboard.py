"""`turnstile dashboard`: serve it until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import ssl
from collections.abc import Sequence

from streams.cli.output import Exit, note, show
from streams.cli.serving import certificate_of, serve_until_stopped
from streams.config import Config, ConfigurationError
from streams.dashboard.server import Dashboard
from streams.dashboard.sessions import Sessions
from streams.operations.watching import Watch
from streams.web.site import is_loopback


def dashboard(options: argparse.Namespace, config: Config) -> int:
    """Serve the page; say where it is and, if nobody set one, the password."""
    host = options.listen.rpartition(":")[0]
    if not config.dashboard_password and not is_loopback(host):
        raise ConfigurationError(
            f"{options.listen} is reached from other machines: set "
            "TURNSTILE_DASHBOARD_PASSWORD_FILE to a file with a password, or listen on 127.0.0.1"
        )
    certificate = certificate_of(options)
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
    password = config.dashboard_password or secrets.token_urlsafe(9)
    watch = Watch(config, addresses, options.delta)
    served = Dashboard(watch, Sessions(password), options.listen, certificate)

    def started() -> None:
        watch.start()
        show({"dashboard": served.url}, options.json)
        if not config.dashboard_password:
            note(f"The password of this start, for runs, spending and rejects: {password}")

    await serve_until_stopped(served, options.listen, started, watch.close)
