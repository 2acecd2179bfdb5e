"""What docs/proving.md shows, made again: the service in it, and the output of its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from streams.records import ChargeRoster, decode_request, encode
from tests.readme import TOP
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service
from tests.unit.replay.test_receipts import keys

PAGE = TOP / "docs" / "proving.md"

# What differs from one time to the next: how long it took, and when.
_VARIES = (
    (r"in \d+\.\d s \([\d,]+ records/s\)", "in 0.0 s (0 records/s)"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "2000-01-01T00:00:00+00:00"),
)


def service() -> Archived:
    """Two partitions, one dataset charged by norms and one by levels."""
    archived, turnstile = new_service(2)
    turnstile.create_dataset("visits", epsilon=2.0, delta=1e-6)
    run = turnstile.run("visits", "daily")
    for _ in range(3):
        run.charge(np.arange(100, 120), np.linspace(0.5, 2.4, 20), noise_stddev=7.0)
    turnstile.create_dataset("faces", measure="renyi", epsilon=4.0, delta=1e-6)
    roster = turnstile.run("faces", "night").enrol(np.arange(100, 120), clip_norm=1.0, levels=10)
    roster.set_norms(np.linspace(0.1, 1.0, 20))
    for _ in range(50):
        roster.charge(noise_stddev=1.1, sampling_rate=0.05)
    for partition in range(2):
        archived.draw(partition)
    return archived


def wronged(archived: Archived) -> None:
    """Somebody writes a decision, and a trainer says it adds more noise than it is charged for."""
    archived.change("halts", "decision", admitted=b"\xff\xff")
    record = archived.topics["norms", 1][-1]
    step = decode_request(record.value)
    assert isinstance(step, ChargeRoster)
    archived._apply(1, encode(replace(step, step=step.step + 1, scale=0.8)))


def blocks() -> list[tuple[str, str]]:
    """Every command of the page, and what it shows below it."""
    found = re.findall(r"```console\n\$ turnstile (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [(command, output) for command, output in found]


def outputs(folder: Path) -> list[str]:
    """What the commands of the page, one after the other, say now."""
    archived, said = service(), []
    private, public = keys(folder)
    places = {"receipt.json": folder / "receipt.json", "key.pem": private, "public.pem": public}
    places |= {"losses.parquet": folder / "losses.parquet"}
    for number, (command, _) in enumerate(blocks()):
        if number == 1:
            wronged(archived)
        elif number == 2:
            archived = service()
        words = [str(places.get(word, word)) for word in shlex.split(command)]
        done = command_on(archived, *words)
        out = done.out + done.said
        for name, place in places.items():
            out = out.replace(str(place), name)
        said.append(out)
    return said


def steady(text: str) -> str:
    """Without what varies, and without spaces at the ends of lines."""
    for pattern, instead in _VARIES:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
