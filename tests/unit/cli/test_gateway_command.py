"""The command that serves the HTTP API starts only with settings that keep callers apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.cli.main import main
from streams.failures import Exit
from tests.keys import private_key, public


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("--listen 0.0.0.0:8482 --url https://turnstile.example/", {}),
        ("--listen 0.0.0.0:8482", {"GATEWAY_KEYS": public("alice")}),
        ("--url http://turnstile.example/", {"GATEWAY_KEYS": public("alice")}),
        ("", {"GATEWAY_KEYS": private_key("alice")}),
        ("", {"REQUEST_KEY": private_key("alice")}),
        ("", {"PSEUDONYM_KEY": "k" * 32}),
    ],
    ids=["no keys", "no TLS", "no TLS at the proxy", "a private key", "signs itself", "pseudonyms"],
)
def test_gateway_does_not_start_without_keys_tls_or_callers(
    options: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"TURNSTILE_{name}", value)
    budgets = tmp_path / "budgets.db"
    assert main(["gateway", "--budgets", str(budgets), *options.split()]) == Exit.USAGE
    assert not budgets.exists()
