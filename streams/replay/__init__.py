"""Commands that replay the log: what was spent is proven, explained, reported and repartitioned.

The log is applied again in this process, by the ledger itself (``fold``), and no worker is needed.
The result is compared with what was stored and published (``verification``), explained to one user
(``explanation``), reported for all users (``histories``), or continued in a log with another number
of partitions (``repartition``). Only the last one writes to Kafka.
"""
