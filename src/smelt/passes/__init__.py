"""Graph -> Graph: each pass a pure function, listed once in `PASSES`; `run` is the stage."""

from smelt.passes.pipeline import PASSES as PASSES
from smelt.passes.pipeline import Pass as Pass
from smelt.passes.pipeline import Rounding as Rounding
from smelt.passes.pipeline import run as run
from smelt.passes.pipeline import run_named as run_named
