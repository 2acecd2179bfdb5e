"""A secure service: each role can do what it needs, and is denied everything else.

All tests share one stack, as `turnstile up --secure` starts it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import AuthorizationError, KafkaError

from streams import InvalidRequest, RequestRejected, ServiceUnavailable, Turnstile
from streams.config import Config
from streams.kafka.answer_topics import ANSWER_TOPICS
from streams.kafka.authentic import verifier_of
from streams.kafka.kafka_clients import new_admin, new_producer, new_reader
from streams.kafka.security import ConnectionFailure, security
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import Topics
from streams.local.secure import Authority, SecureStack
from streams.records import Reason
from streams.records.signatures import new_keys
from streams.sdk.kafka_connection import KafkaConnection
from streams.store.snapshot import MANIFEST, UnusableSnapshot
from tests.gateways import gateway_to
from tests.integration.command import turnstile
from tests.integration.service import IMPATIENT_WORKER, end_at_once, eventually
from tests.unit.gateway.asking import STEP, ask, create
from tests.waiting import HANGS_AFTER

PARTITIONS = 2
USERS = list(range(12))


@pytest.fixture(scope="module")
def stack() -> Iterator[SecureStack]:
    with SecureStack(
        workers=1,
        partitions=PARTITIONS,
        worker_command=IMPATIENT_WORKER,
        worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": "1"},
    ) as running:
        yield running
        end_at_once(running, running.broker, running.redis_server)


@pytest.fixture(scope="module")
def used(stack: SecureStack) -> SecureStack:
    """Return the stack, with records in every topic."""
    with Turnstile(config=stack.config_of("trainer")) as client:
        client.create_dataset("d", measure="zcdp", budget=0.5)
        run = client.run("d", "r")
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).admitted.all()
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()
    assert attempt_to_write(stack.config_of("trainer"), "norms") is None  # and thereby to rejects
    for topic in ANSWER_TOPICS:
        assert attempt_to_write(stack.config_of("answerer"), topic) is None

    def is_there() -> bool:
        reader = stack.config_of("auditor")
        return all(attempt_to_read(reader, topic) is None for topic in TOPICS)

    eventually(is_there)
    return stack


UNSEEN = "no such topic"
TOPICS = ("norms", "halts", "odometer", "rejects", "snapshots", *ANSWER_TOPICS)


def attempt_to_read(config: Config, topic: str) -> str | None:
    """Read a topic; return the error, or None if records arrived."""
    reader = new_reader(config)
    try:
        partitions = reader.partitions_for_topic(config.topic(topic))
        if not partitions:
            return UNSEEN
        reader.assign([TopicPartition(config.topic(topic), p) for p in partitions])
        reader.seek_to_beginning()
        for _ in range(20):
            if reader.poll(timeout_ms=100):
                return None
        return "nothing came"
    except KafkaError as error:
        return type(error).__name__
    finally:
        reader.close()


def attempt_to_write(config: Config, topic: str) -> str | None:
    """Write an unreadable record; return the error, or None if it was accepted."""
    producer = KafkaProducer(
        bootstrap_servers=config.kafka, acks="all", enable_idempotence=False, **security(config)
    )
    try:
        producer.send(config.topic(topic), value=b"\xc1", key=b"k", partition=0).get(
            timeout=HANGS_AFTER
        )
        return None
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close()


RIGHTS = """
    role       norms  halts  odometer  rejects  snapshots  answers  answers-state
    trainer    w      r      -         r        -            -        -
    answerer   w      r      -         r        -            rw       rw
    worker     r      w      rw        w        rw           -        -
    portal     -      r      r         -        -            -        -
    dashboard  -      -      -         r        -            r        -
    operator   -      -      -         -        -            -        -
    auditor    r      r      r         r        r            r        r
    trimmer    r      -      -         -        r            -        -
