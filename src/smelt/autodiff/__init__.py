"""Reverse-mode differentiation of graphs: `reverse` emits the operators of a gradient."""

from smelt.autodiff.builder import Builder
from smelt.autodiff.reverse import gradient, reverse
from smelt.autodiff.tape import Step, tape

__all__ = ["Builder", "Step", "gradient", "reverse", "tape"]
