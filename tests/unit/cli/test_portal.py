"""The commands of the portal: the page, links, and their revocation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main, parse
from streams.failures import Exit
from streams.web.links import LinkKeys, Visits

KEY = "of-this-test-alone-and-of-no-other-one"


def test_link_is_revoked_by_its_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "links.db"
    monkeypatch.setenv("TURNSTILE_PORTAL_KEY", KEY)
    monkeypatch.setenv("TURNSTILE_PORTAL_STATE", str(state))
    claims = []
    for _ in range(2):
        assert main(["portal", "link", "--user", "ada", "--json"]) == Exit.OK
        made = json.loads(capsys.readouterr().out)
        claims.append(LinkKeys(KEY, "turnstile.").read(made["link"].partition("#")[2], 0.0))
        assert claims[-1].id == made["id"]
    opened, unopened = claims
    visits = Visits(state)
    assert visits.begin(opened, 0.0)
    for one in claims:
        assert main(["portal", "revoke", one.id, "--json"]) == Exit.OK
        said = json.loads(capsys.readouterr().out)
        assert (said["type"], said["id"]) == ("revoked_link", one.id)
        assert said["was_opened"] is (one is opened)
    assert not visits.is_open(opened.id)
    assert not visits.begin(unopened, 0.0)
    visits.close()


def test_options_before_the_last_word_count() -> None:
    for words in (["portal", "--prefix", "a.", "link"], ["portal", "link", "--prefix", "a."]):
        assert parse([*words, "--user", "ada"]).prefix == "a."


def test_portal_needs_a_state_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_PORTAL_KEY", KEY)
    assert main(["portal"]) == Exit.USAGE
    assert main(["portal", "revoke", "0" * 32]) == Exit.USAGE
    for odd in ("", "-", "0" * 31, "g" * 32):
        with pytest.raises(SystemExit) as ended:
            main(["portal", "revoke", odd])
        assert ended.value.code == Exit.USAGE
