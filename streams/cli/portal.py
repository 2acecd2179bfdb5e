"""`turnstile portal`: to each user what that user has spent; `portal link`: who may see whose."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import time

from streams.cli.output import Exit, UnusableInput, note, show
from streams.cli.serving import certificate_of, serve_until_stopped
from streams.config import Config, ConfigurationError
from streams.normal_form import normal_form
from streams.portal.links import Claims, LinkKeys, check_datasets, link_to
from streams.portal.owner import Owners
from streams.portal.reading import Reader
from streams.portal.server import Portal, is_encrypted
from streams.schemas import User
from streams.sdk.pseudonyms import Pseudonyms
from streams.web.site import is_loopback

_DAY = 24 * 60 * 60


def portal(options: argparse.Namespace, config: Config) -> int:
    """Serve the page of owners."""
    keys = LinkKeys(config.portal_key, config.prefix)
    certificate = certificate_of(options)
    by_tls = certificate is not None or is_encrypted(options.url)
    if not by_tls and not is_loopback(options.listen.rpartition(":")[0]):
        raise ConfigurationError(
            f"{options.listen} is reached from other machines, and whoever listens on the way "
            "would see what users see, and be let in as them: give --certificate or, where a proxy "
            "encrypts, the --url that begins with https by which browsers come"
        )
    reader = Reader(config, options.most)
    owners = Owners(reader, options.delta)
    served = Portal(owners, keys, options.listen, certificate, page=options.url)

    def started() -> None:
        reader.start()
        show({"portal": options.url or served.url}, options.json)
        if not options.json:
            note(f"for example: {_example(options, served.url)}")
            note("an id of digits needs --user-ids integer or --user-ids string as well")

    asyncio.run(serve_until_stopped(served, options.listen, started, reader.close))
    return Exit.OK


def _example(options: argparse.Namespace, listens: str) -> str:
    """The command that prints a link to this page."""
    prefix = f" --prefix {shlex.quote(options.prefix)}" if options.prefix else ""
    page = shlex.quote(options.url or listens)
    return f"turnstile portal link{prefix} --url {page} --user ada"


def link(options: argparse.Namespace, config: Config) -> int:
    """Print a link."""
    keys = LinkKeys(config.portal_key, config.prefix)
    ends = int(time.time()) + options.days * _DAY
    datasets = check_datasets(options.dataset or ())
    if config.pseudonym_key:
        names = Pseudonyms(config.pseudonym_key)
        claims = Claims(
            user=int(names.of([options.user])[0]),
            ends=ends,
            datasets=datasets,
            pseudonyms=names.fingerprint,
        )
    else:
        claims = Claims(user=_user(options), ends=ends, datasets=datasets)
    page = options.url or f"http://{options.listen}/"
    show({"link": link_to(page, keys.sign(claims)), "days": options.days}, options.json)
    return Exit.OK


def _user(options: argparse.Namespace) -> User:
    """Who is meant: with a link for the other one somebody would see somebody else's.

    Raises:
        UnusableInput: digits, and it is not said of which kind.
    """
    text: str = options.user
    is_integer = re.fullmatch(r"-?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63
    if options.user_ids is None and is_integer:
        raise UnusableInput(
            f"--user {text} may be the integer or the string, who may be two people: say "
            "--user-ids integer or --user-ids string (`turnstile dataset show` has it as user_ids)"
        )
    if options.user_ids == "integer":
        if not is_integer:
            raise UnusableInput(f"--user {text!r} is no integer of 64 bits")
        return int(text)
    return normal_form(text)
