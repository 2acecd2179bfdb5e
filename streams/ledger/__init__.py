"""Apply records to the state of a partition: pure functions, without I/O or a clock.

``ledger`` dispatches each record to the operation that applies it (``datasets``, ``charging``), and
``outputs`` builds what is published for it. ``state`` holds what is stored and restored: entries
(``tracked``) and the numbers of users (``columns``).
"""
