"""The commands that serve HTTP: the dashboard, the gateway and the portal."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from accounting.exact.invalid_input import quoted
from streams.cli.commands import command
from streams.cli.options import (
    AT_DELTA,
    FILE_OBSERVER,
    OBSERVER,
    PAGE_URL,
    WORKERS,
    arg,
    hex_id_of,
    page_options,
    user_option,
    whole,
)
from streams.cli.printing import UnusableInput, note, show, start_log
from streams.cli.subjects import integer_of, user_of
from streams.config import Config, ConfigurationError
from streams.failures import Exit
from streams.operations.balance import read_balances
from streams.operations.status import read_datasets
from streams.records import User
from streams.records.signatures import InvalidKey
from streams.records.users import normal_form
from streams.sdk.budget_file import create_file
from streams.sdk.client import Turnstile
from streams.sdk.step_layout import Pseudonyms
from streams.web.links import Claims, LinkKeys, Visits

if TYPE_CHECKING:
    from streams.http_server import HttpServer

MOST_DAYS: Final = 3660
"""Days for which a link to a user's page can be valid."""
_DAY: Final = 24 * 60 * 60  # seconds


@command("dashboard", OBSERVER, *page_options("127.0.0.1:8480"), AT_DELTA, WORKERS, lines=("page",))
def dashboard(options: argparse.Namespace, config: Config) -> int:
    """Serve live, read-only pages about the service and its answers.

    All users of this machine see the state of the service and, at /answers, the published answers.
    Numbers of users, runs and rejected records need the password in
    TURNSTILE_DASHBOARD_PASSWORD_FILE. Without one the command creates a password and prints it. If
    other machines can reach the pages, they need a password for everything, and TLS.
    """
    from streams.web.answer_reader import AnswerReader
    from streams.web.dashboard import Dashboard
    from streams.web.sessions import Sessions
    from streams.web.watching import Watch

    start_log("WARNING", config.log_format)
    certificate = certificate_of(
        options,
        secret=config.dashboard_password,
        setting="TURNSTILE_DASHBOARD_PASSWORD_FILE to a file with a password of 12 characters",
    )
    addresses = options.worker or ([config.health] if config.health else [])
    password = config.dashboard_password or secrets.token_urlsafe(9)
    watch, answers = Watch(config, addresses, options.delta), AnswerReader(config)
    served = Dashboard(
        watch.facts, answers, Sessions(password), options.listen, certificate, page=options.url
    )

    def started() -> None:
        watch.start()
        answers.start()
        if not config.dashboard_password:
            note(f"The password until this command ends: {password}")

    def closed() -> None:
        answers.close()
        watch.close()

    asyncio.run(serve_until_stopped(served, options, started, closed))
    return Exit.OK


@command(
    "gateway",
    FILE_OBSERVER,
    *page_options("127.0.0.1:8482"),
    arg(
        "--most N",
        "the requests that are handled at the same time; others get status 429",
        whole(1, 1024),
        default=32,
    ),
    arg("--largest BYTES", "the largest body of a request", whole(1024, 2**30), default=2**23),
    lines=("page",),
)
def gateway(options: argparse.Namespace, config: Config) -> int:
    """Serve an HTTP API for callers without a Kafka client.

    It holds no state and no key: any number of gateways can run side by side. A caller sends its
    private key with each request, and the gateway signs the request with it. If other machines can
    reach the gateway, it needs TLS, and the callers' public keys in TURNSTILE_GATEWAY_KEYS_FILE.
    docs/gateway.md has the paths and the errors.
    """
    from streams.gateway.callers import Callers, CallerSigner
    from streams.gateway.http_gateway import Gateway
    from streams.gateway.http_operations import StoredFacts

    start_log("WARNING", config.log_format)
    certificate = certificate_of(
        options,
        secret=config.gateway_keys,
        setting="TURNSTILE_GATEWAY_KEYS_FILE to a file with the public keys of the callers",
    )
    for name in ("request_key", "pseudonym_key"):
        if getattr(config, name):
            raise ConfigurationError(
                f"the gateway signs with the keys of its callers and sends users' ids as they are: "
                f"remove the setting {name}"
            )
    try:
        callers = Callers(config.gateway_keys, config.curator_keys)
    except InvalidKey as error:
        raise ConfigurationError(f"gateway_keys or curator_keys: {error}") from None
    read = partial(read_datasets, config, moved_too=False)
    if config.budgets:
        create_file(config.budgets, config.partitions)
        read()  # a file that was moved ends the command
    with Turnstile(config=config, signer=CallerSigner()) as turnstile:
        served = Gateway(
            turnstile,
            StoredFacts(read, partial(read_balances, config)),
            options.listen,
            certificate,
            timeout=config.timeout,
            callers=callers,
            page=options.url,
            most=options.most,
            largest=options.largest,
        )
        tasks = []  # a task without a reference may disappear

        async def end_if_broken() -> None:
            await served.broken.wait()
            note("turnstile: answers of the service can no longer be read; start the gateway again")
            os._exit(Exit.UNAVAILABLE)  # callers repeat their requests at the next gateway

        def started() -> None:
            tasks.append(asyncio.create_task(end_if_broken()))

        asyncio.run(serve_until_stopped(served, options, started, lambda: None))
    return Exit.OK


