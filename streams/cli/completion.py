"""`turnstile completion`: a script that completes commands and options, made from the parser."""

from __future__ import annotations

import argparse

from streams.cli.extras import extra
from streams.cli.output import Exit, say, show
from streams.config import Config


def completion(options: argparse.Namespace, _: Config) -> int:
    """Print the script for one shell."""
    from streams.cli.arguments import new_parser

    with extra("terminal", "completion"):
        import shtab
    script = shtab.complete(new_parser(), options.shell)
    if options.json:
        show({"shell": options.shell, "script": script}, True)
    else:
        say(script)
    return Exit.OK
