"""Keys: a client's key signs its requests, and the operator's key registers those of clients.

A statement of the operator is sent to every partition. A partition that was not reached keeps its
earlier state; sending the statement again completes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from streams.schemas import Allow, BindOperator, RegisterPrincipal, encode
from streams.sdk.connection import Connection, Deadline
from streams.sdk.datasets import check_names
from streams.sdk.errors import InvalidRequest
from streams.wire.requests import RequestSigner, check_public_key
from streams.wire.signatures import InvalidKey, public_bytes

_LOG_BYTES = 16


def signer_of(principal: str | None, request_key: str | None) -> RequestSigner | None:
    """Return the signer of a client's requests; None if they are not signed.

    Raises:
        InvalidRequest: one of the two is missing, or the name or the key is invalid.
    """
    if not principal and not request_key:
        return None
    if not principal or not request_key:
        raise InvalidRequest(
            "principal and request_key belong together, the name that the operator has registered "
            "and the private key: give both"
        )
    check_names(principal)
    return _signer("request_key", request_key, principal)


def operator_of(operator_key: str | None) -> RequestSigner:
    """Return the signer of the operator's statements.

    Raises:
        InvalidRequest: the key is missing or invalid.
    """
    if not operator_key:
        raise InvalidRequest(
            "operator_key is missing: give the operator's private key, or the setting of that name"
        )
    return _signer("operator_key", operator_key, None)


def _signer(argument: str, key: str, principal: str | None) -> RequestSigner:
    try:
        return RequestSigner(key, principal)
    except InvalidKey as error:
        raise InvalidRequest(f"{argument}: {error}") from None
    except ImportError as error:
        raise InvalidRequest(
            f"signatures need a package that is not installed ({error}): install dp-turnstile with "
            "the extra `secure`"
        ) from error


def allow_from(allow: Mapping[str, Sequence[str]] | None) -> Allow | None:
    """Return the access list in canonical order.

    Raises:
        InvalidRequest: an unknown right, or the name of a principal is invalid.
    """
    if allow is None:
        return None
    unknown = sorted(set(allow) - {"charge", "manage"})
    if unknown or any(isinstance(names, str) for names in allow.values()):
        raise InvalidRequest(
            f"allow is {allow!r}; it must map 'charge' and 'manage' to lists of principals' names"
        )
    sorts = {right: sorted(set(names)) for right, names in allow.items()}
    for names in sorts.values():
        check_names(*names)
    try:
        return msgspec.convert(sorts, Allow)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"allow: {error}") from error


def bind_operator(
    connection: Connection,
    operator: RequestSigner,
    deadline: Deadline,
    *,
    successor: str | None = None,
    also: Sequence[str] = (),
) -> None:
    """Bind the operator's key, or that of a successor, in all partitions.

    Raises:
        InvalidRequest: a public key or the id of a log is invalid.
        RequestRejected: another operator is bound.
        DecisionTimeout: not all partitions answered; try again.
    """
    key = operator.public if successor is None else _public("successor", successor)
    logs = []
    for log in also:
        try:
            logs.append(bytes.fromhex(log))
        except ValueError:
            logs.append(b"")
        if len(logs[-1]) != _LOG_BYTES:
            raise InvalidRequest(f"also has {log!r}; the id of a log must be 32 hexadecimal digits")
    token = connection.new_token()
    request = BindOperator(
        request=token,
        # 0 precedes the records that are copied from those logs, which have numbers of their own.
        number=0 if logs else connection.now(),
        log=connection.log,
        operator=key,
        also=logs,
    )
    _say(connection, operator, token, encode(request), deadline)


def register(
    connection: Connection,
    operator: RequestSigner,
    name: str,
    public_key: str | None,
    deadline: Deadline,
    *,
    creates: bool = False,
) -> None:
    """Register a principal's key in all partitions; without a key, remove the principal.

    Raises:
        InvalidRequest: the name or the public key is invalid.
        RequestRejected: the service has another operator.
        DecisionTimeout: not all partitions answered; try again.
    """
    check_names(name)
    key = UNSET if public_key is None else _public("public_key", public_key)
    bind_operator(connection, operator, deadline)  # in partitions where it is not bound yet
    token = connection.new_token()
    request = RegisterPrincipal(
        request=token,
        number=connection.now(),
        principal=name,
        key=key,
        creates=creates,
    )
    _say(connection, operator, token, encode(request), deadline)


def _public(argument: str, text: str) -> bytes:
    try:
        key = public_bytes(text)
    except InvalidKey as error:
        raise InvalidRequest(f"{argument}: {error}") from None
    if problem := check_public_key(key):
        raise InvalidRequest(f"{argument} is {text}: {problem}")
    return key


def _say(
    connection: Connection, operator: RequestSigner, token: str, request: bytes, deadline: Deadline
) -> None:
    everywhere = dict.fromkeys(range(connection.partitions), request)
    connection.ask(token, everywhere, deadline, signer=operator)