"""
ROWS = [line.split() for line in RIGHTS.strip().splitlines()[1:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_role_can_read_and_write_only_what_it_needs(used: SecureStack, row: list[str]) -> None:
    role, *rights = row
    config = used.config_of(role)
    for topic, right in zip(TOPICS, rights, strict=True):
        for letter, attempt in (("r", attempt_to_read), ("w", attempt_to_write)):
            expected = None if letter in right else "TopicAuthorizationFailedError"
            sees = role in ("dashboard", "operator")
            if right == "-" and letter == "r" and topic in ANSWER_TOPICS and not sees:
                expected = UNSEEN  # nor can it see that such a topic exists
            assert attempt(config, topic) == expected, (role, letter, topic)


def transact(config: Config) -> None:
    name = f"{config.prefix}odometer-0"
    producer = KafkaProducer(
        bootstrap_servers=config.kafka, transactional_id=name, **security(config)
    )
    try:
        producer.init_transactions()
    finally:
        producer.close()


def create_a_topic(config: Config) -> None:
    admin = new_admin(config)
    try:
        admin.create_topics({config.topic("norms2"): {"num_partitions": 1}})
    finally:
        admin.close()


def delete_the_log(config: Config) -> None:
    admin = new_admin(config)
    try:
        admin.delete_topics([config.topic("norms")])
    finally:
        admin.close()


def variables(config: Config) -> dict[str, str]:
    """Return settings as environment variables."""
    of_kafka = (name for name in vars(config) if name.startswith("kafka"))
    return {f"TURNSTILE_{name.upper()}": getattr(config, name) for name in (*of_kafka, "prefix")}


OTHER_DEEDS: dict[str, Callable[[Config], None]] = {
    "fence the odometer records of the workers": transact,
    "create a topic": create_a_topic,
    "delete the log": delete_the_log,
}


@pytest.mark.parametrize("deed", OTHER_DEEDS)
@pytest.mark.parametrize("role", ["trainer", "auditor"])
def test_a_role_has_no_right_of_another_role(used: SecureStack, role: str, deed: str) -> None:
    with pytest.raises(AuthorizationError):
        OTHER_DEEDS[deed](used.config_of(role))


def test_an_operator_can_create_the_topics_and_no_others(used: SecureStack) -> None:
    config = used.config_of("operator")
    assert turnstile("topics", "create", environment=variables(config)).code == 0
    with pytest.raises(AuthorizationError):
        create_a_topic(config)
    with pytest.raises(AuthorizationError):
        delete_the_log(config)


# --- access lists ---------------------------------------------------------------------------------


def test_a_gateway_has_the_rights_that_it_needs_and_charges_with_its_callers_key(
    stack: SecureStack,
) -> None:
    keys, config = stack.secrets.request_keys, stack.config_of("gateway")
    trainer = stack.config_of("trainer").request_key
    with gateway_to(KafkaConnection(config), config=config) as gateway:
        allow = {keys["trainer"]: ["charge", "manage"]}
        assert create(gateway, name="by-gateway", allow=allow).status == 200
        run = "/v1/datasets/by-gateway/runs/r"
        opened = ask(gateway, "POST", f"{run}/attempts", {}, key=trainer).body
        path = f"{run}/attempts/{opened['attempt']}"
        for key, status in ((None, 403), (new_keys()[0], 403), (trainer, 200)):
            assert ask(gateway, "POST", f"{path}/steps/0", STEP, key=key).status == status
            assert ask(gateway, "GET", f"{path}/halts", key=key).status == status
        assert ask(gateway, "GET", "/v1/datasets/by-gateway").status == 200


def test_a_dataset_is_charged_only_with_keys_on_its_access_list(stack: SecureStack) -> None:
    keys = stack.secrets.request_keys
    trainer, answerer = stack.config_of("trainer"), stack.config_of("answerer")
    rejected = [
        answerer,
        replace(trainer, request_key=""),
        replace(trainer, request_key=new_keys()[0]),
    ]
    by_trainer = "--config", str(stack.roles["trainer"])
    allow = "--allow", f"{keys['trainer']}:charge,manage"
    assert (
        turnstile("dataset", "create", "listed", "--budget", "0.5", *allow, *by_trainer).code == 0
    )
    for config in rejected:
        with Turnstile(config=config) as client:
            for ask in (
                lambda client=client: client.run("listed", "r"),
                lambda client=client: client.close_dataset("listed"),
                lambda client=client: client.create_dataset(
                    "in", measure="zcdp", budget=0.1, parents="listed"
                ),
                lambda client=client: client.set_access("listed", {keys["answerer"]: ["manage"]}),
            ):
                with pytest.raises((RequestRejected, InvalidRequest)) as refused:
                    ask()
                if config.request_key:
                    assert refused.value.reason is Reason.NOT_ALLOWED
    with Turnstile(config=trainer) as client:
        run = client.run("listed", "r")
        assert run.charge(USERS, [0.1] * len(USERS), noise_stddev=5.0).admitted.all()
        allow = "--allow", f"{keys['answerer']}:manage,charge"
        assert turnstile("dataset", "access", "listed", *allow, *by_trainer).code == 0
        with pytest.raises(RequestRejected) as removed:
            run.charge(USERS, [0.1] * len(USERS), noise_stddev=5.0)
        assert removed.value.reason is Reason.NOT_ALLOWED
    with Turnstile(config=answerer) as client:
        assert client.run("listed", "s", take_over=True).step == 0
    by_operator = "--config", str(stack.roles["operator"])
    (shown,) = turnstile("dataset", "show", "listed", "--json", *by_operator).lines
    assert shown["allow"] == {keys["answerer"]: ["charge", "manage"]}
    assert shown["allow_agrees"]


# --- clients that are rejected ---

REJECTED_CLIENTS: dict[str, tuple[dict[str, str], ConnectionFailure, str]] = {
    # the settings, the reason, a value that the message names
    "a wrong password": ({"kafka_password": "hunter2"}, ConnectionFailure.LOGIN, "kafka_password"),
    "an unknown user": ({"kafka_username": "nobody"}, ConnectionFailure.LOGIN, "kafka_username"),
    "another mechanism": (
        {"kafka_mechanism": "PLAIN"},
        ConnectionFailure.MECHANISM,
        "SCRAM-SHA-512",
    ),
    "no login": (
        {"kafka_security": "SSL", "kafka_username": "", "kafka_password": ""},
        ConnectionFailure.ENDED,
        "kafka_security",
    ),
    "nothing at all": (
        {
            "kafka_security": "PLAINTEXT",
            "kafka_username": "",
            "kafka_password": "",
            "kafka_ca": "",
        },
        ConnectionFailure.SPEAKS_TLS,
        "kafka_security",
    ),
    "an authority that the system knows": (
        {"kafka_ca": ""},
        ConnectionFailure.CERTIFICATE,
        "kafka_ca",
    ),
}


@pytest.mark.parametrize("client", REJECTED_CLIENTS)
def test_a_client_with_a_wrong_login_is_rejected_with_the_reason(
    stack: SecureStack, client: str
) -> None:
    changed, reason, named = REJECTED_CLIENTS[client]
    # The client waits only if the broker may still be starting.
    timeout = 0.5 if client == "no login" else 3600.0
    config = replace(stack.config_of("trainer"), timeout=timeout, **changed)
    with pytest.raises(ServiceUnavailable) as caught:
        Turnstile(config=config)
    assert caught.value.reason is reason
    assert named in str(caught.value)
    rejects = turnstile("rejects", environment=variables(config))
    assert rejects.code == 69
    assert named in rejects.said
    assert "hunter2" not in rejects.said
    assert "hunter2" not in str(caught.value)


def test_the_admin_port_requires_the_admin_certificate(stack: SecureStack, tmp_path: Path) -> None:
    admin = stack.config_of("admin")
    with Turnstile(config=replace(admin, trusted_keys="")) as client:
        assert client.partitions == PARTITIONS
    other = Authority(tmp_path)
    other.issue("turnstile-admin", tmp_path / "admin.pem")  # the right name, from another authority
    for certificate in ("", str(tmp_path / "admin.pem")):
        with pytest.raises(ServiceUnavailable):
            Turnstile(config=replace(admin, kafka_certificate=certificate, timeout=0.5))


def test_a_worker_with_a_wrong_login_exits_with_the_reason(stack: SecureStack) -> None:
    config = replace(stack.config_of("worker"), kafka_password="hunter2")
    environment = variables(config) | {"TURNSTILE_REDIS": stack.redis}
    with pytest.raises(SystemExit) as ended:
        turnstile("worker", environment=environment)
    assert ended.value.code == 75


def listening(pid: int) -> set[str]:
    """Return the addresses on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(descriptor.readlink()))
        except OSError:  # closed in the meantime
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(_address(words[1].partition(":")[0]))
    return found


