"""Demos on real data against a running service: private trainings, private daily queries.

``entry`` is where they begin. Nothing is imported here: who catches a ``DemoError`` runs no demo.
"""
