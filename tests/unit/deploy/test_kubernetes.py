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
from streams.kafka.answers import ANSWER_SETTINGS
from streams.kafka.topics import SETTINGS
from tests.readme import TOP

FOLDER = TOP / "deploy" / "kubernetes"
KUSTOMIZED = "kustomization.yaml"
OVERLAYS = ("overlays/example", "overlays/secure")
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed, which builds overlays"
)


def manifests(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.yaml")):
        if path.name != KUSTOMIZED:
            yield from yaml.safe_load_all(path.read_text())


BASE = {manifest["kind"]: manifest for manifest in manifests(FOLDER / "base")}
POD: dict[str, Any] = BASE["Deployment"]["spec"]["template"]["spec"]
(WORKER,) = POD["containers"]


@pytest.mark.parametrize("kind", BASE)
def test_manifests_are_valid_for_kubernetes(kind: str) -> None:
    kubernetes_validate.validate(
        _with_selector(BASE[kind]), kubernetes_validate.latest_version(), strict=True
    )


def _with_selector(manifest: dict[str, Any]) -> dict[str, Any]:
    """As kustomize leaves it: a deployment needs a selector, which its labels make."""
    labels = yaml.safe_load((FOLDER / "base" / KUSTOMIZED).read_text())["labels"][0]["pairs"]
    if manifest["kind"] != "Deployment":
        return manifest
    template = manifest["spec"]["template"]
    metadata = {**template["metadata"], "labels": labels}
    spec = {
        **manifest["spec"],
        "selector": {"matchLabels": labels},
        "template": {**template, "metadata": metadata},
    }
    return {**manifest, "spec": spec}


@pytest.mark.process
@needs_kubectl
@pytest.mark.parametrize("folder", ["base", *OVERLAYS, "strimzi"])
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


def test_settings_are_those_that_a_worker_reads() -> None:
    known = environment_names()
    for folder in ("base", *OVERLAYS):
        config = yaml.safe_load((FOLDER / folder / KUSTOMIZED).read_text())
        (generated,) = config["configMapGenerator"]
        named = {literal.partition("=")[0] for literal in generated["literals"]}
        assert named <= known
    assert {variable["name"] for variable in WORKER["env"]} <= known


def test_files_that_settings_name_are_mounted() -> None:
    folder = FOLDER / "overlays" / "secure"
    config = yaml.safe_load((folder / KUSTOMIZED).read_text())
    literals = config["configMapGenerator"][0]["literals"]
    patch = yaml.safe_load((folder / "secrets.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = patch["containers"]
    assert container["name"] == WORKER["name"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    named = {literal.partition("=")[2] for literal in literals if "=/" in literal}
    assert {path.rpartition("/")[0] for path in named} == mounted.keys()
    assert {volume["name"] for volume in patch["volumes"]} == set(mounted.values())


def test_workers_of_the_secure_overlay_have_every_key_ring() -> None:
    config = yaml.safe_load((FOLDER / "overlays" / "secure" / KUSTOMIZED).read_text())
    literals = config["configMapGenerator"][0]["literals"]
    named = {literal.partition("=")[0] for literal in literals}
    rings = {"SIGNING_KEY", "TRUSTED_KEYS", "ERASURE_KEYS"}
    assert {f"TURNSTILE_{ring}_FILE" for ring in rings} <= named


def test_a_redis_with_its_password_comes_from_a_secret() -> None:
    (redis,) = (v for v in WORKER["env"] if v["name"] == "TURNSTILE_REDIS")
    assert "secretKeyRef" in redis["valueFrom"]
    assert "redis://" not in "".join(path.read_text() for path in (FOLDER / "base").iterdir())


def test_probes_ask_where_the_worker_answers() -> None:
    config = yaml.safe_load((FOLDER / "base" / KUSTOMIZED).read_text())
    literals = config["configMapGenerator"][0]["literals"]
    (health,) = (text for text in literals if text.startswith("TURNSTILE_HEALTH="))
    port = int(health.rpartition(":")[2])
    assert WORKER["ports"] == [{"name": "health", "containerPort": port}]
    probes = {name: WORKER[name]["httpGet"] for name in WORKER if name.endswith("Probe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    # A stopped partition is no reason to start the worker again.
    assert probes["livenessProbe"]["path"] == probes["startupProbe"]["path"] == "/livez"
    assert probes["readinessProbe"]["path"] == "/readyz"
    annotations = BASE["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    (allowed,) = BASE["NetworkPolicy"]["spec"]["ingress"]
    assert allowed["ports"] == [{"port": port, "protocol": "TCP"}]


def test_only_named_pods_of_one_namespace_reach_the_health_port() -> None:
    (allowed,) = BASE["NetworkPolicy"]["spec"]["ingress"]
    (peer,) = allowed["from"]  # none would admit every pod
    assert peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert peer["podSelector"]["matchLabels"]


def test_a_worker_has_no_rights_and_writes_nowhere() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert WORKER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    dockerfile = (TOP / "deploy" / "Dockerfile").read_text()
    user = f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert f"USER {user}" in dockerfile


def test_topics_have_the_settings_that_workers_and_answerers_compare() -> None:
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
