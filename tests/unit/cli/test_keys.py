"""Keys are created in pairs, and a private key is not shown or overwritten by mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main
from streams.records.signatures import Signer


def test_private_key_file_is_private_and_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "signing.key"
    assert main(["keys", "new", "--json", "--out", str(path)]) == 0
    said = capsys.readouterr()
    pair = json.loads(said.out)
    private = path.read_text().strip()
    assert Signer(private).public == pair["trusted_keys"]
    assert path.stat().st_mode & 0o077 == 0
    assert private not in said.out + said.err
    assert main(["keys", "new", "--out", str(path)]) == 2
    assert path.read_text().strip() == private


def test_keys_are_printed_without_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_SIGNING_KEY_FILE", "/absent")  # that is what keys are made for
    assert main(["keys", "new", "--json"]) == 0
    pair = json.loads(capsys.readouterr().out)
    assert Signer(pair["signing_key"]).public == pair["trusted_keys"]


@pytest.mark.parametrize(
    ("purpose", "private", "public"),
    [
        ("answers", "signing_key", "answer_keys"),
        ("requests", "request_key", "public_key"),
    ],
)
def test_keys_have_the_names_of_their_settings(capsys, purpose, private, public):
    assert main(["keys", "new", "--for", purpose, "--json"]) == 0
    pair = json.loads(capsys.readouterr().out)
    assert Signer(pair[private]).public == pair[public]
