"""`turnstile keys`: the keys by which decisions and requests are signed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from streams.cli.output import Exit, note, show
from streams.config import Config, ConfigurationError
from streams.wire.signatures import id_of, new_keys

_NAMES = {
    # what is signed: the settings of the private and of the public key, who is to have the former
    "decisions": (
        "signing_key",
        "trusted_keys",
        "can sign decisions: show it to the workers alone",
    ),
    "answers": (
        "signing_key",
        "answer_keys",
        "can sign private answers: show it to the answerer alone, and put it into no trusted_keys",
    ),
    "requests": (
        "request_key",
        "public_key",
        "can sign requests of this client: show it to that client alone",
    ),
}


def new(options: argparse.Namespace, config: Config) -> int:
    """A pair of keys: the private one into a file, if there is one."""
    try:
        private, public = new_keys()
    except ImportError as error:
        raise ConfigurationError(
            f"keys need a package that is not installed ({error}): install dp-turnstile with its "
            "extra `secure`"
        ) from error
    secret, shown, who = _NAMES[options.purpose]
    pair = {"id": id_of(public), shown: public}
    if options.out is None:
        pair[secret] = private
        note(f"whoever has {secret} {who}")
    else:
        write_secret(options.out, private)
        pair[f"{secret}_file"] = str(options.out)
    show(pair, options.json)
    return Exit.OK


def write_secret(path: Path, secret: str) -> None:
    """A new file that its owner alone can read.

    Raises:
        ConfigurationError: it cannot be written, or is there already.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot make {path}: {error}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{secret}\n")
