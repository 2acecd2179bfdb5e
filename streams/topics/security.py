"""How Kafka is reached: encryption and login, as both of its clients take them."""

from __future__ import annotations

import ssl
from typing import Any

from streams.config import Config, ConfigurationError
from streams.topics.seen import TopicsUnavailable


class NotAdmitted(TopicsUnavailable):
    """A broker does not let this client in; says what to do.

    Attributes:
        may_pass: whether a broker that is just starting would do the same.
    """

    def __init__(self, what: str, may_pass: bool) -> None:
        super().__init__(what)
        self.may_pass = may_pass


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

    The clients have errors of the same names, and name some only in the text of others.
    """
    return _ADVICE.get(_kind_of(error) or "")


def explained(error: BaseException, otherwise: str = "") -> str:
    """An error with what to do about it, which is ``otherwise`` if nothing is known of it here."""
    told = advice(error)
    if told is None:
        return f"{error}. {otherwise}" if otherwise else str(error)
    # By its kind: what was asked, which some quote at length, is of use to nobody.
    return f"{type(error).__name__}; {told}"


def is_refusal(error: BaseException) -> bool:
    """Whether it would be the same the next time."""
    if isinstance(error, NotAdmitted):
        return not error.may_pass
    return _kind_of(error) is not None


def _kind_of(error: BaseException) -> str | None:
    names = {kind.__name__ for kind in type(error).__mro__}
    return next((kind for kind in _ADVICE if kind in names or kind in str(error)), None)


_ROLES = "`turnstile acl` shows the rights of each role"
_ADVICE = {
    "TopicAuthorizationFailedError": f"this user may not do that with this topic: {_ROLES}",
    "GroupAuthorizationFailedError": f"this user is no worker: {_ROLES}",
    "TransactionalIdAuthorizationFailedError": f"this user may not write checkpoints: {_ROLES}",
    "ClusterAuthorizationFailedError": f"this user has no such right on the cluster: {_ROLES}",
}
