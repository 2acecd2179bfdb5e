"""Access lists: the public keys that may charge and manage a dataset.

A change of a list is sent to every partition. A partition that was not reached keeps the list that
it has; the same call again completes the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streams.ledger.authorization import check_access
from streams.records import AccessList, Allowed, Rejection, Right, SetAccess, encode
from streams.records.signatures import InvalidKey, RequestSigner, public_bytes
from streams.sdk.connection import Connection, Deadline
from streams.sdk.datasets import check_names
from streams.sdk.errors import InvalidRequest

_LOG_BYTES = 16


def signer_of(request_key: str | None) -> RequestSigner | None:
    """Return the signer of a client's requests; None if they are not signed.

    Raises:
        InvalidRequest: the key is invalid.
    """
    if not request_key:
        return None
    try:
        return RequestSigner(request_key)
    except InvalidKey as error:
        raise InvalidRequest(f"request_key: {error}") from None
    except ImportError as error:
        raise InvalidRequest(
            f"signatures need a package that is not installed ({error}): install dp-turnstile with "
            "the extra `secure`"
        ) from error


def access_list(allow: Mapping[str, Sequence[Right]]) -> AccessList:
    """Return an access list as records have it.

    Args:
        allow: public key, as ``turnstile keys new`` prints it -> its rights.

    Raises:
        InvalidRequest: a key or a right is invalid, or no key may manage the dataset.
    """
    entries = {}
    for text, rights in allow.items():
        if isinstance(rights, str):
            raise InvalidRequest(f"the rights of a key are {rights!r}; they must be a list")
        try:
            key = public_bytes(text)
        except InvalidKey as error:
            raise InvalidRequest(f"allow has a key that is none: {error}") from None
        entries[key] = sorted(set(rights))
    try:
        listed = msgspec.convert(
            [{"key": key, "rights": rights} for key, rights in sorted(entries.items())], AccessList
        )
        check_access(listed)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"allow makes no access list: {error}") from error
    except Rejection as refused:
        raise InvalidRequest(refused.detail) from refused
    return listed


def set_access(
    connection: Connection,
    name: str,
    allow: Sequence[Allowed],
    deadline: Deadline,
    copied_from: str | None = None,
) -> None:
    """Replace the access list of a dataset in all partitions.

    Args:
        connection: to the service.
        name: of the dataset.
        allow: the whole new list.
        deadline: of the whole call.
        copied_from: the id of the log that the dataset's signatures were for until now.

    Raises:
        InvalidRequest: the client has no request_key, or an argument is invalid.
        RequestRejected: this client may not manage the dataset, or a later change was made.
        DecisionTimeout: not all partitions answered; try again.
    """
    check_names(name)
    if connection.signer is None:
        raise InvalidRequest("access lists are set by a signed request: give a request_key")
    token = connection.new_token()
    request = SetAccess(
        dataset=name,
        request=token,
        number=connection.now(),
        allow=list(allow),
        log=connection.log,
    )
    log = None if copied_from is None else _log_of(copied_from)
    everywhere = dict.fromkeys(range(connection.partitions), encode(request))
    connection.ask(token, everywhere, deadline, log=log)


def _log_of(text: str) -> bytes:
    try:
        log = bytes.fromhex(text)
    except ValueError:
        log = b""
    if len(log) != _LOG_BYTES:
        raise InvalidRequest(
            f"copied_from is {text!r}; the id of a log must be 32 hexadecimal digits"
        )
    return log
