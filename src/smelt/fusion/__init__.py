"""Fusion: partition a graph into kernels (graph -> plan), with the reasons."""

from smelt.fusion.compose import plan
from smelt.fusion.plan import Cluster, Plan, Slot
from smelt.fusion.traffic import traffic
from smelt.fusion.units import is_contraction, is_library

__all__ = ["Cluster", "Plan", "Slot", "is_contraction", "is_library", "plan", "traffic"]
