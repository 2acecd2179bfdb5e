"""`turnstile dashboard`: serve it until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import ssl
from collections.abc import Sequence

from streams.cli.output import Exit, note, show
from streams.cli.serving import certificate_of, is_reached_from_elsewhere, serve_until_stopped
from streams.config import Config, ConfigurationError
from streams.operations.watching import Watch
from streams.web.dashboard import Dashboard
from streams.web.sessions import Sessions


def dashboard(options: argparse.Namespace, config: Config) -> int:
    """Serve the page; print its address and, if none is set, a new password."""
    certificate = certificate_of(options)
    if is_reached_from_elsewhere(options) and not config.dashboard_password:
        raise ConfigurationError(
            f"other machines reach {options.url or options.listen}: set "
            "TURNSTILE_DASHBOARD_PASSWORD_FILE to a file with a password of 12 characters or more, "
            "or listen on 127.0.0.1 without --url"
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
    served = Dashboard(watch, Sessions(password), options.listen, certificate, page=options.url)

    def started() -> None:
        watch.start()
        show({"dashboard": options.url or served.url}, options.json)
        if not config.dashboard_password:
            note(f"The password, until this command ends: {password}")

    await serve_until_stopped(served, options.listen, started, watch.close)
