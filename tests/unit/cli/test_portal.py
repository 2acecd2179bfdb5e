"""The command that the portal gives for an example prints a link that opens this portal."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from streams.cli import portal
from streams.cli.main import main
from streams.cli.output import Exit
from streams.local.ports import free_ports


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
def test_the_command_given_for_an_example_links_to_this_page(
    options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def started_and_stopped(
        served: Any, listen: str, started: Callable[[], None], closed: Callable[[], None]
    ) -> None:
        await served.start()
        started()
        await served.stop()

    monkeypatch.setenv("TURNSTILE_PORTAL_KEY", "of-this-test-alone-and-of-no-other-one")
    monkeypatch.setattr(portal, "Reader", Nothing)
    monkeypatch.setattr(portal, "serve_until_stopped", started_and_stopped)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    assert main(["portal", "--listen", listen, *options.split()]) == Exit.OK
    said = capsys.readouterr().err
    assert "--user-ids" in said
    (command,) = (line.partition(": ")[2] for line in said.splitlines() if "for example" in line)
    program, *words = shlex.split(command)
    assert program == "turnstile"
    assert main(words) == Exit.OK
    page = options.split()[1] if "--url" in options else f"http://{listen}/"
    assert f"{page}#" in capsys.readouterr().out
    assert ("shops." in command) == ("shops." in options)
