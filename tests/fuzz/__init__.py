"""Fuzzing of the edge: whatever the bytes of a record are, the ledger applies or rejects it.

    make fuzz ARGS=1000000

Records are made for logs whose state is known, so that some get through; others are cut, spliced,
overwritten, of random bytes or of random structure, and some are built to take much memory or time
(``hostile``; at the end each of these in the largest size). Every record goes to a ledger and,
where that can judge, to the auditor, which must say the same of it. A run says how many were
refused and why, and the most time and memory that one took. It ends at the first record that raises
anything but a rejection, or takes too much, and prints the seed by which it comes again.
"""
