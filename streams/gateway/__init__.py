"""An HTTP API for callers without a Kafka client: open runs, charge steps, read HALTs.

The gateway holds no state of a run. The number and the token of an attempt are in its path, and
the partitions know which step they have decided. So any gateway answers any request, and a request
that is repeated, at the same gateway or at another one, is charged once.
"""
