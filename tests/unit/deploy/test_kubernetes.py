"""The manifests, held against the schemas of Kubernetes and against this repository."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from streams.cli.main import main
from streams.config import environment_names
from streams.kafka.access import ROLES
from streams.kafka.answer_topics import ANSWER_SETTINGS
from streams.kafka.topics import SETTINGS
from tests.readme import TOP

FOLDER = TOP / "deploy" / "kubernetes"
KUSTOMIZED = "kustomization.yaml"
OVERLAYS = ("overlays/example", "overlays/secure")
REDIS_USES = ("decide", "look")
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed, which builds overlays"
)


def manifests(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        if path.name != KUSTOMIZED:
            yield from yaml.safe_load_all(path.read_text())


PARTS = ("base", "answerer", "dashboard", "gateway", "portal", "trim")
MANIFESTS = [(part, manifest) for part in PARTS for manifest in manifests(FOLDER / part)]
POLICIES = {part: found for part, found in MANIFESTS if found["kind"] == "NetworkPolicy"}
WORKLOADS = {part: found for part, found in MANIFESTS if found["kind"] in ("Deployment", "CronJob")}
BASE = {manifest["kind"]: manifest for part, manifest in MANIFESTS if part == "base"}


def template_of(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the template of the pods of a workload."""
    spec = workload["spec"]
    template: dict[str, Any] = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]
    return template


PODS = {part: template_of(workload)["spec"] for part, workload in WORKLOADS.items()}
CONTAINERS = {part: pod["containers"][0] for part, pod in PODS.items()}
WORKER = CONTAINERS["base"]
SERVED = {part: container for part, container in CONTAINERS.items() if "ports" in container}


def literals(folder: str) -> dict[str, dict[str, str]]:
    """Return the settings of a folder, by the name of their ConfigMap."""
    config = yaml.safe_load((FOLDER / folder / KUSTOMIZED).read_text())
    return {
        made["name"]: dict(literal.split("=", 1) for literal in made["literals"])
        for made in config["configMapGenerator"]
        if "literals" in made
    }


@pytest.mark.parametrize(
    ("part", "manifest"),
    MANIFESTS,
    ids=[f"{part}-{manifest['kind']}" for part, manifest in MANIFESTS],
)
def test_manifests_are_valid_for_kubernetes(part: str, manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("part", PARTS)
def test_selectors_select_the_pods_of_their_part(part: str) -> None:
    labels = template_of(WORKLOADS[part])["metadata"]["labels"]
    assert POLICIES[part]["spec"]["podSelector"] == {"matchLabels": labels}
    for owner, manifest in MANIFESTS:
        selector = manifest["spec"].get("selector") if "spec" in manifest else None
        if owner == part and selector:
            assert selector.get("matchLabels", selector) == labels, manifest["kind"]


@pytest.mark.process
@needs_kubectl
@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS, "strimzi"])
def test_kustomize_builds(folder: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for manifest in yaml.safe_load_all(done.stdout):
        if "strimzi" not in manifest["apiVersion"]:
            kubernetes_validate.validate(
                manifest, kubernetes_validate.latest_version(), strict=True
            )
        if manifest["kind"] == "NetworkPolicy":  # kustomize has not changed who is admitted
            written = {policy["metadata"]["name"]: policy["spec"] for policy in POLICIES.values()}
            assert manifest["spec"] == written[manifest["metadata"]["name"]]


@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS])
def test_settings_are_those_that_the_code_reads(folder: str) -> None:
    known = environment_names()
    for settings in literals(folder).values():
        assert settings.keys() - {"PAGE_URL"} <= known
    if folder in CONTAINERS:
        assert {variable["name"] for variable in CONTAINERS[folder].get("env", [])} <= known


@pytest.mark.parametrize("part", PARTS)
def test_files_that_settings_name_are_mounted(part: str) -> None:
    name = part if part != "base" else "worker"
    folder = FOLDER / "overlays" / "secure"
    patch = template_of(yaml.safe_load((folder / f"{name}-secrets.yaml").read_text()))["spec"]
    (container,) = patch["containers"]
    assert container["name"] == CONTAINERS[part]["name"]
    mounted = {
        mount["mountPath"]
        for mount in [*container["volumeMounts"], *CONTAINERS[part]["volumeMounts"]]
    }
    (config_map,) = (source["configMapRef"]["name"] for source in CONTAINERS[part]["envFrom"])
    settings = {**literals(part)[config_map], **literals("overlays/secure")[config_map]}
    named = {value.rpartition("/")[0] for value in settings.values() if value.startswith("/")}
    assert named <= mounted
    assert {mount["mountPath"] for mount in container["volumeMounts"]} <= named
    for spec in (patch, PODS[part]):
        mounts = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} == mounts


