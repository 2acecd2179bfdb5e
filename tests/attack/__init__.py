"""Attacks on the guarantees: canaries, and lower bounds on epsilon from what an attacker guesses.

`python -m tests.attack` runs trainings and streams of queries through the service in memory, with
canaries that are in or out by a coin, and lets an attacker guess which are in from the released
outputs. If the attacker does better than the claimed (epsilon, delta) allows, the claim is wrong.
The same attack on broken versions of the software shows what it can find.
"""
