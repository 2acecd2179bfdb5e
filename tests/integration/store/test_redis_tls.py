"""Connections to Redis, Cluster and Sentinel are encrypted and verified, or rejected."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import pytest

from streams.config import Config
from streams.local import RedisServer
from streams.local.secure import Authority
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreFailure, StoreUnavailable
from tests.conformance.store.bench import Owner, commit
from tests.integration.tls import Encrypting
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_failover import SERVICE, Sentinel

PARTITIONS = range(6)
ELSEWHERE = "127.0.0.2"  # a name that no certificate has


class Certificates:
    """An authority, its certificates, and a client that trusts it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority, self._server = Authority(directory), directory / "server.pem"
        self.client, self.ca = directory / "client.pem", self._authority.certificate
        self._authority.issue("redis", self._server)
        self._authority.issue("client", self.client)

    def server(self, wants: Path | None = None) -> ssl.SSLContext:
        """Return a server's TLS context, which requires a client certificate if an authority is
        given.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=wants)
        context.load_cert_chain(self._server)
        if wants is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "others")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running
        running.kill()


def use(url: str, ca: Path | str, certificate: Path | str = "") -> None:
    """Find the nodes of the partitions, acquire them, and write to each."""
    config = Config(
        redis=url,
        prefix=f"{token_hex(4)}.",
        redis_ca=str(ca or ""),
        redis_certificate=str(certificate or ""),
    )

    async def scenario() -> None:
        async with RedisStore.of(config) as store:
            await store.connect()
            assert await store.check() is None
            for partition in PARTITIONS:
                owner = Owner(store, "a", partition)
                await commit(await owner.acquire(), 0, 1)
                assert (await owner.load()).next == 1

    asyncio.run(scenario())


def why_not(url: str, ca: Path | str, certificate: Path | str = "") -> StoreFailure:
    """Return the reason for which Redis cannot be used."""
    with pytest.raises(StoreUnavailable) as caught:
        use(url, ca, certificate)
    return caught.value.reason


def test_redis_is_reached_encrypted_or_not_at_all(
    server: RedisServer, ours: Certificates, others: Certificates
) -> None:
    context = ours.server(wants=ours.ca)
    with (
        Encrypting(context, server.port) as front,
        Encrypting(context, server.port, host=ELSEWHERE) as elsewhere,
    ):
        url = f"rediss://127.0.0.1:{front.port}/0"
        use(url, ours.ca, ours.client)
        for other, ca, certificate, reason in (
            (url, others.ca, ours.client, StoreFailure.CERTIFICATE),
            (url, "", ours.client, StoreFailure.CERTIFICATE),
            (url, ours.ca, "", StoreFailure.NO_ANSWER),
            (url, ours.ca, others.client, StoreFailure.NO_ANSWER),
            (
                f"rediss://{ELSEWHERE}:{elsewhere.port}/0",
                ours.ca,
                ours.client,
                StoreFailure.CERTIFICATE,
            ),
        ):
            assert why_not(other, ca, certificate) is reason


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, ours: Certificates
) -> Iterator[tuple[RedisCluster, list[Encrypting]]]:
    """Start three nodes, each of which announces its proxy's port to clients."""
    with ExitStack() as running:
        context = ours.server(wants=ours.ca)
        fronts = [running.enter_context(Encrypting(context)) for _ in range(3)]
        directory = tmp_path_factory.mktemp("cluster")
        nodes = RedisCluster(directory, 3, announced=[front.port for front in fronts])
        nodes.start()
        running.callback(nodes.kill)
        for front, node in zip(fronts, nodes.nodes, strict=True):
            front.target = node.port
        yield nodes, fronts


def test_all_cluster_nodes_are_reached_encrypted_or_nothing_is_written(
    cluster: tuple[RedisCluster, list[Encrypting]], ours: Certificates, others: Certificates
) -> None:
    nodes, (first, second, _) = cluster
    url = f"rediss+cluster://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    use(url, ours.ca, ours.client)
    with Encrypting(ours.server(), nodes.nodes[0].port, host=ELSEWHERE) as elsewhere:
        for other, ca, certificate, reason in (
            (url, others.ca, ours.client, StoreFailure.CERTIFICATE),
            (url, ours.ca, others.client, StoreFailure.NO_ANSWER),
            (
                f"rediss+cluster://{ELSEWHERE}:{elsewhere.port}",
                ours.ca,
                "",
                StoreFailure.CERTIFICATE,
            ),
        ):
            assert why_not(other, ca, certificate) is reason


def test_sentinel_and_master_are_each_reached_encrypted_or_not_at_all(
    tmp_path: Path, server: RedisServer, ours: Certificates, others: Certificates
) -> None:
    """A Sentinel without TLS must reach the master at the same port as its clients."""
    for vouched, is_reached in ((ours, True), (others, False)):
        with (
            Encrypting(vouched.server(), server.port, plain_too=True) as front,
            Sentinel(tmp_path / str(front.port), front.port) as sentinel,
            Encrypting(ours.server(wants=ours.ca), sentinel.port) as mine,
            Encrypting(others.server(), sentinel.port) as theirs,
            Encrypting(ours.server(), sentinel.port, host=ELSEWHERE) as elsewhere,
        ):
            url = f"rediss+sentinel://127.0.0.1:{mine.port}/{SERVICE}"
            if not is_reached:
                assert why_not(url, ours.ca, ours.client) is StoreFailure.CERTIFICATE
                return
            use(url, ours.ca, ours.client)
            of_elsewhere = f"rediss+sentinel://{ELSEWHERE}:{elsewhere.port}/{SERVICE}"
            use(f"{of_elsewhere}?ssl_check_hostname=false", ours.ca)
            for refused in (
                f"rediss+sentinel://127.0.0.1:{theirs.port}/{SERVICE}",
                of_elsewhere,
            ):
                assert why_not(refused, ours.ca) is StoreFailure.CERTIFICATE
