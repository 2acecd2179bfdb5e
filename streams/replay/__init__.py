"""Replays the log: what was spent is verified, explained and reported.

The log is applied again in this process by the workers' ledger (``log_replay``); no worker is
needed. The result is compared with what was stored and published (``verify``), explained to one
user (``explain``), or reported for all users (``report``). Only ``move`` writes: it makes the log
of a budget file the log of a service.
"""
