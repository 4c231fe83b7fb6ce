"""Run the plan of a loop's step again and again on the values it carries.

    h, x[0] -> step -> h', y[0]
    h', x[1] -> step -> h, y[1]
    ...

To the surrounding executable this is a single call. A carry has two buffers, which steps read and
write in turn; slices of sequences and of stacked results are passed by address.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as count_up
from typing import Any, NamedTuple

import numpy as np

from smelt.runtime.executable import MIN_TABLED_STEPS, Executable, RepeatedKernels
from smelt.runtime.launch_table import Prepared
from smelt.runtime.memory import Block, allocate
from smelt.runtime.steps import Sizes
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape

Array = np.ndarray[Any, Any]
RunStep = Callable[[int, int], None]


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
    runs_once: bool = False
    """Whether a condition is false after a step."""

    def moments(self, sizes: Sizes) -> range | None:
        """Return the numbers of the steps, in the order in which they run; None: a condition."""
        if not self.length:
            return None
        steps = range(int(evaluate(self.length[0], sizes)))
        return steps[::-1] if self.reverse else steps

    def step_sizes(self, sizes: Sizes, order: tuple[str, ...]) -> tuple[int, ...]:
        """Return the step's sizes in the order of their names."""
        named = {n: int(evaluate(e, sizes)) for n, e in zip(self.names, self.sizes, strict=True)}
        return tuple(named[n] for n in order)


class LoopCall:
    """Repeated execution of a step, as the function of a call step."""

    def __init__(self, shape: LoopShape, wanted: tuple[int, ...], step: Executable) -> None:
        self.shape, self.wanted, self.step = shape, wanted, step
        step.nested = True
        self.stacked = sorted({k for k in wanted if shape.carries <= k < shape.results})

    def __call__(self, sizes: Sizes, inputs: list[Array], outputs: list[Array]) -> None:
        """Run all steps, writing into `outputs`."""
        s, count = self.shape, self.shape.carries
        operands = [np.require(x, requirements="C") for x in inputs]
        targets = dict(zip(self.wanted, outputs, strict=True))
        carry = [x.copy() for x in operands[:count]]
        buffers = carry, [np.empty_like(x) for x in carry]
        run = self._runner(
            s.step_sizes(sizes, self.step.size_names),
            buffers,
            operands[count : count + s.slices],
            operands[count + s.slices :],
            [targets[k] for k in self.stacked],
        )
        saved = [(k, targets[s.results + k]) for k in range(count) if s.results + k in targets]
        side = 0
        moments = s.moments(sizes)
        if isinstance(run, _NativeSteps) and moments is not None and not saved:
            moments, side = run.run_all(moments)
        for t in count_up() if moments is None else moments:
            if not s.length and not buffers[side][0]:
                break
            for k, history in saved:
                history[t] = buffers[side][k]
            run(t, side)
            side = 1 - side
        for k in range(count):
            if k in targets:
                targets[k][...] = buffers[side][k]
        for k, target in zip(self.wanted, outputs, strict=True):
            if target is not targets[k]:  # a result that is wanted twice
                target[...] = targets[k]

    def _runner(
        self,
        sizes: tuple[int, ...],
        buffers: tuple[list[Array], list[Array]],
        sequences: list[Array],
        constants: list[Array],
        stacked: list[Array],
    ) -> RunStep:
        """Return a function that runs step t from the carries of one side.

        A step of kernels alone is one native call on a table of addresses.
        """
        step = self.step
        p = step.prepared(sizes)
        block = allocate(p.arena_bytes) if p.arena_bytes else None
        if step.prelude is None and all(s.call is None for s in p.segments):
            inputs = [[*buffers[side], *sequences, *constants] for side in (0, 1)]
            targets = [[*buffers[1 - side], *stacked] for side in (0, 1)]
            return _NativeSteps(self.shape, step, p, block, inputs, targets)

        def run(t: int, side: int) -> None:
            operands = [*buffers[side], *(_slice(x, t) for x in sequences), *constants]
            results = [*buffers[1 - side], *(_slice(y, t) for y in stacked)]
            step.run(operands, sizes, results, None, block)

        return run

    def prepare(self, sizes: Sizes) -> int:
        """Prepare a step at these sizes; return the bytes that the loop needs besides results."""
        p = self.step.prepared(self.shape.step_sizes(sizes, self.step.size_names))
        return p.arena_bytes + 2 * sum(nbytes for *_, nbytes, _ in p.results)


class _NativeSteps:
    """Steps of kernels alone: native calls on tables of addresses.

    A result that is an operand of the step, or another result again, is copied.
    """

    def __init__(
        self,
        shape: LoopShape,
        step: Executable,
        p: Prepared,
        block: Block | None,
        inputs: list[list[Array]],
        targets: list[list[Array]],
    ) -> None:
        """Prepare steps that read the inputs and write the targets of either side."""
        self.shape, self.inputs, self.targets = shape, inputs, targets
        count, slices, values = shape.carries, shape.slices, step.outputs
        self.computed = [values.index(v) for v, *_ in p.results]
        first = len(inputs[0])
        arrays = [[*inputs[side], *(targets[side][k] for k in self.computed)] for side in (0, 1)]
        moving = [*range(count, count + slices)]
        moving += [first + n for n, k in enumerate(self.computed) if k >= count]
        self.kernels = RepeatedKernels(p, block, arrays, moving)
        self.copied: list[tuple[int, bool, int]] = []
        """Targets, and where their values are: in the inputs or in the targets."""
        for k, v in enumerate(values):
            value = step.values[v]
            if value.place == "input":
                self.copied.append((k, True, value.number))
            elif values.index(v) != k:
                self.copied.append((k, False, values.index(v)))

    def __call__(self, t: int, side: int) -> None:
        """Run step t from the carries of one side."""
        count, slices = self.shape.carries, self.shape.slices
        self.kernels.run(t, side)
        for k, from_input, n in self.copied:
            if from_input:
                source = self.inputs[side][n]
                source = _slice(source, t) if count <= n < count + slices else source
            else:
                source = self.targets[side][n]
                source = _slice(source, t) if n >= count else source
            target = self.targets[side][k]
            (_slice(target, t) if k >= count else target)[...] = source

    def run_all(self, steps: range) -> tuple[range, int]:
        """Run many steps a native call; return what is left, and the side then.

        A carry that is also a stacked result is read where the step before stacked it.
        """
        count, first = self.shape.carries, len(self.inputs[0])
        stacked = {n: k for k, from_input, n in self.copied if not from_input and n < count <= k}
        if len(steps) < MIN_TABLED_STEPS or len(stacked) < len(self.copied):
            return steps, 0
        arrays = {n: self.targets[0][k] for n, k in stacked.items()}
        results = {n: (first + self.computed.index(n), a) for n, a in arrays.items()}
        self.kernels.run_steps(steps, results)
        side = len(steps) % 2
        for n, array in arrays.items():
            self.targets[1 - side][n][...] = _slice(array, steps[-1])
        return range(0), side


def _slice(x: Array, t: int) -> Array:
    """Return one slice of a sequence, as a view also where it is a number."""
    return x[t] if x.ndim > 1 else x[t : t + 1].reshape(())
