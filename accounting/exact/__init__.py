"""Exact arithmetic: units, directed rounding, and the checks that bring arguments into one form."""
