"""Of several stacks that start together one has the known ports, for as long as it lasts."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from streams.local import ports
from streams.local.ports import LOOPBACK, claim_known_ports, free_ports, is_free


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_one_has_the_known_ports_until_the_last_descriptor_is_closed() -> None:
    first = claim_known_ports()
    assert first is not None
    inherited = os.dup(first)  # as that of a child that outlives its stack
    assert claim_known_ports() is None
    os.close(first)
    assert claim_known_ports() is None
    os.close(inherited)
    again = claim_known_ports()
    assert again is not None
    os.close(again)


def test_a_file_that_is_somebody_elses_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / f"turnstile-ports-{os.getuid()}.lock").symlink_to(tmp_path / "elsewhere")
    assert claim_known_ports() is None
    assert not (tmp_path / "elsewhere").exists()


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    (port,) = free_ports(1)
    assert is_free(port)
    for address in (LOOPBACK, "0.0.0.0"):
        with socket.create_server((address, port)):
            assert not is_free(port)


def test_where_no_low_port_is_free_the_system_chooses_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    found = free_ports(9)
    assert len(set(found)) == 9
    assert all(map(is_free, found))
