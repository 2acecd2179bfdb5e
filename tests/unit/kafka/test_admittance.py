"""What answers no request of Kafka is left to the clients, and holds nobody up for ever."""

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
from streams.kafka.security import NotAdmitted


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
def test_what_is_no_kafka_is_left_to_the_clients(answer: bytes) -> None:
    with server(answer) as address:
        check_admittance(Config(kafka=address))


def test_a_port_that_speaks_tls_is_named() -> None:
    with (
        server(b"\x15\x03\x03\x00\x02\x02\x0a") as address,
        pytest.raises(NotAdmitted, match=f"{address}: this port of the broker speaks TLS"),
    ):
        check_admittance(Config(kafka=address))


def test_a_connection_that_is_ended_is_one_that_was_not_let_in() -> None:
    with server(b"") as address, pytest.raises(NotAdmitted, match="check kafka_security") as caught:
        check_admittance(Config(kafka=address))
    assert caught.value.may_pass, "as while a broker starts"


def test_a_connection_that_is_ended_once_is_made_again() -> None:
    answer = struct.pack(">ii", 4, 1)  # as much as is looked at
    with server(b"", answer) as address:
        check_admittance(Config(kafka=address))


def test_nothing_is_said_of_brokers_that_are_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check_admittance(Config(kafka=f"127.0.0.1:{port},{'x' * 300}:1"))


def test_no_encryption_is_named_where_tls_was_asked_for() -> None:
    with server(b"no") as address, pytest.raises(NotAdmitted, match="check that this port speaks"):
        check_admittance(Config(kafka=address, kafka_security="SSL"))
