"""What a compiled plan does ahead of its calls: the parts of its prelude, and operands packed.

ahead = Ahead(graph, split(graph))
plan = fusion.plan(ahead.rest, ..)             # reads held values as further inputs
kernel = ahead.packed(cluster, kernel, target) # reads constant operands in panels
ahead.held(cluster.name, param, node)          # the value behind a parameter of a kernel
ahead.parts                                    # what computes all that was asked for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from smelt import knobs
from smelt.codegen.build import panels
from smelt.errors import VerifyError
from smelt.fusion.plan import Cluster
from smelt.graph.ir import Graph, Node
from smelt.kernel.ir import Kernel
from smelt.kernel.panels import Panel, panelled_shape, read_panels
from smelt.ops.create import Input
from smelt.passes.prelude import Split, panelled
from smelt.runtime.executable import Value
from smelt.runtime.prelude import Part, Step
from smelt.target import Target
from smelt.types.expr import Index
from smelt.types.tensor import shape_text


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A value to hold: an input of the rest, as it is or in panels."""

    node: Node
    panel: Panel | None = None


class Ahead:
    """The prelude of one plan in the making."""

    def __init__(self, graph: Graph, found: Split) -> None:
        self.rest = found.graph
        """The graph to plan."""
        self.given = graph.inputs
        """Its inputs that the caller passes."""
        self._places = {x: k for k, x in enumerate(graph.inputs)}
        self._room = knobs.CONSTANTS.get()
        added = self.rest.inputs[len(graph.inputs) :]
        self._computed = dict(zip(added, found.parts, strict=True))
        self._packed: dict[tuple[str, str], _Wanted] = {}
        """What a kernel reads in place of a parameter."""
        self._numbers: dict[_Wanted, int] = {}
        self.parts: list[Part] = []
        """What is computed once: the parts of all values that were asked for."""

    def packed(self, cluster: Cluster, kernel: Kernel | None, target: Target) -> Kernel | None:
        """The kernel on packed operands, for those that are constant."""
        if kernel is None:
            return None
        nodes = {p.name: n for p, n in zip(kernel.inputs, cluster.inputs, strict=True)}
        constant = {p for p, n in nodes.items() if isinstance(n.op, Input) and n.op.constant}
        for panel in panels(kernel, target, frozenset(constant)):
            wanted = _Wanted(nodes[panel.param], replace(panel, param=""))
            nbytes = prod(_shape(wanted)) * wanted.node.type.dtype.itemsize
            if wanted not in self._packed.values():
                if nbytes > self._room:
                    continue
                self._room -= nbytes
            self._packed[cluster.name, panel.param] = wanted
            kernel = read_panels(kernel, panel)
        return kernel

    def held(self, cluster: str, param: str, node: Node) -> Value | None:
        """The value that a kernel reads for a parameter, where the prelude makes it."""
        wanted = self._packed.get((cluster, param))
        if wanted is None:
            if node not in self._computed:
                return None
            wanted = _Wanted(node)
        if wanted not in self._numbers:
            self._numbers[wanted] = len(self.parts)
            self.parts.append(self._part(wanted))
        return Value(node.type.dtype, _shape(wanted), "held", self._numbers[wanted])

    def _part(self, wanted: _Wanted) -> Part:
        node, panel = wanted.node, wanted.panel
        assert isinstance(node.op, Input)
        computed = self._computed.get(node)
        steps = [] if computed is None else [Step(computed, {})]
        if panel is not None:
            made = panelled(node.type, node.op.strides, panel.across, panel.along, panel.width,
                            panel.group)  # fmt: skip
            sizes = {f"d{a}": n for a, n in enumerate(fixed(node.type.shape))}
            steps.append(Step(made, sizes))
        sources = tuple(self._places[x] for x in (computed.inputs if computed else (node,)))
        nbytes = prod(_shape(wanted)) * node.type.dtype.itemsize
        return Part(node.op.label, tuple(steps), sources, nbytes, computed is not None,
                    panel is not None)  # fmt: skip


def _shape(wanted: _Wanted) -> tuple[int, ...]:
    """The shape of a held value."""
    shape, panel = fixed(wanted.node.type.shape), wanted.panel
    return shape if panel is None else fixed(panelled_shape(shape, panel))


def fixed(shape: Sequence[Index]) -> tuple[int, ...]:
    """A shape as numbers.  Raises VerifyError where a call tells it."""
    found = tuple(d for d in shape if isinstance(d, int))
    if len(found) != len(shape):
        raise VerifyError(f"a constant has the shape {shape_text(tuple(shape))}")
    return found


__all__ = ["Ahead"]