@pytest.mark.parametrize("part", PARTS)
def test_each_part_logs_in_with_its_own_role(part: str) -> None:
    (config_map,) = (source["configMapRef"]["name"] for source in CONTAINERS[part]["envFrom"])
    role = literals("overlays/secure")[config_map]["TURNSTILE_KAFKA_USERNAME"]
    assert ROLES[role].redis in ((None, "rewrite") if part in ("answerer", "trim") else REDIS_USES)
    reaches = [port["port"] for rule in POLICIES[part]["spec"]["egress"] for port in rule["ports"]]
    assert (6379 in reaches) is ("env" in CONTAINERS[part])
    assert part in SERVED or POLICIES[part]["spec"]["ingress"] == []
    assert role == {"base": "worker", "trim": "trimmer"}.get(part, part)


def test_workers_of_the_secure_overlay_have_every_key_ring() -> None:
    named = literals("overlays/secure")["turnstile"].keys()
    rings = {"SIGNING_KEY", "TRUSTED_KEYS", "ERASURE_KEYS"}
    assert {f"TURNSTILE_{ring}_FILE" for ring in rings} <= named


@pytest.mark.parametrize("part", PARTS)
def test_a_redis_with_its_password_comes_from_a_secret(part: str) -> None:
    for variable in CONTAINERS[part].get("env", []):
        assert variable["name"] == "TURNSTILE_REDIS"
        assert "secretKeyRef" in variable["valueFrom"]
    for settings in literals(part).values():
        assert not any("redis://" in value for value in settings.values())


@pytest.mark.parametrize("part", SERVED)
def test_probes_and_policies_name_the_port_that_is_served(part: str) -> None:
    container = CONTAINERS[part]
    ((name, port),) = ((each["name"], each["containerPort"]) for each in container["ports"])
    settings = literals(part)[container["envFrom"][0]["configMapRef"]["name"]]
    (address,) = [
        *(value for key, value in settings.items() if key == "TURNSTILE_HEALTH"),
        *(word.partition("=")[2] for word in container["args"] if word.startswith("--listen=")),
    ]
    assert address == f"0.0.0.0:{port}"
    probes = {key: container[key]["httpGet"] for key in container if key.endswith("Probe")}
    assert {probe["port"] for probe in probes.values()} == {name}
    # A suspended partition is no reason to restart a worker.
    paths = {"health": ("/livez", "/readyz"), "api": ("/livez", "/livez"), "page": ("/", "/")}
    live, ready = paths[name]
    assert probes["livenessProbe"]["path"] == live
    assert probes["readinessProbe"]["path"] == ready
    annotations = template_of(WORKLOADS[part])["metadata"].get("annotations", {})
    assert annotations.get("prometheus.io/port") == (str(port) if name == "health" else None)
    (allowed,) = POLICIES[part]["spec"]["ingress"]
    assert allowed["ports"] == [{"port": port, "protocol": "TCP"}]
    (peer,) = allowed["from"]  # none would admit every pod
    assert peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert peer["podSelector"]["matchLabels"].keys() == {"app.kubernetes.io/name"}


@pytest.mark.parametrize("part", ["answerer", "dashboard", "portal"])
def test_parts_that_hold_something_alone_run_once(part: str) -> None:
    spec = WORKLOADS[part]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_no_rights_and_writes_nowhere_else(part: str) -> None:
    pod, container = PODS[part], CONTAINERS[part]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    written = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert written == ({"/tmp", "/state"} if part == "portal" else {"/tmp"})
    dockerfile = (TOP / "deploy" / "Dockerfile").read_text()
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert f"USER {user}" in dockerfile


def test_topics_have_the_settings_that_workers_compare() -> None:
    found = {
        topic["metadata"]["name"]: topic["spec"]
        for topic in manifests(FOLDER / "strimzi")
        if topic["kind"] == "KafkaTopic"
    }
    wanted = {name: (settings, 64) for name, settings in SETTINGS.items()}
    wanted |= {name: (settings, 1) for name, settings in ANSWER_SETTINGS.items()}
    assert found.keys() == {f"turnstile.{name}" for name in wanted}
    for name, (settings, partitions) in wanted.items():
        spec = found[f"turnstile.{name}"]
        assert spec["config"] == {**settings, "min.insync.replicas": "2"}
        assert (spec["partitions"], spec["replicas"]) == (partitions, 3)


def test_users_have_the_rights_of_their_roles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acl", "--format", "strimzi"]) == 0
    printed = capsys.readouterr().out.replace("cluster: CLUSTER", "cluster: kafka")
    users = (user for user in manifests(FOLDER / "strimzi") if user["kind"] == "KafkaUser")
    assert list(users) == list(yaml.safe_load_all(printed))
