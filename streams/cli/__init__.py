"""The command `turnstile`."""

from streams.cli.main import main

__all__ = ["main"]
