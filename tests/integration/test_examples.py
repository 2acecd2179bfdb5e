"""Clients in other languages, written from the AsyncAPI document, charge as the SDK does.

They need a toolchain and its downloads: ``make examples`` runs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import RunIsClosed, Turnstile
from tests.integration.service import Service

EXAMPLES = Path(__file__).parents[2] / "examples"
ASKED = os.environ.get("TURNSTILE_EXAMPLES")


def command(language: str, service: Service, scratch: Path) -> list[str]:
    if language == "go":
        return ["go", "run", ".", service.kafka, service.prefix]
    arguments = f"-Dexec.args={service.kafka} {service.prefix}"
    built = f"-DbuildDirectory={scratch}"
    return ["mvn", "--quiet", "--batch-mode", built, "compile", "exec:java", arguments]


@pytest.mark.parametrize(("language", "tool"), [("go", "go"), ("java", "mvn")])
def test_a_client_in_another_language_charges_as_the_sdk_does(
    shared: Service, tmp_path: Path, language: str, tool: str
) -> None:
    if not ASKED:
        pytest.skip("clients in other languages are run by `make examples`")
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    client = shared.client  # which waits until the workers have made the topics
    ran = subprocess.run(
        command(language, shared, tmp_path),
        cwd=EXAMPLES / language,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    lines = (line[line.find("{") :] for line in ran.stdout.splitlines() if "{" in line)
    decided = [json.loads(line) for line in lines]  # Maven may colour the line, even an empty one
    steps = decided_in_memory()
    if language == "go":  # which also charges users who sent their norms
        steps += collected(steps[:2])
    assert decided == steps
    with pytest.raises(RunIsClosed):
        client.run(f"from-{language}", "example")
    shared.audit()


def collected(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is decided if the users of these steps send their norms."""
    return [
        {
            "step": step["step"],
            "norms": {
                f"meter-{user}": user / 8
                for user, admitted in enumerate(step["admitted"], start=1)
                if admitted
            },
        }
        for step in steps
    ]


def decided_in_memory() -> list[dict[str, Any]]:
    users = np.arange(1, 9)
    with Turnstile.in_memory(partitions=1) as t:
        t.create_dataset("d", measure="gdp", budget=1.0)
        run = t.run("d", "r")
        steps = (run.charge(users, users / 8, noise_stddev=1.0) for _ in range(5))
        found: list[dict[str, Any]] = [
            {"step": d.step, "admitted": d.admitted.tolist()} for d in steps
        ]
    assert not all(all(step["admitted"]) for step in found)
    return found
