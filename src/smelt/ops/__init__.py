"""Operators as rows: scalar ones, tensor ones, monoids; each defined in exactly one place."""
