"""Emit instructions on lanes: scalar operators, index expressions, reductions, dot products."""
