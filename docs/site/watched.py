"""Draws the picture of `turnstile top` while a training runs and a worker hangs.

    python docs/site/watched.py docs/pictures/watched.svg

The training, the service, the fault and every frame are real; the host's name is left out. The
picture is an SVG that moves by itself, and stands still for those who want no animations.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.segment import Segment

from streams import Turnstile
from streams.cli.views import frame
from streams.config import Config
from streams.demo.training import load_digits
from streams.ledger.outputs import Channel
from streams.local import LocalStack
from streams.operations.watching import Watch
from streams.trainers import IndividualDPClassifier

COLUMNS, LINES = 96, 24
FRAMES, SECONDS_BETWEEN, SECONDS_SHOWN = 18, 1.2, 1.0
HANGS_AT = 4
LINE_HEIGHT, COLUMN_WIDTH, MARGIN = 19, 8.43, 18
COLOURS = {
    "": "#d6dae0",
    "green": "#7fc98f",
    "cyan": "#5bb3d0",
    "yellow": "#e2b45a",
    "red": "#ef7d72",
}


def draw(frames: Sequence[Sequence[Sequence[Segment]]]) -> str:
    """One SVG of several frames, each of lines of segments."""
    width, height = COLUMNS * COLUMN_WIDTH + 2 * MARGIN, LINES * LINE_HEIGHT + 2 * MARGIN
    length, shown = len(frames) * SECONDS_SHOWN, 100 / len(frames)
    style = f"""
    text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
    .bold {{ font-weight: 700 }} .dim {{ opacity: .55 }}
    g {{ visibility: hidden; animation: f {length:.1f}s step-end infinite }}
    @keyframes f {{ 0% {{ visibility: visible }} {shown:.3f}% {{ visibility: hidden }} }}
    @media (prefers-reduced-motion: reduce) {{
      g {{ animation: none }} g:nth-of-type({HANGS_AT}) {{ visibility: visible }}
    }}"""
    groups = [
        f'<g style="animation-delay:{number * SECONDS_SHOWN:.1f}s">{_lines(lines)}</g>'
        for number, lines in enumerate(frames)
    ]
    words = "turnstile top: a training is watched while a worker hangs and another one takes over"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'role="img" aria-label="{words}">',
            f"<title>{words}</title><style>{style}</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#161b22"/>',
            *groups,
            "</svg>\n",
        ]
    )


def _lines(lines: Sequence[Sequence[Segment]]) -> str:
    drawn = []
    for row, line in enumerate(lines[:LINES]):
        column, y = 0, MARGIN + LINE_HEIGHT * (row + 0.75)
        for text, style, _ in line:
            if text.strip():
                start = column + len(text) - len(text.lstrip())
                colour = style.color.name if style is not None and style.color else ""
                looks = " ".join(
                    look for look in ("bold", "dim") if style is not None and getattr(style, look)
                )
                words = text.strip()
                drawn.append(
                    f'<text x="{MARGIN + COLUMN_WIDTH * start:.1f}" y="{y:.1f}" class="{looks}" '
                    f'textLength="{COLUMN_WIDTH * len(words):.1f}" '
                    f'fill="{COLOURS.get(colour, COLOURS[""])}">{escape(words)}</text>'
                )
            column += len(text)
    return "".join(drawn)


def train(kafka: str, prefix: str, stop: threading.Event) -> None:
    """Digits, again and again, until somebody says that it is enough."""
    images = load_digits()
    with Turnstile(kafka, prefix=prefix) as turnstile:
        turnstile.create_dataset("digits", measure="renyi", epsilon=8.0, delta=1e-5)
        for night in range(1, 100):
            if stop.is_set():
                return
            run = turnstile.run("digits", f"night-{night}")
            model = IndividualDPClassifier(
                population=1_400,
                classes=range(10),
                steps=4_000,
                noise_multiplier=60.0,
                sampling_rate=0.02,
            )
            model.fit(images.train[:, :-1], images.train_labels, run=run)
            run.close()


def film() -> list[list[list[Segment]]]:
    """Frames of a training in which a worker hangs."""
    console = Console(width=COLUMNS, height=LINES, force_terminal=True, highlight=False)
    frames: list[list[list[Segment]]] = []
    with LocalStack(workers=2, partitions=4) as stack:
        config = Config(kafka=stack.kafka, redis=stack.redis, prefix=stack.prefix)
        enough = threading.Event()
        training = threading.Thread(target=train, args=(stack.kafka, stack.prefix, enough))
        training.start()
        with Watch(config, [], 1e-5, (Channel.REJECTS,)) as watch:
            while not watch.is_complete() or not watch.facts.people()["runs"]:
                time.sleep(0.1)
            time.sleep(6.0)
            for number in range(FRAMES):
                if number == HANGS_AT:
                    hanging = stack.workers[0].pid
                    assert hanging is not None
                    os.kill(hanging, signal.SIGSTOP)
                seen = watch.facts.service()
                shown = frame(_nameless(seen), watch.facts.people(), config)
                frames.append(console.render_lines(shown, pad=False))
                time.sleep(SECONDS_BETWEEN)
        os.kill(hanging, signal.SIGCONT)
        enough.set()
        training.join()
    return frames


def _nameless(seen: dict[str, Any]) -> dict[str, Any]:
    host = socket.gethostname()
    partitions = [
        {**one, "owner": str(one["owner"]).replace(host, "trainer")} for one in seen["partitions"]
    ]
    return {**seen, "partitions": partitions}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(film()), encoding="utf-8")
