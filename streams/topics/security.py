"""How Kafka is reached: encryption and login, as both of its clients take them.

No client tries again after a login or a certificate that was refused: it would be refused again.
"""

from __future__ import annotations

import ssl
from typing import Any

from streams.config import Config, ConfigurationError


def security(config: Config) -> dict[str, Any]:
    """The settings of a client of kafka-python or aiokafka, beside the addresses of the brokers.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    settings: dict[str, Any] = {"security_protocol": config.kafka_security}
    if config.kafka_security.endswith("SSL"):
        settings["ssl_context"] = tls_context(config)
    if config.kafka_security.startswith("SASL_"):
        settings |= {
            "sasl_mechanism": config.kafka_mechanism,
            "sasl_plain_username": config.kafka_username,
            "sasl_plain_password": config.kafka_password,
        }
    return settings


def tls_context(config: Config) -> ssl.SSLContext:
    """Who is believed to be a broker, and as whom this client shows itself.

    Raises:
        ConfigurationError: certificates that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=config.kafka_ca or None)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"kafka_ca: {config.kafka_ca!r} holds no certificates in PEM form ({error})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.kafka_certificate:
        try:
            # A password, though empty: else the terminal would be asked for one.
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


def advice(error: BaseException) -> str | None:
    """What to do about an error of a client, if who it is or what it may is the reason; else None.

    The clients have errors of the same names, and say some only in what caused others.
    """
    return _ADVICE.get(_kind_of(error) or "")


def is_refusal(error: BaseException) -> bool:
    """Whether it would be the same the next time."""
    return _kind_of(error) not in (None, _MAY_PASS)


def _kind_of(error: BaseException | None) -> str | None:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        names = {kind.__name__ for kind in type(error).__mro__}
        for known in _ADVICE:
            if known in names:
                return known
        error = error.__cause__ or error.__context__
    return None


_MAY_PASS = "SSLError"  # as while a broker starts

_ADVICE = {
    "SaslAuthenticationFailedError": (
        "the broker does not accept this login: check kafka_username, kafka_password and "
        "kafka_mechanism"
    ),
    "AuthenticationFailedError": (
        "the broker does not accept this login: check kafka_username, kafka_password and "
        "kafka_mechanism"
    ),
    "UnsupportedSaslMechanismError": (
        "the broker has no login of this kind: check kafka_mechanism with its operator"
    ),
    "SSLCertVerificationError": (
        "the broker's certificate does not fit: kafka_ca has to be the authority that signed it, "
        "and the certificate has to name the host as `kafka` does"
    ),
    "SSLError": (
        "no encrypted connection came about: check that this port of the broker speaks TLS, and "
        "that it accepts kafka_certificate if it wants one"
    ),
    "TopicAuthorizationFailedError": (
        "this user may not do that with this topic: `turnstile acl` shows the rights of each role"
    ),
    "GroupAuthorizationFailedError": (
        "this user may not join the group of the workers: `turnstile acl` shows the rights of each "
        "role"
    ),
    "TransactionalIdAuthorizationFailedError": (
        "this user may not write checkpoints: `turnstile acl` shows the rights of each role"
    ),
    "ClusterAuthorizationFailedError": (
        "this user has no right for that on the cluster: `turnstile acl` shows the rights of each "
        "role"
    ),
}
