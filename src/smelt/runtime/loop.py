"""Run the plan of a loop's step again and again on the values it carries.

    h, x[0] -> step -> h', y[0]
    h', x[1] -> step -> h, y[1]
    ...

To the surrounding executable this is a single call. A carry has two buffers, which steps read and
write in turn; slices of sequences and of stacked results are passed by address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count as count_up
from typing import Any, NamedTuple

import numpy as np

from smelt.runtime.executable import Executable, run_kernels
from smelt.runtime.memory import allocate
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape

__all__ = ["LoopCall", "LoopShape"]

Array = np.ndarray[Any, Any]


class LoopShape(NamedTuple):
    """What a loop carries and how often it runs; fields as in `smelt.graph.loop.Loop`."""

    carries: int
    slices: int
    length: Shape
    reverse: bool
    results: int
    """Results of a step, without those that are carries before it."""
    names: tuple[str, ...]
    sizes: tuple[Index, ...]


class LoopCall:
    """Repeated execution of a step, as the function of a call step."""

    def __init__(self, shape: LoopShape, wanted: tuple[int, ...], step: Executable) -> None:
        self.shape, self.wanted, self.step = shape, wanted, step
        step.nested = True
        self.stacked = sorted({k for k in wanted if shape.carries <= k < shape.results})

    def __call__(self, sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        """Run all steps, writing into `outputs`."""
        s, count = self.shape, self.shape.carries
        operands = [np.require(x, requirements="C") for x in inputs]
        carry, sequences = operands[:count], operands[count : count + s.slices]
        constants = operands[count + s.slices :]
        targets = dict(zip(self.wanted, outputs, strict=True))
        stacked = [targets[k] for k in self.stacked]
        saved = [(k, targets[s.results + k]) for k in range(count) if s.results + k in targets]
        buffers = [[np.empty_like(x) for x in carry] for _ in range(2)]
        run = self._runner(self._sizes(sizes))
        for number, t in enumerate(self._moments(sizes)):
            if not s.length and not carry[0]:
                break
            for k, history in saved:
                history[t] = carry[k]
            after = buffers[number & 1]
            run(
                [*carry, *(_slice(x, t) for x in sequences), *constants],
                [*after, *(_slice(y, t) for y in stacked)],
            )
            carry = after
        for k in range(count):
            if k in targets:
                targets[k][...] = carry[k]

    def _moments(self, sizes: Mapping[str, int]) -> Iterable[int]:
        """Return the numbers of the steps, in the order in which they run."""
        if not self.shape.length:
            return count_up()
        length = int(evaluate(self.shape.length[0], sizes))
        return range(length - 1, -1, -1) if self.shape.reverse else range(length)

    def _runner(self, sizes: tuple[int, ...]) -> Callable[[list[Array], list[Array]], None]:
        """Return a function that runs the step on operands and writes its results.

        A step of kernels alone is one native call on a table of addresses.
        """
        step = self.step
        p = step.prepared(sizes)
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        in_order = [v for v, *_, over in p.results if over < 0] == [*step.outputs]
        if step.prelude is None and in_order and all(s.call is None for s in p.segments):
            return partial(run_kernels, p, block)

        def run(operands: list[Array], results: list[Array]) -> None:
            step.run(operands, sizes, results, None, block)

        return run

    def prepare(self, sizes: Mapping[str, int]) -> int:
        """Prepare a step at these sizes; return the bytes that the loop needs besides results."""
        p = self.step.prepared(self._sizes(sizes))
        return p.arena_bytes + 2 * sum(nbytes for *_, nbytes, _ in p.results)

    def _sizes(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the step's sizes."""
        pairs = zip(self.shape.names, self.shape.sizes, strict=True)
        named = {n: int(evaluate(e, sizes)) for n, e in pairs}
        return tuple(named[n] for n in self.step.size_names)


def _slice(x: Array, t: int) -> Array:
    """Return one slice of a sequence, as a view also where it is a number."""
    return x[t] if x.ndim > 1 else x[t : t + 1].reshape(())
