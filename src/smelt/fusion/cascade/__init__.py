"""Cascades: folds over one axis that read one another, made to run in as few sweeps as possible.

from smelt.fusion.cascade.analyse import analyse
"""
