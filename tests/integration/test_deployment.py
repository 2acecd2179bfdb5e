"""The parts of the manifests and of the compose file start with the environment that these give.

Only places are replaced: the addresses of Kafka and Redis, the prefix, ports, and the folder of
mounted files. No container engine runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError

from streams.answerer.query_file import read_query_file
from streams.failures import Exit
from streams.kafka.answer_topics import ensure_answer_topics
from streams.local.server_process import free_ports
from tests.integration.service import Service, ServiceFactory, eventually
from tests.keys import public
from tests.unit.deploy.test_compose import PARTS
from tests.unit.deploy.test_kubernetes import CONTAINERS, FOLDER, SERVED, literals
from tests.waiting import HANGS_AFTER

SECRET = "of-these-tests-alone"


@pytest.fixture(scope="module")
def service(start_service: ServiceFactory) -> Iterator[Service]:
    """Start a service with the dataset and the topic of the example queries."""
    with start_service(workers=1, partitions=2) as service:
        ensure_answer_topics(service.config)
        for file in (FOLDER / "answerer", FOLDER.parents[1] / "examples" / "answering"):
            queries = read_query_file(file / "queries.toml")
            service.client.create_dataset(
                queries.dataset, epsilon=4.0, delta=1e-6, user_ids="integer"
            )
        admin = KafkaAdminClient(bootstrap_servers=service.kafka)
        for name in ("visits", "events"):
            with suppress(TopicAlreadyExistsError):  # other tests use this broker
                admin.create_topics({name: {"num_partitions": 1}})
        admin.close()
        service.settle()
        yield service


class Places:
    """Replaces what a manifest says about places."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service, self._folder = service, folder
        self.port = free_ports(1)[0]

    def file(self, path: str, content: str = "") -> None:
        """Create a mounted file."""
        place = Path(self.placed(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)

    def placed(self, text: str) -> str:
        """Return a value or an argument with the places of this test."""
        if re.match(r"/(secrets|state|queries)\b", text):
            return f"{self._folder}{text}"
        return re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+", rf"\1:{self.port}", text)

    @contextmanager
    def running(
        self, words: Sequence[str], given: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        """Run `turnstile` with this environment and no other."""
        environment = {name: self.placed(value) for name, value in given.items()}
        environment |= {
            "TURNSTILE_KAFKA": self._service.kafka,
            "TURNSTILE_PREFIX": self._service.prefix,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        if "TURNSTILE_REDIS" in given:
            environment["TURNSTILE_REDIS"] = self._service.redis
        command = [sys.executable, "-m", "streams.cli", *map(self.placed, words)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def answers(self, path: str) -> bool:
        """Return whether the process answers at a path."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with suppress(URLError, ConnectionError), urlopen(url, timeout=HANGS_AFTER) as answer:
            return bool(answer.status == 200)
        return False

    def run_until_ready(
        self, words: Sequence[str], given: Mapping[str, str], paths: set[str]
    ) -> None:
        """Run a part until it answers at all paths; then stop it."""
        with self.running(words, given) as process:

            def is_ready() -> bool:
                assert process.poll() is None, process.communicate()
                return all(map(self.answers, paths))

            eventually(is_ready)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=HANGS_AFTER)
            assert process.returncode == Exit.OK, said


@pytest.fixture
def places(service: Service, tmp_path: Path) -> Places:
    places = Places(service, tmp_path)
    for path in ("/secrets/dashboard/password", "/secrets/portal/key"):
        places.file(path, SECRET)
    places.file("/secrets/gateway/callers.keys", public("alice"))
    places.file("/state/made")
    return places


def words_of(part: str, settings: Mapping[str, str]) -> list[str]:
    """Return the arguments of a container, with the variables that Kubernetes replaces."""
    return [
        re.sub(r"\$\((\w+)\)", lambda found: settings[found[1]], word)
        for word in CONTAINERS[part]["args"]
    ]


def settings_of(part: str) -> dict[str, str]:
    container = CONTAINERS[part]
    settings = literals(part)[container["envFrom"][0]["configMapRef"]["name"]]
    return settings | {variable["name"]: "" for variable in container.get("env", [])}


@pytest.mark.process
@pytest.mark.parametrize("part", sorted(SERVED.keys() - {"base"}))
def test_parts_of_the_manifests_answer_their_probes(part: str, places: Places) -> None:
    places.file("/queries/queries.toml", (FOLDER / "answerer" / "queries.toml").read_text())
    settings, container = settings_of(part), CONTAINERS[part]
    probes = {container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    places.run_until_ready(words_of(part, settings), settings, probes)
    assert (Path(places.placed("/state/links.db")).exists()) is (part == "portal")


@pytest.mark.process
def test_job_that_trims_ends_well(places: Places) -> None:
    settings = settings_of("trim")
    with places.running(words_of("trim", settings), settings) as process:
        said = process.communicate(timeout=HANGS_AFTER)
        assert process.returncode == Exit.OK, said


@pytest.mark.process
@pytest.mark.parametrize("name", ["answerer", "dashboard", "gateway", "portal"])
def test_parts_of_the_compose_file_answer_their_health_checks(name: str, places: Places) -> None:
    part = PARTS[name]
    file = FOLDER.parents[1] / "examples" / "answering" / "queries.toml"
    places.file("/queries/queries.toml", file.read_text())
    secret = public("alice") if name == "gateway" else SECRET
    given = {key: secret if "$" in value else value for key, value in part["environment"].items()}
    (path,) = re.findall(r"http://127\.0\.0\.1:\d+(/\w*)", part["healthcheck"]["test"][-1])
    places.run_until_ready(part["command"], given, {path})