def _address(hexadecimal: str) -> str:
    packed = b"".join(
        struct.pack("=I", int(hexadecimal[at : at + 8], 16)) for at in range(0, len(hexadecimal), 8)
    )
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def test_servers_listen_only_locally_and_no_password_is_an_argument(
    used: SecureStack,
) -> None:
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    pids = [used.broker.pid, used.redis_server.pid, used.workers[0].pid]
    for pid, must_listen in zip(pids, (True, True, False), strict=True):
        assert pid is not None
        addresses = listening(pid)
        assert addresses <= loopback
        assert bool(addresses) is must_listen
        seen = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
        for password in used.secrets.passwords.values():
            assert password not in seen


def test_secrets_are_readable_only_by_their_owner(used: SecureStack) -> None:
    secrets = used.secrets.directory
    assert secrets.stat().st_mode & 0o077 == 0
    assert [path.name for path in secrets.iterdir() if path.stat().st_mode & 0o077] == []
    for password in used.secrets.passwords.values():
        for log in (used.directory / "logs").iterdir():
            assert password not in log.read_text()


# --- commands ---


COMMANDS = [
    ("trimmer", "trim --dry-run", True),
    ("operator", "trim", False),
    ("auditor", "explain --user 3", True),
    ("portal", "explain --user 3", False),
    ("operator", "explain --user 3", False),
    ("auditor", "verify", True),
    ("operator", "verify", False),
    ("portal", "odometer --user 3", True),
    ("portal", "halts", True),
    ("portal", "rejects", False),
    ("trainer", "answers", False),
]


