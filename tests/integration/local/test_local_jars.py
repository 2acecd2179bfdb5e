"""The jars are downloaded once and completely, and never run with a wrong checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.local import LocalFailure, LocalStackError
from streams.local.kafka_runtime import kafka_classpath, kafka_jars

# The two smallest jars; all jars are treated alike.
SMALL = tuple(jar for jar in kafka_jars() if "jspecify" in jar.path or "slf4j-simple" in jar.path)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_the_table_names_each_jar_once_with_a_checksum() -> None:
    jars = kafka_jars()
    assert len({jar.filename for jar in jars}) == len(jars) == 46
    assert {len(jar.sha256) for jar in jars} == {64}


def test_only_damaged_and_missing_files_are_downloaded_again(tmp_path: Path) -> None:
    said: list[str] = []
    first, second = kafka_classpath(tmp_path, said.append, SMALL)
    assert said

    first.write_bytes(first.read_bytes()[:-1])
    untouched = second.stat()
    said.clear()
    assert kafka_classpath(tmp_path, said.append, SMALL) == [first, second]
    assert said
    assert second.stat().st_mtime_ns == untouched.st_mtime_ns

    first.unlink()
    kafka_classpath(tmp_path, None, SMALL)
    assert first.exists()
    assert {path.name for path in first.parent.iterdir()} == {first.name, second.name}


def test_present_files_need_no_network(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    paths = kafka_classpath(tmp_path, None, SMALL)
    request.getfixturevalue("offline")
    said: list[str] = []
    assert kafka_classpath(tmp_path, said.append, SMALL) == paths
    assert said == []


def test_the_error_without_a_network_has_a_remedy(tmp_path: Path, offline: None) -> None:
    with pytest.raises(LocalStackError) as caught:
        kafka_classpath(tmp_path, None, SMALL)
    assert caught.value.reason is LocalFailure.DOWNLOAD
    assert str(tmp_path) in str(caught.value)  # where to copy the files to
    assert "HTTPS_PROXY" in str(caught.value)


def test_a_download_with_a_wrong_checksum_is_never_installed(tmp_path: Path) -> None:
    forged = SMALL[0]._replace(sha256="0" * 64)
    with pytest.raises(LocalStackError) as caught:
        kafka_classpath(tmp_path, None, [forged])
    assert caught.value.reason is LocalFailure.CHECKSUM
    assert list(tmp_path.rglob("*.jar")) == []
