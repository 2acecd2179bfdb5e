"""Tokens for a login by OAUTHBEARER.

The setting ``kafka_token_provider`` names a function without arguments. It returns a token, and is
called at each login, in any thread. It has to cache tokens itself, and to return one that is still
valid for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kafka.net.sasl.oauth import AbstractTokenProvider

from accounting.exact.invalid_input import quoted
from streams.config import Config, ConfigurationError


class NoToken(RuntimeError):
    """The token provider failed, or returned something else than a token."""


def token_function(config: Config) -> Callable[[], str]:
    """Return the token provider with its results checked, or raise ``ConfigurationError``."""
    name = config.kafka_token_provider
    module, _, function = name.partition(":")
    try:
        provider = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"kafka_token_provider {quoted(name)} cannot be imported ({error}): install its "
            "package, or add its folder to PYTHONPATH"
        ) from error
    if not callable(provider):
        raise ConfigurationError(f"kafka_token_provider {quoted(name)} is not a function")

    def token() -> str:
        # An error of the provider may quote the token, so that only its type is shown.
        try:
            found = provider()
        except Exception as error:
            raise NoToken(f"the token provider {name} failed: {type(error).__name__}") from None
        if not isinstance(found, str) or not found.isascii() or not found.isprintable():
            raise NoToken(f"the token provider {name} returned no token")
        if not found or " " in found:
            raise NoToken(f"the token provider {name} returned no token")
        return found

    return token


class Tokens(AbstractTokenProvider):
    """The token provider of kafka-python."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._token = token_function(config)

    def token(self) -> str:
        """Return a token."""
        return self._token()
