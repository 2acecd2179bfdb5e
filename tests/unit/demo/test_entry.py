"""What the demo refuses before it starts anything."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from streams.demo.demo_error import DemoError, demo_extra
from streams.demo.entry import check_demo
from streams.demo.purchases import PURCHASES_FILE
from streams.local.launch_errors import how_to_install


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rich(name: str, *rest: object) -> object:
        if name.split(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    with pytest.raises(DemoError) as caught, demo_extra():
        import rich.nothing  # noqa: F401
    assert "rich" in str(caught.value)
    assert how_to_install("demo") in str(caught.value)


def test_data_without_the_purchases_are_refused(tmp_path: Path) -> None:
    for data in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DemoError) as caught:
            check_demo(data, tmp_path / "out")
        assert PURCHASES_FILE in str(caught.value)


def test_the_purchases_are_found_in_folders_and_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / PURCHASES_FILE
    file.parent.mkdir()
    file.touch()
    for data in (tmp_path, file.parent, file):
        check_demo(data, tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError) as caught:
        check_demo(None, tmp_path / "file")
    assert "--out" in str(caught.value)
