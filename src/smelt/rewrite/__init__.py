"""Algebraic simplification of scalar operators by checked rewrite rules."""
