"""Programs that are not of this project read and write the topics, as the page about them says.

Those in Java need Maven and its downloads: ``make examples`` runs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streams import CollectTerms
from streams.records.users import partitions_of
from tests.integration.service import Service, ServiceFactory
from tests.integration.test_outputs import raw
from tests.readme import TOP, code, page
from tests.waiting import eventually

PAGE = page("budgets/other-programs")
PROGRAMS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "connect-standalone.sh": "org.apache.kafka.connect.cli.ConnectStandalone",
}
"""The scripts of Kafka's distribution, and the class that each runs."""
METERS = [f"meter-{number}" for number in range(40)]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with scripts that run Kafka's programs."""
    if not os.environ.get("TURNSTILE_EXAMPLES"):
        pytest.skip("programs in Java are run by `make examples`")
    for tool in ("mvn", "java", "bash"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    directory = tmp_path_factory.mktemp("kafka")
    found = directory / "classpath"
    pom = Path(__file__).with_name("kafka_programs") / "pom.xml"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    subprocess.run(
        ["mvn", "--quiet", "--batch-mode", "-f", pom, *goal], check=True, env=environment(directory)
    )
    for name, program in PROGRAMS.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec java -cp "{found.read_text()}" {program} "$@"\n')
        script.chmod(0o755)
    return directory


def environment(scripts: Path) -> dict[str, str]:
    """Return the environment with the scripts."""
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}


def fill(text: str, service: Service) -> str:
    """Return a page's text with the addresses of a service."""
    return text.replace("localhost:9092", service.kafka).replace("turnstile.", service.prefix)


