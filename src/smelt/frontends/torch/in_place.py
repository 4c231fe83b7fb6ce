"""Write new values of arguments in place instead of copying them at the end.

PyTorch turns a program that writes into its arguments (an optimiser's step, running statistics of a
norm) into one that computes new values and copies them in at the end, which reads and writes the
array once more. The last graph writes such a value itself if nothing after it needs the old one:
its plan then has the kernel that reads the old value element by element overwrite it.

    new_values(last, results, inputs, outputs, row_of)      # arguments by their new values
    inputs = InPlaceInputs(executable, {0: 3}, dense)       # result 0 is written over input 3
    inputs.overlapping_inputs(tensors, sizes)               # not in this call: 3 overlaps another

What a plan does not write in place, and arguments that overlap another one in the call at hand, are
copied as before.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.node import map_arg

from smelt.frontends.torch.layout import is_guarded, memory_order
from smelt.frontends.torch.row import Row

__all__ = [
    "InPlaceInputs",
    "aliased_values",
    "is_mutating",
    "is_random",
    "is_write",
    "mutated_values",
    "new_values",
    "nodes_in",
    "span_bytes",
    "values_to_copy",
]

# ---- analysis ------------------------------------------------------------------------------------


def is_write(node: Any) -> bool:
    """Whether an operator is the final copy of a new value into an argument.

    Its result, if used, is only returned, as that argument.
    """
    return (
        str(node.target) == "aten.copy_.default"
        and node.args[0].op == "placeholder"
        and all(u.op == "output" for u in node.users)
    )


def new_values(
    last: Sequence[Any],
    results: Any,
    inputs: Mapping[Any, Any],
    outputs: Mapping[Any, Any],
    row_of: Callable[[Any], Row | None],
) -> dict[Any, Any]:
    """Return the outputs of the last graph that only replace one of its inputs.

    Maps each such output to the input. No other write and no result of the program reads either.
    """
    writes = [n for n in last if is_write(n)]
    rest = [x for n in last if n not in writes for x in nodes_in(n.args)]
    rest += [x for x in nodes_in(results) if x not in writes]
    read = aliased_values(rest, row_of)
    sources = {n: aliased_values(nodes_in(n.args[1:]), row_of) for n in writes}
    times = Counter(x for source in sources.values() for x in source)
    times.update(read)
    replaced: dict[Any, Any] = {}
    for n in writes:
        argument, value = n.args[0], n.args[1]
        unshared = all(times[x] == (x in sources[n]) for x in (argument, value))
        if (
            argument in inputs
            and value in outputs
            and unshared
            and is_guarded(argument)
            and _same_layout(argument, value)
        ):
            replaced[value] = argument
    return replaced


def _same_layout(argument: Any, value: Any) -> bool:
    """Whether a value fills an argument element by element."""
    old, new = argument.meta["val"], value.meta["val"]
    return (
        old.dtype == new.dtype
        and tuple(old.shape) == tuple(new.shape)
        and not old.is_neg()
        and memory_order(old) is not None
    )


def values_to_copy(
    last: Sequence[Any], copied: Sequence[Any], row_of: Callable[[Any], Row | None]
) -> list[Any]:
    """Return the values that final copies read from memory also written then."""
    written_arguments = {x for n in last for x in n.args[:1]}
    sources = (
        x
        for n in copied
        for x in nodes_in(n.args[1:])
        if aliased_values([x], row_of) & written_arguments
    )
    return list(dict.fromkeys(sources))


def aliased_values(values: Iterable[Any], row_of: Callable[[Any], Row | None]) -> set[Any]:
    """Return the traced values whose memory the given values may share.

    Follows our views, and calls of torch, which may return their operands.
    """
    sources: set[Any] = set()
    pending = list(values)
    while pending:
        n = pending.pop()
        if n in sources:
            continue
        sources.add(n)
        row = row_of(n)
        if n.op == "call_function" and (row is None or row.alias):
            pending += nodes_in((n.args, n.kwargs))
    return sources


def nodes_in(nest: Any) -> list[Any]:
    """Return the traced values in an operator's arguments."""
    result: list[Any] = []
    map_arg(nest, result.append)
    return result


def is_mutating(node: Any) -> bool:
    """Whether a call writes into one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def mutated_values(node: Any) -> list[Any]:
    """Return the traced values that a call writes into."""
    names = {a.name for a in node.target._schema.arguments if a.is_write}
    operands = dict(zip([a.name for a in node.target._schema.arguments], node.args)) | node.kwargs
    return [x for name in names if name in operands for x in nodes_in(operands[name])]


def is_random(node: Any) -> bool:
    """Whether a call draws from torch's random stream, itself or through a wrapped function."""
    called = (node.target, *node.args[:1])
    return any(torch.Tag.nondeterministic_seeded in getattr(f, "tags", ()) for f in called)


# ---- calls ---------------------------------------------------------------------------------------


class InPlaceInputs:
    """Arguments that one graph writes in place, checked for overlap in each call."""

    def __init__(self, executable: Any, written: Mapping[int, int], dense: Sequence[bool]) -> None:
        """Find the inputs that kernels write.

        `mutated_values` maps outputs to the inputs whose new values they are; `dense` says which
        inputs have no gaps between elements.
        """
        values = [executable.values[v] for v in executable.outputs]
        self.inputs = [i for j, i in written.items() if values[j].overwrites == i]
        """The inputs that kernels write."""
        self._dense = dense
        self._spans: dict[tuple[int, ...], list[int | None]] = {}
        self._last_disjoint: tuple[list[int], tuple[int, ...]] | None = None

    def overlapping_inputs(
        self, tensors: Sequence[torch.Tensor], sizes: tuple[int, ...]
    ) -> list[int]:
        """Return the written inputs that share memory with another input in this call."""
        where = [t.data_ptr() for t in tensors]
        if self._last_disjoint == (where, sizes):
            return []
        cached_spans = self._spans.get(sizes)
        if cached_spans is None:
            both = zip(tensors, self._dense, strict=True)
            cached_spans = [span_bytes(t) if dense else None for t, dense in both]
            self._spans = {sizes: cached_spans}
        spans = [
            span_bytes(t) if n is None else n for n, t in zip(cached_spans, tensors, strict=True)
        ]
        begin = np.array(where, np.int64)
        end = begin + np.array(spans, np.int64)
        order = np.argsort(begin, kind="stable")
        if (begin[order][1:] >= np.maximum.accumulate(end[order])[:-1]).all():
            if all(self._dense):  # otherwise strides matter, which may differ in the next call
                self._last_disjoint = where, sizes
            return []
        return [i for i in self.inputs if ((begin < end[i]) & (end > begin[i])).sum() > 1]


def span_bytes(t: torch.Tensor) -> int:
    """Return the bytes from the first element to the end of the last."""
    if not t.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))) * t.itemsize
