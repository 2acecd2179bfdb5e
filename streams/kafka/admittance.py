"""Find out why a broker refuses this client, before a Kafka client is opened.

kafka-python (3.0.12) repeats a refused connection until its timeout and then raises
``KafkaTimeoutError: Unable to bootstrap``, without a cause: for a wrong password, an unknown user,
another mechanism, plaintext to a TLS port, TLS to a plaintext port, a certificate of another
authority, a missing client certificate and a broker that is down alike. Even its log has only
``socket disconnected`` for a wrong password. So this module makes the first three exchanges of such
a client itself and names the one that failed: TLS handshake, login, one request.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from time import sleep

from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism

from streams.config import Config
from streams.kafka.security import ConnectionFailure, NotAdmitted, security, tls_context
from streams.kafka.tokens import NoToken

_SECONDS = 5.0  # per broker; the Kafka clients wait longer for a slow one
_TIMES, _PAUSE = 3, 0.1  # seconds
_METADATA, _HANDSHAKE, _AUTHENTICATE = (3, 2), (17, 1), (36, 0)  # (key, version)
_TLS_ALERT = 0x15
_LARGEST = 1024 * 1024  # bytes of an answer, which lists the brokers and no topics


class _Refused(Exception):
    """A broker refused this client; has the reason and what the broker did."""


def check_admittance(config: Config) -> None:
    """Check that the first broker that can be reached admits this client.

    If no broker can be reached, return: the Kafka client waits longer for one.

    Raises:
        NotAdmitted: the broker refuses the client; says what to do.
    """
    for address in config.kafka.split(","):
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "9092")
        with suppress(OSError, UnicodeError):  # UnicodeError: not a valid host name
            _knock(config, address, host.strip("[]"), int(port))
            return


def _knock(config: Config, address: str, host: str, port: int) -> None:
    """Ask one broker, and again if a busy or starting broker could have done the same."""
    for asked in range(1, _TIMES + 1):
        with socket.create_connection((host, port), _SECONDS) as plain:
            try:
                return _enter(config, host, plain)
            except _Refused as refused:
                reason, what = refused.args
                found = NotAdmitted(reason, f"Kafka at {address}: {what}; {_ADVICE[reason]}")
                if not found.may_pass or asked == _TIMES:
                    raise found from refused
        sleep(_PAUSE)
    return None


def _enter(config: Config, host: str, plain: socket.socket) -> None:
    connection = plain
    if config.kafka_security.endswith("SSL"):
        connection = _encrypted(config, host, plain)
    with connection:
        try:
            if config.kafka_security.startswith("SASL_"):
                _log_in(config, connection)
            _exchange(connection, _METADATA, struct.pack(">i", 0))
        except (TimeoutError, struct.error):
            return  # the broker is too slow, or it is not Kafka
        except (OSError, EOFError) as error:
            raise _Refused(ConnectionFailure.ENDED, "the broker ended the connection") from error


def _encrypted(config: Config, host: str, plain: socket.socket) -> socket.socket:
    try:
        return tls_context(config).wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise _Refused(
            ConnectionFailure.CERTIFICATE, f"its certificate is not valid: {error.verify_message}"
        ) from error
    except TimeoutError:
        raise
    except OSError as error:
        raise _Refused(
            ConnectionFailure.NO_HANDSHAKE, f"the TLS handshake failed ({error})"
        ) from error


def _log_in(config: Config, connection: socket.socket) -> None:
    mechanism = config.kafka_mechanism
    answer = _exchange(connection, _HANDSHAKE, _string(mechanism))
    if struct.unpack_from(">h", answer)[0]:
        known = ", ".join(_strings(answer[2:])) or "none"
        raise _Refused(
            ConnectionFailure.MECHANISM, f"it does not offer {mechanism}; it offers {known}"
        )

    def send(token: bytes) -> bytes:
        answer = _exchange(connection, _AUTHENTICATE, struct.pack(">i", len(token)) + token)
        error, length = struct.unpack_from(">hh", answer)
        if error:
            said = answer[4 : 4 + max(length, 0)].decode(errors="replace")
            raise _Refused(ConnectionFailure.LOGIN, f"the login was refused: {said}")
        at = 4 + max(length, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        return answer[at + 4 : at + 4 + max(size, 0)]

    client = get_sasl_mechanism(mechanism)(**security(config))
    try:
        while not client.is_done():
            said = send(client.auth_bytes())
            if said and mechanism == "OAUTHBEARER":
                # The reason for which the broker rejects it. It waits for one more byte.
                reason = said.decode(errors="replace")
                raise _Refused(ConnectionFailure.TOKEN, f"the token was rejected: {reason}")
            client.receive(said)
    except NoToken as error:
        raise _Refused(ConnectionFailure.TOKEN, str(error)) from error
    except (ValueError, KafkaError) as error:
        raise _Refused(
            ConnectionFailure.LOGIN, f"the broker does not know the password ({error})"
        ) from error


def _exchange(connection: socket.socket, request: tuple[int, int], body: bytes) -> bytes:
    """Send a request and return the answer without its correlation id.

    Raises:
        EOFError: the broker ended the connection.
        struct.error: the answer is not Kafka's.
        _Refused: the answer is a TLS alert.
    """
    message = struct.pack(">hhih", *request, 1, -1) + body  # correlation 1, no client id
    connection.sendall(struct.pack(">i", len(message)) + message)
    head = _read(connection, 4)
    if head[0] == _TLS_ALERT:
        raise _Refused(ConnectionFailure.SPEAKS_TLS, "this port of the broker speaks TLS")
    (size,) = struct.unpack(">i", head)
    if not 4 <= size <= _LARGEST:
        raise struct.error(f"an answer of {size} bytes")
    return _read(connection, size)[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError("without an answer")
        found += part
    return found


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _strings(packed: bytes) -> list[str]:
    (count,), at, found = struct.unpack_from(">i", packed), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", packed, at)
        found.append(packed[at + 2 : at + 2 + length].decode(errors="replace"))
        at += 2 + length
    return found


_ADVICE = {
    ConnectionFailure.LOGIN: "check kafka_username and kafka_password",
    ConnectionFailure.TOKEN: "check kafka_token_provider, and the audience of its tokens",
    ConnectionFailure.MECHANISM: (
        "check kafka_mechanism, and ask the operator for the mechanism of this user"
    ),
    ConnectionFailure.CERTIFICATE: (
        "kafka_ca has to be the authority that signed it, and it has to name the host as `kafka` "
        "does"
    ),
    ConnectionFailure.SPEAKS_TLS: "set kafka_security to SSL or SASL_SSL",
    ConnectionFailure.NO_HANDSHAKE: (
        "check that this port speaks TLS; if it does not, change kafka_security"
    ),
    ConnectionFailure.ENDED: (
        "it requires TLS, a login or a certificate that these settings do not provide: check "
        "kafka_security and the related settings"
    ),
}
