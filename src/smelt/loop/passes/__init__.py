"""Passes over loops: each returns another function that computes the same."""
