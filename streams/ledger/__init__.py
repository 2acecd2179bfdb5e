"""What a record does to a partition. Pure: no I/O, no clock.

``ledger`` gives each record to what it concerns: ``runs``, ``policies`` or ``accounts``.
"""