def read(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def shell(command: str, service: Service, scripts: Path, directory: Path) -> str:
    """Run a command of the page in a directory; return its output."""
    ran = subprocess.run(
        ["bash", "-euc", fill(command, service)],
        cwd=directory,
        env=environment(scripts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_console_publishes_norms_and_reads_halts_and_odometers(
    shared: Service, scripts: Path, tmp_path: Path
) -> None:
    (line, *_), (commands, *_) = code(PAGE, ""), code(PAGE, "sh")
    t = shared.client
    t.create_dataset("meters", measure="zcdp", budget=0.5, user_ids="string")
    run = t.run("meters", "daily-load", collect=CollectTerms(clip_norm=1.0))
    lines = [line.replace("meter-17", meter) for meter in METERS]
    (tmp_path / "norms.txt").write_text("".join(lines))
    producing, reading = commands.split("< norms.txt\n")
    shell(f"{producing} < norms.txt", shared, scripts, tmp_path)
    for partition in range(shared.partitions):
        values = raw(shared, "norms", partition)  # the client's requests are MessagePack
        users = [json.loads(value)["user"] for value in values if value[:1] == b"{"]
        assert users
        assert set(partitions_of(users, shared.partitions)) == {partition}
    norm = json.loads(line.partition("|")[2])["norm"]
    assert run.charge_collected(noise_stddev=1.0).norms == dict.fromkeys(METERS, norm)
    t.send_norms("meters", "daily-load", 1, METERS, [norm] * len(METERS))
    assert run.charge_collected(noise_stddev=1.0).norms == {}  # 2 * 0.83^2 / 2 > 0.5
    shared.settle()
    everything = read(shell(reading, shared, scripts, tmp_path))
    published = [each for each in everything if each.get("dataset") == "meters"]
    odometers = {each["user"]: each for each in published if each["type"] == "odometer"}
    assert sorted(odometers) == sorted(METERS)
    (shown,) = read(code(PAGE, "")[1])
    shown["offset"] = odometers["meter-17"]["offset"]
    assert odometers["meter-17"] == shown
    decisions = [each for each in published if each["type"] == "decision"]
    halted = [event["user"] for each in decisions for event in each["halted"]]
    assert sorted(halted) == sorted(METERS)
    shared.audit()


def test_connect_writes_odometers_to_files(shared: Service, scripts: Path, tmp_path: Path) -> None:
    jars = (scripts / "classpath").read_text().split(":")
    plugin = next(jar for jar in jars if Path(jar).name.startswith("connect-file-"))
    for properties in (TOP / "examples" / "connect").iterdir():
        text = fill(properties.read_text(), shared)
        text = text.replace(f"libs/{Path(plugin).name}", plugin)
        (tmp_path / properties.name).write_text(text)
    with (tmp_path / "worker.properties").open("a") as worker:
        worker.write("listeners=http://127.0.0.1:0\n")
    t = shared.client
    t.create_dataset("shown", measure="gdp", budget=1.0, user_ids="integer")
    users = list(range(20))
    t.run("shown", "r").charge(users, [0.5] * 20, noise_stddev=1.0)
    with connect(code(PAGE, "sh")[1], shared, scripts, tmp_path):
        lines = eventually(lambda: written(tmp_path / "odometer.jsonl", '"shown"', len(users)))
        fields = eventually(lambda: written(tmp_path / "odometer.txt", "=gdp", len(users)))
    mine = {each["user"]: each for each in map(json.loads, lines)}
    assert sorted(mine) == users
    for user, each in mine.items():
        assert (each["measure"], each["unit"]) == ("gdp", "mu")
        bound, share = each["bound"], each["spent_share"]
        assert bound[0] >= 0.5
        assert share >= 0.25
        shown = {f"user={user}", "measure=gdp", "unit=mu", f"bound={bound}", f"spent_share={share}"}
        assert any(set(line.strip("{}\n").split(", ")) == shown for line in fields)


@contextmanager
def connect(command: str, service: Service, scripts: Path, directory: Path) -> Iterator[None]:
    """Run a standalone worker of Connect for the block."""
    with (directory / "connect.log").open("w") as log:
        running = subprocess.Popen(
            command.split(), cwd=directory, env=environment(scripts), stdout=log, stderr=log
        )
        try:
            yield
        except BaseException:
            print((directory / "connect.log").read_text()[-4000:])
            raise
        finally:
            running.kill()
            running.wait()


def written(path: Path, about: str, count: int) -> list[str]:
    """Return the complete lines with this text; none while they are fewer than ``count``."""
    text = path.read_text() if path.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if about in line and line[-1] == "\n"]
    return lines if len(lines) >= count else []


def test_a_faust_agent_prints_each_halt_once_through_a_takeover(
    start_service: ServiceFactory, tmp_path: Path
) -> None:
    with start_service() as service:
        halted = halt_through_a_takeover(service)
        wanted = sorted(f"d {step} {user} budget" for step, user in halted)
        program = [sys.executable, str(TOP / "examples" / "faust_halts.py")]
        settings = {"TURNSTILE_KAFKA": service.kafka, "TURNSTILE_PREFIX": service.prefix}
        lines = printed(
            program, tmp_path, {**os.environ, **settings}, lambda lines: set(wanted) <= set(lines)
        )
        assert sorted(line for line in lines if line.startswith("d ")) == wanted


def test_a_streams_program_counts_each_halt_once_through_a_takeover(
    start_service: ServiceFactory, scripts: Path, tmp_path: Path
) -> None:
    with start_service() as service:
        halted = halt_through_a_takeover(service)
        # The program counts both datasets in one partition, and these HALTs are the last ones.
        last = next(
            name
            for name in (f"last-{number}" for number in range(100))
            if len(set(partitions_of(["d", name], service.partitions))) == 1
        )
        charge_too_much(service, last)
        shutil.copytree(TOP / "examples" / "java", tmp_path / "java")
        command = next(line for line in code(PAGE, "sh") if "CountHalts" in line)
        arguments = f"{service.kafka} {service.prefix}"
        lines = printed(
            ["bash", "-euc", "exec " + command.replace("localhost:9092", arguments)],
            tmp_path / "java",
            environment(scripts),
            lambda lines: f"{last} {len(METERS)}" in lines,
        )
        counts = [line for line in lines if line.startswith("d ")]
        assert counts == [f"d {count}" for count in range(1, len(halted) + 1)]


def printed(
    program: list[str],
    directory: Path,
    environ: dict[str, str],
    is_complete: Callable[[list[str]], bool],
) -> list[str]:
    """Run a program until it has printed everything; return the lines."""
    path = directory / "printed"
    with path.open("w") as output:
        running = subprocess.Popen(program, cwd=directory, env=environ, stdout=output)

        def has_printed() -> bool:
            assert running.poll() is None, "the program ended"
            return is_complete(path.read_text().splitlines())

        try:
            eventually(has_printed)
        except BaseException:
            print(path.read_text()[-4000:])
            raise
        finally:
            running.terminate()
            running.wait()
    return path.read_text().splitlines()


def halt_through_a_takeover(service: Service) -> list[tuple[int, str]]:
    """Halt users in every partition, and kill workers until decisions are published twice.

    Returns:
        the step and the user of every HALT event, each once.
    """
    halted: list[tuple[int, str]] = []

    def has_repeats() -> bool:
        halted.extend(charge_too_much(service, "d"))
        service.stack.workers[-1].kill()  # before it deletes what it has published
        service.stack.start_worker()
        halted.extend(charge_too_much(service, "d"))  # behind every repeat
        values = (raw(service, "halts", partition) for partition in range(service.partitions))
        return all(has_decided_twice(each) for each in values)

    eventually(has_repeats)
    service.settle()
    return halted


def has_decided_twice(values: list[bytes]) -> bool:
    """Return whether a decision with HALT events is published twice."""
    decisions = [value for value in values if b'"halted":[{' in value]
    return len(set(decisions)) < len(decisions)


def charge_too_much(service: Service, dataset: str) -> list[tuple[int, str]]:
    """Charge a step that halts all users; return the step with each user."""
    service.client.create_dataset(dataset, measure="zcdp", budget=0.5, user_ids="string")
    run = service.client.run(dataset, "r")
    decision = run.charge(METERS, [2.0] * len(METERS), noise_stddev=1.0)
    assert not any(decision.admitted)
    return [(decision.step, user) for user in METERS]