@pytest.mark.parametrize(("role", "words", "is_allowed"), COMMANDS)
def test_a_role_can_run_only_its_commands(
    used: SecureStack, role: str, words: str, is_allowed: bool
) -> None:
    done = turnstile(*words.split(), "--json", "--config", str(used.roles[role]))
    assert bool(done.lines) is is_allowed
    if words == "verify" and is_allowed:
        assert done.code in (0, 1)  # it finds the foreign records of other tests
    else:
        assert done.code == (0 if is_allowed else 69)


def test_operators_can_read_the_status_and_no_password_is_shown(used: SecureStack) -> None:
    for role in ("operator", "dashboard"):
        done = turnstile("status", "--json", "--config", str(used.roles[role]))
        assert (done.code, [line["problem"] for line in done.lines]) == (0, [None] * PARTITIONS)
        examined = turnstile("doctor", "--json", "--config", str(used.roles[role]))
        assert [line for line in examined.lines if line["level"] == "wrong"] == []
        assert {line["area"] for line in examined.lines} >= {"Kafka", "topics", "partitions"}
    # A role that cannot see the answerers' topics gets no finding about them.
    examined = turnstile("doctor", "--config", str(used.roles["portal"]), "--json")
    assert "answerers" not in {line["area"] for line in examined.lines}
    wrong = {"TURNSTILE_REDIS_PASSWORD": "hunter2"}
    refused = turnstile("status", "--config", str(used.roles["operator"]), environment=wrong)
    assert refused.code == 69
    assert "redis_password" in refused.said
    assert "hunter2" not in refused.out + refused.said


