"""Convert Rényi DP, zCDP and Gaussian DP to (epsilon, delta), and (epsilon, delta) to budgets.

All conversions hold for neighbours in either direction. Epsilon and divergences are in nats;
epsilon is never negative. Results are upper bounds, and budgets lower bounds: every formula holds
at *any* order, so an inexact minimiser costs tightness and never validity, and the rounding errors
of the evaluation are added on the safe side. Arguments that float64 cannot hold are rounded too:
divergences, rho and mu up, epsilon and delta down; such orders are rejected.

Verified with 40 to 80 digits, for delta down to 1e-300, mu from 1e-6 to 1e3 and rho from 1e-12 to
1e4: delta exceeds the exact formula by at most a relative 2e-12 for GDP and 2e-11 for zCDP, and an
epsilon is the least one for a delta smaller by as much. Results are monotone in every argument,
between arguments that are 1e-9 apart, and to within 1e-13 between any.
"""
