"""What `make` names as missing before it installs anything."""

from __future__ import annotations

import os
import platform
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.readme import TOP


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the check, on a machine with wheels and nothing on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    check: Callable[[], list[str]] = runpy.run_path(str(TOP / "requirements/ready.py"))["missing"]
    return check


def test_nothing_is_missing_where_wheels_fit(missing: Callable[[], list[str]]) -> None:
    assert missing() == []


def test_an_old_python_is_missing_one(
    missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    assert len(missing()) == 1


def test_python_without_venv_is_missing_a_module(
    missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert len(missing()) == 1


@pytest.mark.parametrize("libc", ["", "glibc 2.27"])
def test_another_or_older_c_library_has_no_wheels(
    libc: str, missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: libc)
    assert len(missing()) == 1


def test_machine_without_wheels_needs_redis_and_java(
    missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert len(missing()) == 2
    for name in ("valkey-server", "java"):
        (tmp_path / name).touch(mode=0o755)
    assert missing() == []