@command(
    "portal",
    OBSERVER,
    *page_options("127.0.0.1:8481"),
    AT_DELTA,
    lines=("page",),
)
def portal(options: argparse.Namespace, config: Config) -> int:
    """Serve a page that shows users what was spent of their budgets.

    A user opens the page with a link from `turnstile portal link`, which is valid for one visit.
    Links are signed with the key in TURNSTILE_PORTAL_KEY_FILE. The file in TURNSTILE_PORTAL_STATE
    stores opened and revoked links. The portal reads the topics odometer and halts, and policies
    from Redis.
    """
    from streams.web.owner import Owners
    from streams.web.portal import Portal
    from streams.web.record_reader import RecordReader

    start_log("WARNING", config.log_format)
    keys = LinkKeys(config.portal_key, config.prefix)
    certificate = certificate_of(options)
    reader = RecordReader(config)
    owners = Owners(reader, options.delta)
    with closing(Visits(config.portal_state)) as visits:
        served = Portal(owners, keys, visits, options.listen, certificate, page=options.url)

        asyncio.run(serve_until_stopped(served, options, reader.start, reader.close))
    return Exit.OK


@command(
    "portal link",
    ("prefix", "config"),
    user_option("--user-ids says what digits mean"),
    arg("--user-ids", "the kind of an id of digits; no default", choices=("integer", "string")),
    arg(
        "datasets DATASET",
        "show only these datasets (default: all with records of the user)",
        nargs="*",
    ),
    arg(
        "--days N",
        "the days for which the link and its session are valid",
        whole(1, MOST_DAYS),
        default=7,
    ),
    PAGE_URL,
    lines=("link",),
)
def portal_link(options: argparse.Namespace, config: Config) -> int:
    """Print a link with which one user opens the page.

    The link is the user's secret. It is valid for one visit: only the browser that opens it first
    sees the page. The command needs only the key in TURNSTILE_PORTAL_KEY_FILE.
    """
    keys = LinkKeys(config.portal_key, config.prefix)
    ends = int(time.time()) + options.days * _DAY
    datasets = tuple(dict.fromkeys(options.datasets))
    given = user_of(options)
    names = Pseudonyms(config.pseudonym_key) if config.pseudonym_key else None
    claims = Claims.new(
        user=names.of_user(given) if names else _linked_user(given, options),
        ends=ends,
        datasets=datasets,
        pseudonyms=names.fingerprint if names else None,
    )
    page = (options.url or f"http://{options.listen}").rstrip("/")
    made = {"link": f"{page}/#{keys.sign(claims)}", "id": claims.id, "days": options.days}
    show("link", made, options.json)
    return Exit.OK


@command(
    "portal revoke",
    ("config",),
    arg("id ID", "as `portal link` printed it", hex_id_of),
    lines=("revoked_link",),
)
def portal_revoke(options: argparse.Namespace, config: Config) -> int:
    """End a link and its session.

    The portal need not run. The file in TURNSTILE_PORTAL_STATE must be the portal's.
    """
    with closing(Visits(config.portal_state)) as visits:
        was_opened = visits.end(options.id, int(time.time()) + MOST_DAYS * _DAY)
    show(
        "revoked_link", {"id": options.id, "revoked": True, "was_opened": was_opened}, options.json
    )
    return Exit.OK


def _linked_user(text: str, options: argparse.Namespace) -> User:
    """Return the user of a link, with the kind of the id, so that it is no other user.

    Raises:
        UnusableInput: digits without their kind.
    """
    number = integer_of(text)
    if options.user_ids is None and number is not None:
        raise UnusableInput(
            f"--user {text} can be an integer or a string, and these can be two users: add "
            "--user-ids integer or --user-ids string (`turnstile dataset show` has user_ids)"
        )
    if options.user_ids == "integer":
        if number is None:
            raise UnusableInput(f"--user {quoted(text)} is not an integer of 64 bits")
        return number
    return normal_form(text)


def certificate_of(
    options: argparse.Namespace, *, secret: str = "-", setting: str = ""
) -> ssl.SSLContext | None:
    """Return the TLS settings of a page that other machines may reach, None without TLS.

    Args:
        secret: what keeps others out if other machines can reach the page.
        setting: how to set it.

    Raises:
        ConfigurationError: other machines reach the address without TLS or without the secret, or
            a file is unusable.
    """
    from streams.http_server import is_https, is_loopback

    hosts = [options.listen.rpartition(":")[0]]
    if options.url is not None:
        hosts.append(urlsplit(options.url).hostname)
    is_reached = not all(map(is_loopback, hosts))
    reach = f"other machines can reach {options.url or options.listen}"
    if is_reached and not secret:
        raise ConfigurationError(f"{reach}: set {setting}, or listen on 127.0.0.1 without --url")
    if options.certificate is None:
        if options.key is not None:
            raise ConfigurationError("--key belongs to a certificate: give --certificate as well")
        if is_reached and not is_https(options.url):
            raise ConfigurationError(
                f"{reach} without TLS, so an observer of the network could read the page and take "
                "over a session. Give --certificate or, behind a proxy with TLS, the https --url "
                "of the page"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:
        raise ConfigurationError(f"--certificate {options.certificate}: {error}") from error
    return context


async def serve_until_stopped(
    served: HttpServer,
    options: argparse.Namespace,
    started: Callable[[], None],
    closed: Callable[[], None],
) -> None:
    """Serve a page until SIGINT or SIGTERM, and print its address.

    Args:
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
        raise ConfigurationError(f"cannot listen on {options.listen}: {error}") from error
    show("page", {"page": options.url or served.url}, options.json)
    started()
    try:
        await stopped.wait()
    finally:
        await served.stop()
        await asyncio.to_thread(closed)
