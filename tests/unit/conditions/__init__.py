"""The conditions of the individual filter (docs/guarantees.md), each with its counterexample.

Every test computes two worlds, with one user's data and without them, exactly: what the released
outputs differ by, and what that user was charged. A condition is broken where the first exceeds the
second.
"""
