"""A broker, Redis and workers on this machine, without Docker, Java or root.

The imperative part behind ``turnstile up``, the demo, the tests and the benchmarks. Importing it
needs nothing but the standard library; starting something needs the extra ``local`` or a Java
17, Redis and a network of one's own. Linux and macOS.
"""

from streams.local.broker import KafkaBroker
from streams.local.children import Child
from streams.local.errors import LocalStackError
from streams.local.redis_cluster import RedisCluster
from streams.local.redis_server import RedisServer
from streams.local.stack import WORKER_COMMAND, LocalStack
from streams.local.workers import Worker

__all__ = [
    "WORKER_COMMAND",
    "Child",
    "KafkaBroker",
    "LocalStack",
    "LocalStackError",
    "RedisCluster",
    "RedisServer",
    "Worker",
]
