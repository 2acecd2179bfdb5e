"""Saddle points: (epsilon, delta) of compositions from cumulants, whatever their length."""
