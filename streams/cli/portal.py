"""`turnstile portal`: the page on which users see their spending, and the links to it."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import time
from contextlib import closing

from streams.cli.output import Exit, UnusableInput, note, show
from streams.cli.portal_arguments import MOST_DAYS
from streams.cli.serving import certificate_of, serve_until_stopped
from streams.cli.users import user_of
from streams.config import Config, ConfigurationError
from streams.normal_form import normal_form
from streams.schemas import User
from streams.sdk.pseudonyms import Pseudonyms
from streams.web.links import Claims, LinkKeys, link_to
from streams.web.owner import Owners
from streams.web.portal import Portal
from streams.web.reading import RecordReader
from streams.web.visits import Visits

_DAY = 24 * 60 * 60


def portal(options: argparse.Namespace, config: Config) -> int:
    """Serve the page."""
    keys = LinkKeys(config.portal_key, config.prefix)
    certificate = certificate_of(options)
    reader = RecordReader(config, options.most)
    owners = Owners(reader, options.delta)
    with closing(_visits(config)) as visits:
        served = Portal(owners, keys, visits, options.listen, certificate, page=options.url)

        def started() -> None:
            reader.start()
            show({"portal": options.url or served.url}, options.json)
            if not options.json:
                note(f"for example: {_example(options, served.url)}")
                note("then type the id of a user and Ctrl-D")
                note("an id of digits needs --user-ids integer or --user-ids string as well")

        asyncio.run(serve_until_stopped(served, options.listen, started, reader.close))
    return Exit.OK


def link(options: argparse.Namespace, config: Config) -> int:
    """Print a link and its id."""
    keys = LinkKeys(config.portal_key, config.prefix)
    ends = int(time.time()) + options.days * _DAY
    datasets = tuple(dict.fromkeys(options.dataset or ()))
    given = user_of(options)
    if config.pseudonym_key:
        names = Pseudonyms(config.pseudonym_key)
        claims = Claims.new(
            user=int(names.of([given])[0]),
            ends=ends,
            datasets=datasets,
            pseudonyms=names.fingerprint,
        )
    else:
        claims = Claims.new(user=_user(given, options), ends=ends, datasets=datasets)
    page = options.url or f"http://{options.listen}/"
    made = {"link": link_to(page, keys.sign(claims)), "id": claims.id, "days": options.days}
    show(made, options.json)
    return Exit.OK


def revoke(options: argparse.Namespace, config: Config) -> int:
    """End a link and its session."""
    with closing(_visits(config)) as visits:
        was_opened = visits.end(options.id, int(time.time()) + MOST_DAYS * _DAY)
    show({"id": options.id, "revoked": True, "was_opened": was_opened}, options.json)
    return Exit.OK


def _visits(config: Config) -> Visits:
    """Open the file of opened and revoked links.

    Raises:
        ConfigurationError: no file is named, or it cannot be used.
    """
    if not config.portal_state:
        raise ConfigurationError(
            "portal_state is not set: put the name of a file into TURNSTILE_PORTAL_STATE, in which "
            "the portal remembers opened and revoked links when it is restarted"
        )
    return Visits(config.portal_state)


def _example(options: argparse.Namespace, listens: str) -> str:
    """Return a command that prints a link to this page."""
    prefix = f" --prefix {shlex.quote(options.prefix)}" if options.prefix else ""
    page = shlex.quote(options.url or listens)
    return f"turnstile portal link{prefix} --url {page} --user -"


def _user(text: str, options: argparse.Namespace) -> User:
    """Return the user of a link, who must not be mistaken for another one.

    Raises:
        UnusableInput: digits without their kind.
    """
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
