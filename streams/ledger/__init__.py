"""What a record does to a partition. Pure: no I/O, no clock.

``ledger`` gives each record to what it concerns (``runs``, ``policies``, ``accounts``), and
``outputs`` says what is published for it. ``state`` holds what is written and put back: entries
that are ``tracked``, and ``columns`` of numbers of users.
"""
