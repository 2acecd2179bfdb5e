"""Replays the log: what was spent is verified, explained, reported and repartitioned.

The log is applied again in this process by the workers' ledger (``log_replay``); no worker is
needed. The result is compared with what was stored and published (``verify``), explained to one
user (``explain``), reported for all users (``report``), or continued in a log with another number
of partitions (``repartition``). Only the last one writes to Kafka.
"""
