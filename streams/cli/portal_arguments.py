"""The arguments of the command for the owners of data: portal, and its links."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlsplit

from streams.cli.options import OBSERVER, Later, add_delta, name_of, verb, whole
from streams.cli.serving import add_serving

portal = Later("streams.cli.portal")

_LISTEN = "127.0.0.1:8481"
_MOST, _LEAST = 2**24, 2**10
_MOST_DAYS = 3660


def add_portal(verbs: Any) -> None:
    """Add it."""
    page = verb(
        verbs,
        "portal",
        portal.portal,
        "the page on which users see what they have spent, each the own, until Ctrl-C or SIGTERM",
        OBSERVER,
        "Whoever comes with a link of `turnstile portal link` sees one user. Links are signed with "
        "the key in TURNSTILE_PORTAL_KEY_FILE. It reads the topics odometer and halts; Redis is "
        "asked for the policies of datasets alone.",
    )
    add_serving(page, _LISTEN)
    _add_url(page)
    page.add_argument(
        "--most",
        type=whole(_LEAST, 2**32),
        default=_MOST,
        metavar="N",
        help=f"checkpoints that the index has room for, 16 bytes each (default {_MOST:,})",
    )
    add_delta(page)
    made = verb(
        page.add_subparsers(metavar="[link]"),
        "link",
        portal.link,
        "print a link by which one user sees the own page",
        ("prefix", "config"),
        "Whoever has a link sees what it shows: it is a secret of that user. Nothing is asked for "
        "it but the key in TURNSTILE_PORTAL_KEY_FILE.",
    )
    made.add_argument("--user", required=True, help="the id")
    made.add_argument(
        "--user-ids", choices=("integer", "string"), help="which one digits mean; no default"
    )
    made.add_argument(
        "--dataset",
        type=name_of,
        action="append",
        help="this one; again for more (default all in which there is something of the user)",
    )
    made.add_argument(
        "--days",
        type=whole(1, _MOST_DAYS),
        default=7,
        metavar="N",
        help="for which it works (default 7)",
    )
    _add_url(made)
    # What stands before `link` is not lost to the defaults of what stands behind it.
    for action in made._actions:
        if action.dest in ("json", "prefix", "config", "url"):
            action.default = argparse.SUPPRESS


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url", type=_url_of, metavar="URL", help="of the page, for browsers, if it is another"
    )


def _url_of(text: str) -> str:
    """http or https, and a name."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no page: give one like https://privacy.example.org/"
        )
    return text
