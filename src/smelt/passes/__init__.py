"""Rewrite graphs: each pass is a pure Graph -> Graph function listed in `PASSES`; `run` applies
them."""

from smelt.passes.pipeline import PASSES as PASSES
from smelt.passes.pipeline import Pass as Pass
from smelt.passes.pipeline import Rounding as Rounding
from smelt.passes.pipeline import run as run
from smelt.passes.pipeline import run_named as run_named
