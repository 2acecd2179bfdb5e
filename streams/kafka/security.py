"""Encryption and login of Kafka clients. ``aiokafka_settings`` has those of aiokafka."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from streams.config import Config, ConfigurationError
from streams.kafka.results import TopicsUnavailable
from streams.kafka.tokens import Tokens


class ConnectionFailure(StrEnum):
    """The reasons for which a broker rejects a client."""

    LOGIN = "login"  # the user or the password is wrong
    TOKEN = "token"  # there is no token, or the broker rejects it
    MECHANISM = "mechanism"  # the broker does not offer this login mechanism
    CERTIFICATE = "certificate"  # another authority signed it, or it names another host
    SPEAKS_TLS = "speaks-tls"  # the client does not use TLS, and the port requires it
    NO_HANDSHAKE = "no-handshake"  # the client uses TLS, and the handshake failed
    ENDED = "ended"  # the broker ended the connection: it requires other settings


class NotAdmitted(TopicsUnavailable):
    """A broker rejects this client; the message says what to do."""

    def __init__(self, reason: ConnectionFailure, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def may_pass(self) -> bool:
        """Return whether a starting broker could have answered the same."""
        return self.reason in (ConnectionFailure.NO_HANDSHAKE, ConnectionFailure.ENDED)


def security(config: Config) -> dict[str, Any]:
    """Return the settings of a kafka-python client but addresses, or ``ConfigurationError``."""
    return security_with(config, Tokens)


def security_with(config: Config, tokens: Callable[[Config], Any]) -> dict[str, Any]:
    """Return the same with another token provider."""
    settings: dict[str, Any] = {"security_protocol": config.kafka_security}
    if config.kafka_security.endswith("SSL"):
        settings["ssl_context"] = tls_context(config)
    if not config.kafka_security.startswith("SASL_"):
        return settings
    settings["sasl_mechanism"] = config.kafka_mechanism
    if config.kafka_mechanism == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": tokens(config)}
    return settings | {
        "sasl_plain_username": config.kafka_username,
        "sasl_plain_password": config.kafka_password,
    }


def tls_context(config: Config) -> ssl.SSLContext:
    """Return the trusted authorities and this client's certificate, or ``ConfigurationError``."""
    try:
        context = ssl.create_default_context(cafile=config.kafka_ca or None)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"kafka_ca: {config.kafka_ca!r} holds no certificates in PEM form ({error})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.kafka_certificate:
        try:
            # Give a password, even an empty one: otherwise OpenSSL asks for it on the terminal.
            context.load_cert_chain(
                config.kafka_certificate, config.kafka_key or None, config.kafka_key_password
            )
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"kafka_certificate {config.kafka_certificate!r} and kafka_key "
                f"{config.kafka_key!r} cannot be used: they do not belong together, are not in PEM "
                f"form, or kafka_key_password does not fit ({error})"
            ) from None
    return context


def explained(error: BaseException, otherwise: str = "") -> str:
    """Return an error with advice, which is ``otherwise`` if this module has none."""
    hint = _ADVICE.get(_kind_of(error) or "")
    if hint is None:
        return f"{error}. {otherwise}" if otherwise else str(error)
    # Name the kind only: some errors quote the whole request.
    return f"{type(error).__name__}; {hint}"


def is_refusal(error: BaseException) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(error, NotAdmitted):
        return not error.may_pass
    return _kind_of(error) is not None


def _kind_of(error: BaseException) -> str | None:
    # The clients have errors of the same names, and mention some only in the text of others.
    names = {kind.__name__ for kind in type(error).__mro__}
    return next((kind for kind in _ADVICE if kind in names or kind in str(error)), None)


_ROLES = "`turnstile acl` shows the rights of each role"
_ADVICE = {
    "TopicAuthorizationFailedError": f"this user lacks the right for this topic: {_ROLES}",
    "GroupAuthorizationFailedError": f"this user lacks the rights of a worker: {_ROLES}",
    "TransactionalIdAuthorizationFailedError": f"this user may not write snapshots: {_ROLES}",
    "ClusterAuthorizationFailedError": f"this user lacks the right on the cluster: {_ROLES}",
}
