"""What `make` names as missing before it installs anything."""

from __future__ import annotations

import os
import platform
import runpy
import sys
from pathlib import Path

import pytest

from tests.readme import TOP

LACKS = {
    "": 0,
    "a Python of today": 1,
    "venv": 1,
    "a C library": 1,
    "a C library of today": 1,
    "wheels of Redis and Java": 2,
}


@pytest.mark.parametrize("lacks", LACKS)
def test_what_a_machine_lacks_is_named(
    lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nothing is installed
    monkeypatch.setattr(platform, "machine", lambda: "riscv64" if "wheels" in lacks else "x86_64")
    library = {"a C library": "", "a C library of today": "glibc 2.27"}.get(lacks, "glibc 2.36")
    monkeypatch.setattr(os, "confstr", lambda _: library)
    if lacks == "a Python of today":
        monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    if lacks == "venv":
        monkeypatch.setitem(sys.modules, "ensurepip", None)
    missing = runpy.run_path(str(TOP / "requirements/ready.py"))["missing"]
    assert len(missing()) == LACKS[lacks]
    for name in ("valkey-server", "java"):
        (tmp_path / name).touch(mode=0o755)
    assert len(missing()) == LACKS[lacks] * (lacks != "wheels of Redis and Java")
