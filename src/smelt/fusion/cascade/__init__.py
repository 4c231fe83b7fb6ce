"""Cascades: dependent reductions over one axis, computed in as few passes as possible.

The entry point is `smelt.fusion.cascade.analyse.analyse`.
"""
