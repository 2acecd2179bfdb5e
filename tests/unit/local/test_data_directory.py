"""Other users of the machine cannot read a stack's data, and no open server serves secure data."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.local import LocalFailure, LocalStack, LocalStackError
from streams.local.directory import make_private, write_private
from streams.local.stack import SECURE_FOLDER


def test_folders_and_files_that_others_could_read_are_made_private(tmp_path: Path) -> None:
    folder, file = tmp_path / "redis", tmp_path / "redis" / "users"
    folder.mkdir()
    file.write_bytes(b"before")
    for path in (folder, file):
        path.chmod(0o777)
    make_private(folder)
    write_private(file, b"secret")
    assert [path.stat().st_mode & 0o077 for path in (folder, file)] == [0, 0]
    assert (file.read_bytes(), list(folder.iterdir())) == (b"secret", [file])


def test_a_stack_without_logins_does_not_serve_the_data_of_a_secure_one(tmp_path: Path) -> None:
    (tmp_path / SECURE_FOLDER).mkdir()
    with pytest.raises(LocalStackError) as caught:
        LocalStack(workers=0, data=tmp_path).start()
    assert caught.value.reason is LocalFailure.UNUSABLE_DIRECTORY
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [SECURE_FOLDER]
