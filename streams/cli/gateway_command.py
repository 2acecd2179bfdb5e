"""The command that serves the HTTP API."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
from functools import partial

from streams.cli.page_commands import certificate_of, is_reached_from_elsewhere, serve_until_stopped
from streams.cli.printing import Exit, note, show, start_log
from streams.config import Config, ConfigurationError
from streams.gateway.callers import Callers, CallerSigner
from streams.gateway.http_gateway import Gateway
from streams.operations.status import read_datasets
from streams.records.signatures import InvalidKey
from streams.sdk.budget_file import create_file
from streams.sdk.client import Turnstile


def gateway(options: argparse.Namespace, config: Config) -> int:
    """Serve the HTTP API; print its address."""
    start_log("WARNING", config.log_format)
    certificate = certificate_of(options)
    if is_reached_from_elsewhere(options) and not config.gateway_keys:
        raise ConfigurationError(
            f"other machines can reach {options.url or options.listen}: set "
            "TURNSTILE_GATEWAY_KEYS_FILE to a file with the public keys of the callers, or listen "
            "on 127.0.0.1 without --url"
        )
    for name in ("request_key", "pseudonym_key"):
        if getattr(config, name):
            raise ConfigurationError(
                f"the gateway signs with the keys of its callers and sends users' ids as they are: "
                f"remove the setting {name}"
            )
    try:
        callers = Callers(config.gateway_keys)
    except InvalidKey as error:
        raise ConfigurationError(f"gateway_keys: {error}") from None
    if config.budgets:
        create_file(config.budgets, config.partitions)
    with Turnstile(config=config, signer=CallerSigner()) as turnstile:
        asyncio.run(_serve(options, config, turnstile, callers, certificate))
    return Exit.OK


async def _serve(
    options: argparse.Namespace,
    config: Config,
    turnstile: Turnstile,
    callers: Callers,
    certificate: ssl.SSLContext | None,
) -> None:
    served = Gateway(
        turnstile,
        partial(read_datasets, config),
        options.listen,
        certificate,
        timeout=config.timeout,
        callers=callers,
        page=options.url,
        most=options.most,
        largest=options.largest,
    )

    async def end_if_broken() -> None:
        await served.broken.wait()
        note("turnstile: answers of the service can no longer be read; start the gateway again")
        os._exit(Exit.UNAVAILABLE)  # callers repeat their requests at the next gateway

    watching = asyncio.create_task(end_if_broken())  # keep a reference until the end

    def started() -> None:
        show("page", {"page": options.url or served.url}, options.json)

    await serve_until_stopped(served, options.listen, started, lambda: None)
    watching.cancel()
