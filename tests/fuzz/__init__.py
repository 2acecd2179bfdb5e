"""Fuzzing: the ledger applies or rejects every record, whatever its bytes are.

    make fuzz ARGS=1000000

Records are made for logs whose state is known, so that some are applied. Others are cut, spliced,
overwritten, random bytes or random structures, and some are built to take much memory or time
(``hostile``; at the end each of them in the largest size). Every record goes to a ledger and, where
the auditor can judge, to the auditor, which must agree. The report counts the rejections by reason,
with the maximum time and memory of a record. A run ends at the first record that raises anything
but a rejection, or takes too much, and prints the seed that reproduces it.
"""
