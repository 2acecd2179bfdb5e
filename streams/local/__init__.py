"""A broker, Redis and workers on this machine, without Docker, root or an installed Java.

``turnstile up``, the demo, the tests and the benchmarks use it. Importing it needs only the
standard library; starting servers needs the extra ``local``, or an installed Java 17 and Redis. It
supports Linux and macOS.
"""

from streams.local.broker import KafkaBroker
from streams.local.children import Child
from streams.local.launch_errors import LocalFailure, LocalStackError
from streams.local.redis_server import RedisServer
from streams.local.stack import WORKER_COMMAND, LocalStack
from streams.local.worker_process import Worker

__all__ = [
    "WORKER_COMMAND",
    "Child",
    "KafkaBroker",
    "LocalFailure",
    "LocalStack",
    "LocalStackError",
    "RedisServer",
    "Worker",
]
