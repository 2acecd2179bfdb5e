"""What a worker answers over HTTP, and what its metrics say: never anything about people."""

from dataclasses import replace

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streams.ledger.ledger import Channel, Output
from streams.local.server_process import free_ports
from streams.records import Reason, Rejected, encode
from streams.store.misfit import Problem
from streams.store.store_port import SuspensionReason
from streams.worker.health import STALLED_AFTER, HealthServer, problem_of
from streams.worker.metrics import Metrics, PartitionsCollector
from streams.worker.ownership import PartitionView
from tests.unit.worker.processors import Record
from tests.unit.worker.test_ownership import PARTITIONS, Cluster, Worker

RUNNING = PartitionView(0, "running", next=7, end=9, waiting=0.0)
LOG = "t.norms@0123456789ab"
ENDS_EARLY = Problem(SuspensionReason.LOG_ENDS_EARLY, "the log ends early", "restore it")


class Served:
    """A worker in memory, and what it answers."""

    def __init__(self, cluster):
        self.worker = Worker(cluster, "me")
        self.metrics = Metrics(LOG)
        owned = self.worker.partitions
        self.metrics.register(PartitionsCollector("t.norms", "t.worker", owned))
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._server = HealthServer(self.address, self.metrics.exposition, owned)

    async def __aenter__(self):
        await self._server.start()
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_):
        await self._session.close()
        await self._server.stop()
        await self.worker.leave()

    async def get(self, path, **headers):
        url = f"http://{self.address}{path}"
        async with self._session.get(url, headers=headers) as answer:
            return answer.status, await answer.read()

    async def health(self):
        status, body = await self.get("/healthz")
        return status, msgspec.json.decode(body)

    async def samples(self):
        return read((await self.get("/metrics"))[1])


def read(exposition):
    """What Prometheus reads: (name, labels but that of the log) -> value."""
    samples = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            assert sample.labels.pop("log") == LOG
            samples[sample.name, *sorted(sample.labels.items())] = sample.value
    return samples


async def test_worker_is_ready_when_it_has_its_partitions():
    async with Served(Cluster()) as served:
        assert [(await served.get(p))[0] for p in ("/livez", "/readyz")] == [200, 503]
        await served.worker.acquire()
        assert [(await served.get(p))[0] for p in ("/livez", "/readyz")] == [200, 200]
        assert await served.health() == (
            200,
            {"healthy": True, "partitions": [0, 1], "problems": []},
        )


async def test_partition_that_was_not_acquired_is_unhealthy():
    cluster = Cluster()
    first = Worker(cluster, "first")
    await first.acquire()
    await first.decide()
    await first.leave()
    cluster.broker.norms(1).records[3] = None, b"another record"
    async with Served(cluster) as served:
        assert set(await served.worker.acquire()) == {0}
        status, said = await served.health()
        assert (status, said["healthy"]) == (503, False)
        (found,) = said["problems"]
        assert (found["partition"], found["reason"]) == (1, SuspensionReason.LOG_REWRITTEN)
        samples = await served.samples()
        state = ("partition", "1"), ("state", "suspended")
        assert samples["turnstile_partition_state", *state] == 1.0
        await served.worker.leave()
        assert (await served.health())[0] == 200  # it owns none, but another worker must own it


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (RUNNING, None),
        (replace(RUNNING, waiting=STALLED_AFTER), None),
        (replace(RUNNING, waiting=STALLED_AFTER + 1), "stalled"),
        (PartitionView(0, "suspended", ENDS_EARLY), SuspensionReason.LOG_ENDS_EARLY),
        (replace(RUNNING, state="paused"), None),
    ],
)
def test_suspended_or_lagging_partition_has_a_problem(view, reason):
    found = problem_of(view)
    assert (None if found is None else found.reason) == reason


def test_lag_has_the_usual_name_and_labels():
    class Owned:
        count = 2

        def views(self):
            return [RUNNING, PartitionView(1, "suspended", ENDS_EARLY)]

    metrics = Metrics(LOG)
    metrics.register(PartitionsCollector("t.norms", "t.worker", Owned()))
    samples = read(metrics.exposition())
    place = ("consumergroup", "t.worker"), ("partition", "0"), ("topic", "t.norms")
    lags = {name: value for name, value in samples.items() if "lag" in name[0]}
    assert lags == {("kafka_consumergroup_lag", *place): 2.0}
    assert samples["turnstile_next_offset", ("partition", "0")] == 7.0
    assert samples["turnstile_partitions",] == 2.0


def test_rejected_records_are_counted_by_reason():
    rejected = Rejected(partition=3, offset=1, reason=Reason.MALFORMED, detail="no", record=b"")
    outputs = [
        Output(Channel.HALTS, None, b"a decision"),
        Output(Channel.REJECTS, None, encode(rejected)),
        Output(Channel.REJECTS, None, b"not of this release"),
    ]
    metrics = Metrics(LOG)
    metrics.committed(3, [], outputs, 0.0)
    samples = read(metrics.exposition())
    assert samples["turnstile_rejects_total", ("reason", Reason.MALFORMED.value)] == 1.0
    assert samples["turnstile_rejects_total", ("reason", "unknown")] == 1.0


@pytest.mark.parametrize("timestamp", [3600_000, -1])
def test_a_record_from_the_future_or_without_a_time_is_counted(timestamp):
    metrics = Metrics(LOG, lambda: 0.0)
    metrics.committed(0, [Record(0, timestamp=timestamp)], [], 0.0)
    samples = read(metrics.exposition())
    assert samples["turnstile_records_total", ("partition", "0")] == 1.0
    assert samples["turnstile_decision_seconds_count",] == 1.0


async def test_no_label_names_a_user_a_dataset_or_a_run():
    cluster = Cluster()
    async with Served(cluster) as served:
        await served.worker.acquire()
        await served.worker.decide()
        labels = {label for name in await served.samples() for label, _ in name[1:]}
        assert labels <= {
            *("partition", "state", "topic", "reason", "consumergroup", "le", "version"),
        }
        assert len(served.worker.partitions.views()) == PARTITIONS


FOREIGN = ("evil.example", "127.0.0.1.evil.example", "", "worker", "10.0.0.7:9464")


async def test_page_of_another_site_cannot_read_the_health():
    async with Served(Cluster()) as served:
        for path in ("/livez", "/readyz", "/healthz", "/metrics"):
            for host in FOREIGN:
                status, body = await served.get(path, Host=host)
                assert (status, b"turnstile_" in body) == (403, False)
            for host in ("localhost:9464", "127.0.0.1", "[::1]:9464"):
                assert (await served.get(path, Host=host))[0] != 403
