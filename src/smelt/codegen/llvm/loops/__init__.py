"""Decisions about the loops of a nest: cuts, stages, vectors together, polls."""
