"""Compare individual accounting with the strongest baselines, on a running service.

``entry`` runs the demo. This module imports nothing, so that catching a ``DemoError`` needs
none of the demo's packages.
"""
