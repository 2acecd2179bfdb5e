"""Compare individual accounting with the strongest baselines, on a running service."""
