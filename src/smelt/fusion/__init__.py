"""Fusion: partition a graph into kernels (graph -> plan), with the reasons."""

from smelt.fusion.compose import plan
from smelt.fusion.library_products import (
    calls_in_chunks,
    choose_products,
    product_classes,
    stay_own,
    use_library,
)
from smelt.fusion.loop_neighbors import fuse_loop_neighbors
from smelt.fusion.plan import Cluster, Plan, Slot
from smelt.fusion.predict import traffic
from smelt.fusion.units import is_contraction, is_library

__all__ = [
    "Cluster",
    "Plan",
    "Slot",
    "calls_in_chunks",
    "choose_products",
    "fuse_loop_neighbors",
    "is_contraction",
    "is_library",
    "plan",
    "product_classes",
    "stay_own",
    "traffic",
    "use_library",
]
