"""Saddle points: (epsilon, delta) of compositions from cumulants, for any length."""
