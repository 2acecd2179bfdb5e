"""The arguments of the command for users who want to see their spending: portal, and its links."""

from __future__ import annotations

import argparse
import re
from typing import Any

from streams.cli.options import OBSERVER, Later, add_delta, add_user, name_of, verb, whole
from streams.cli.serving import add_serving, add_url

portal = Later("streams.cli.portal")

_LISTEN = "127.0.0.1:8481"
_MOST, _LEAST = 2**24, 2**10
MOST_DAYS = 3660


def add_portal(verbs: Any) -> None:
    """Add it."""
    page = verb(
        verbs,
        "portal",
        portal.portal,
        "the page on which each user sees the own spending, until Ctrl-C or SIGTERM",
        OBSERVER,
        "A user opens it with a link of `turnstile portal link`, which works for the first visit. "
        "Links are signed with the key in TURNSTILE_PORTAL_KEY_FILE. The file in "
        "TURNSTILE_PORTAL_STATE remembers opened and revoked links. The portal reads the topics "
        "odometer and halts, and policies from Redis.",
    )
    add_serving(page, _LISTEN)
    page.add_argument(
        "--most",
        type=whole(_LEAST, 2**32),
        default=_MOST,
        metavar="N",
        help=f"odometer records that the index has room for, 16 bytes each (default {_MOST:,})",
    )
    add_delta(page)
    actions = page.add_subparsers(metavar="[link|revoke]")
    made = verb(
        actions,
        "link",
        portal.link,
        "print a link with which one user opens the page",
        ("prefix", "config"),
        "The link is a secret of that user. It works for one visit: the browser that opens it "
        "first sees the page until the link ends. The command needs only the key in "
        "TURNSTILE_PORTAL_KEY_FILE.",
    )
    add_user(made, "--user-ids says what digits mean")
    made.add_argument(
        "--user-ids", choices=("integer", "string"), help="which one digits mean; no default"
    )
    made.add_argument(
        "--dataset",
        type=name_of,
        action="append",
        help="this one; again for more (default all that have records of the user)",
    )
    made.add_argument(
        "--days",
        type=whole(1, MOST_DAYS),
        default=7,
        metavar="N",
        help="until the link and its session end (default 7)",
    )
    add_url(made)
    revoked = verb(
        actions,
        "revoke",
        portal.revoke,
        "end a link and its session",
        ("config",),
        "The portal need not run. The file in TURNSTILE_PORTAL_STATE has to be the one of the "
        "portal.",
    )
    revoked.add_argument("id", type=_link_id_of, metavar="ID", help="as `portal link` printed it")
    # Defaults of these commands must not replace options that stand before their names.
    for command in (made, revoked):
        for action in command._actions:
            if action.dest in ("json", "prefix", "config", "url"):
                action.default = argparse.SUPPRESS


def _link_id_of(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no id of a link: give the 32 digits that `portal link` printed as id"
        )
    return text
