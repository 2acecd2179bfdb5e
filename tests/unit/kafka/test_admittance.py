"""Checks of a broker before a client is opened: refusals, and servers that are not Kafka."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

import pytest

from streams.config import Config
from streams.kafka.admittance import check_admittance
from streams.kafka.security import ConnectionFailure, NotAdmitted


@contextmanager
def server(*answers: bytes) -> Iterator[str]:
    """Answers the first request of each connection, and ends it; the last answer for ever."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            for answer in chain(answers, repeat(answers[-1])):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield "{}:{}".format(*listening.getsockname())
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


NO_KAFKA = {
    "a web server": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a number below nothing": b"\xff\xff\xff\xff",
    "too short": b"\x00\x00\x00\x01\x00",
}


@pytest.mark.parametrize("answer", NO_KAFKA.values(), ids=NO_KAFKA)
def test_other_servers_are_left_to_the_clients(answer: bytes) -> None:
    with server(answer) as address:
        check_admittance(Config(kafka=address))


@pytest.mark.parametrize(
    ("answer", "security", "reason", "may_pass"),
    [
        pytest.param(
            b"\x15\x03\x03\x00\x02\x02\x0a",
            "PLAINTEXT",
            ConnectionFailure.SPEAKS_TLS,
            False,
            id="TLS alert",
        ),
        pytest.param(
            b"", "PLAINTEXT", ConnectionFailure.ENDED, True, id="closed, as by a starting broker"
        ),
        pytest.param(
            b"no", "SSL", ConnectionFailure.NO_HANDSHAKE, True, id="plaintext instead of TLS"
        ),
    ],
)
def test_a_refusal_names_the_broker_and_whether_it_may_pass(
    answer: bytes, security: str, reason: ConnectionFailure, may_pass: bool
) -> None:
    with server(answer) as address, pytest.raises(NotAdmitted) as caught:
        check_admittance(Config(kafka=address, kafka_security=security))
    assert caught.value.reason is reason
    assert caught.value.may_pass is may_pass
    assert address in str(caught.value)


def test_a_connection_that_is_closed_once_is_tried_again() -> None:
    answer = struct.pack(">ii", 4, 1)  # an empty response of Kafka
    with server(b"", answer) as address:
        check_admittance(Config(kafka=address))


def test_unreachable_brokers_are_left_to_the_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check_admittance(Config(kafka=f"127.0.0.1:{port},{'x' * 300}:1"))
