"""The commands of the portal: the page, links, and their revocation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from streams.cli import page_commands
from streams.cli.main import main, parse
from streams.failures import Exit
from streams.local.server_process import free_ports
from streams.web.links import LinkKeys, Visits

KEY = "of-this-test-alone-and-of-no-other-one"


class Nothing:
    """A reader that reads nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "options",
    ["", "--url https://privacy.example.org/me/", "--prefix shops."],
)
def test_example_command_links_to_the_page(
    options: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    async def started_and_stopped(
        served: Any, options: Any, started: Callable[[], None], closed: Callable[[], None]
    ) -> None:
        await served.start()
        started()
        await served.stop()

    monkeypatch.setenv("TURNSTILE_PORTAL_KEY", KEY)
    monkeypatch.setenv("TURNSTILE_PORTAL_STATE", str(tmp_path / "links.db"))
    monkeypatch.setattr("sys.stdin", StringIO("ada\n"))
    monkeypatch.setattr("streams.web.record_reader.RecordReader", Nothing)
    monkeypatch.setattr(page_commands, "serve_until_stopped", started_and_stopped)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    assert main(["portal", "--listen", listen, *options.split()]) == Exit.OK
    said = capsys.readouterr().err
    (command,) = (line.partition(": ")[2] for line in said.splitlines() if "for example" in line)
    program, *words = shlex.split(command)
    assert program == "turnstile"
    assert main(words) == Exit.OK
    page = options.split()[1] if "--url" in options else f"http://{listen}/"
    assert f"{page}#" in capsys.readouterr().out
    assert ("shops." in command) == ("shops." in options)


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
