"""Draw well-typed random graphs with arrays, biased towards what fuses.

    @given(graphs(max_nodes=12))
    def test(program):
        graph, arrays = program
        ...

Programs are grown one step at a time from recent values, so that they form chains, cascades and
several outputs.  While it grows, a program is run; values that explode are clamped, so that NaN and
infinity do not hide everything (unless the data is `special`).  Everything that is drawn is small
and ordered from simple to complicated; shrinking drops steps, sizes and data.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from tests.strategies.builder import LARGEST, Builder, Draw, Program
from tests.strategies.data import FLAVOURS
from tests.strategies.steps import STEPS

from smelt.types.dtype import COMPUTABLE, DType, bf16, bool_, f16, f32, f64, i32, i64
from smelt.types.tensor import Shape

__all__ = ["COMMON", "FLAVOURS", "STEPS", "Program", "graphs"]

COMMON = (f32, f32, f64, i32, i64, f16, bf16, bool_)
"""Element types in the proportion in which inputs get them."""


@st.composite
def graphs(
    draw: Draw,
    max_nodes: int = 12,
    dtypes: Sequence[DType] = COMMON,
    *,
    symbolic: bool = True,
    steps: Sequence[str] | None = None,
    flavours: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
) -> Program:
    """Programs of up to about `max_nodes` operators over inputs of `dtypes`.

    `symbolic` allows size symbols beside numbers; `steps` limits the kinds of steps to some of
    `STEPS`; `flavours` limits the data to some of
    `FLAVOURS`; scalar operators in `excluded` do not occur.
    """
    allowed = [d for d in dtypes if d in COMPUTABLE]
    b = Builder(draw, allowed, symbolic)
    b.excluded = frozenset(excluded)
    if flavours is not None:
        b.flavour = str(b.choose(flavours))
    for _ in range(b.number(1, 3)):
        rank = b.choose((2, 1, 3, 0))
        assert isinstance(rank, int)
        shape: Shape = tuple(b.dim() for _ in range(rank))
        while b.count(shape) > LARGEST:
            shape = shape[1:]
        dtype = b.choose(allowed)
        assert isinstance(dtype, DType)
        b.input(dtype, shape)
    names = [name for name in STEPS if steps is None or name in steps]
    weighted = [name for name in names for _ in range(STEPS[name].weight)]
    for _ in range(b.number(1, max_nodes)):
        STEPS[str(b.choose(weighted))].grow(b)
        if sum(1 for v in b.results) > max_nodes * 3:
            break
    return b.finish()
