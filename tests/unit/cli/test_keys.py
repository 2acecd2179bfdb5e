"""Keys are created in pairs, and a private key is not shown or overwritten by mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main
from streams.records.signatures import Signer


@pytest.mark.parametrize(
    ("purpose", "private", "public"),
    [
        ("decisions", "signing_key", "trusted_keys"),
        ("answers", "signing_key", "answer_keys"),
        ("requests", "request_key", "public_key"),
    ],
)
def test_private_key_file_is_private_and_not_overwritten(
    purpose: str,
    private: str,
    public: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTILE_SIGNING_KEY_FILE", "/absent")  # that is what keys are made for
    path = tmp_path / "signing.key"
    command = ["keys", "new", "--for", purpose, "--json"]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert Signer(shown[private]).public == shown[public]
    assert main([*command, "--out", str(path)]) == 0
    said = capsys.readouterr()
    secret = path.read_text().strip()
    assert Signer(secret).public == json.loads(said.out)[public]
    assert path.stat().st_mode & 0o077 == 0
    assert secret not in said.out + said.err
    assert main([*command, "--out", str(path)]) == 2
    assert path.read_text().strip() == secret
