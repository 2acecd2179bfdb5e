"""What is read of a service from outside: proof of what was spent, and what each user lost.

Nothing here writes to Kafka or Redis, and no worker is needed. The log is applied once more, in
this process, by the ledger itself (``fold``); what comes of it is compared with what was kept and
published (``verification``), told to one user (``explanation``), or reported of all
(``histories``).
"""
