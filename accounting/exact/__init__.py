"""Exact arithmetic: units, directed rounding, and the validation of arguments."""
