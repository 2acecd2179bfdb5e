"""Results of the papers, computed again with this library: `python -m bench.papers`."""
