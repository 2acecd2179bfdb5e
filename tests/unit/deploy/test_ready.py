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


@pytest.mark.parametrize(
    "lacks", ["", "a Python of today", "venv", "a C library", "a C library of today"]
)
def test_what_a_machine_lacks_is_named(
    lacks: str, missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "a Python of today":
        monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    elif lacks == "venv":
        monkeypatch.setitem(sys.modules, "ensurepip", None)
    elif lacks:
        monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.27" if "today" in lacks else "")
    assert len(missing()) == bool(lacks)


def test_machine_without_wheels_needs_redis_and_java(
    missing: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert len(missing()) == 2
    for name in ("valkey-server", "java"):
        (tmp_path / name).touch(mode=0o755)
    assert missing() == []
