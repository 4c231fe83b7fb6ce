"""Decisions before code: tasks, nests, the form of each product, windows, the price."""