def test_an_auditor_reads_the_signed_answers_of_an_answerer(
    used: SecureStack, tmp_path: Path
) -> None:
    with Turnstile(config=used.config_of("trainer")) as client:
        client.create_dataset("asked", measure="zcdp", budget=0.9, user_ids="integer")
    file, events = tmp_path / "queries.toml", tmp_path / "events.csv"
    file.write_text(
        'dataset = "asked"\nrun = "r"\n[input]\nuser = "u"\nusers = "integer"\ntime = "t"\n'
        'start = 2026-01-01\nend = 2026-01-03\nclock = "events"\n'
        '[[query]]\nname = "q"\nkind = "distinct"\nwindow = "1d"\nnoise = 2.0\n'
    )
    events.write_text("u,t\n1,2026-01-01\n2,2026-01-01\n1,2026-01-02\n")
    words = ("answer", str(file), "--input", str(events), "--config")
    assert turnstile(*words, str(used.roles["answerer"])).code == 0
    shown = turnstile("answers", "--json", "--config", str(used.roles["auditor"]))
    assert (shown.code, [line["step"] for line in shown.lines]) == (0, [0, 1])
    another = {"TURNSTILE_ANSWER_KEYS": new_keys()[1]}
    read = turnstile(
        "answers", "--config", str(used.roles["answerer"]), environment=another
    )  # with a trust store without the key
    assert (read.code, read.out) == (0, "")
    workers = {"TURNSTILE_SIGNING_KEY": used.config_of("worker").signing_key}
    refused = turnstile(*words, str(used.roles["answerer"]), environment=workers)
    assert refused.code == 2
    assert "answer_keys" in refused.said


def test_the_admin_grants_rights_to_named_users(used: SecureStack) -> None:
    config = str(used.roles["admin"])
    given = turnstile(
        *("acl", "--apply", "--json", "--config", config),
        *("--principal", "auditor=User:somebody"),
    )
    assert (given.code, given.lines[0]["principals"]) == (0, ["User:somebody"])
    admin = new_admin(used.config_of("admin"))
    try:
        everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        asked = ACLFilter(
            "User:somebody", None, ACLOperation.ANY, ACLPermissionType.ANY, everything
        )
        found, _ = admin.describe_acls(asked)
    finally:
        admin.close()
    shown = turnstile("acl", "--json", "--principal", "auditor=User:somebody").lines
    expected = {(line["name"], operation) for line in shown for operation in line["operations"]}
    assert {
        (acl.resource_pattern.resource_name, _kafka_name(acl.operation.name)) for acl in found
    } == expected
    assert len(found) == given.lines[0]["rights"]


def _kafka_name(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def is_unusable(config: Config) -> bool:
    """Return whether the last snapshot cannot be used if signatures are not verified."""
    try:
        read_snapshot(config, 0, None)
    except UnusableSnapshot:
        return True
    return False


def test_a_snapshot_without_a_worker_signature_is_ignored(used: SecureStack) -> None:
    config = used.config_of("auditor")
    with Topics(config) as topics:
        verifier = verifier_of(config, topics.look().topic)
    assert verifier is not None
    snapshot = eventually(lambda: read_snapshot(config, 0, verifier))
    worker = used.workers[0]
    worker.stop()  # so that no later snapshot replaces the forged one
    try:
        forger = new_producer(replace(used.config_of("worker"), signing_key="", trusted_keys=""))
        forged = forger.send(config.topic("snapshots"), b"forged", MANIFEST, partition=0)
        forged.get(20)
        forger.close()
        # The stopped worker may have left a transaction open, which hides later records.
        eventually(lambda: is_unusable(config))
        assert read_snapshot(config, 0, verifier).manifest.meta.next >= snapshot.manifest.meta.next
    finally:
        worker.start()
