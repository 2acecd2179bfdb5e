"""Loss distributions: (epsilon, delta) of compositions from transforms of discretised losses."""
