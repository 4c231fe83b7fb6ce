"""`smelt.torch.save`: write a model to a file that `sm.load` runs without PyTorch.

torch.export traces the model once, for all values of its dynamic sizes. What it traces becomes one
graph; parameters and buffers become constants of the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from inspect import Signature, signature
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sympy
import torch
from torch.utils import _pytree

from smelt.errors import SaveError, UnsupportedError
from smelt.frontends.torch.layout import memory_order
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.segment import as_array, graph_of_outputs
from smelt.frontends.torch.sizes import Sizes, is_size
from smelt.frontends.torch.table import TABLE, decompositions
from smelt.frontends.torch.value import V
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import input_size_names
from smelt.python.origin import UNKNOWN
from smelt.saved.programs import Draft, Hints, save_programs
from smelt.saved.recording import Outcome, Parameter, Recording, SavedArgument
from smelt.types.dtype import bool_, from_numpy
from smelt.types.expr import Index, evaluate, sizes_of, text
from smelt.types.formula import Formula, Guard
from smelt.types.tensor import TensorType

Array = np.ndarray[Any, Any]
MAX_VARIANTS = 8
"""Maximum recordings of a model for dynamic sizes that are 1."""


def save(
    model: Callable[..., Any],
    path: str | Path,
    *args: Any,
    dynamic: bool | Any = True,
    isa: str | Sequence[str] = "host",
    hints: Hints = (),
    **kwargs: Any,
) -> None:
    """Compile a model for arguments like these and write it to a file.

    Args:
        model: a module in evaluation mode.
        path: the file, which appears whole or not at all. `sm.load(path)` gives a function with the
            model's parameters, of arrays; it imports neither PyTorch nor LLVM.
        *args: an example of the arguments. Tensors are passed to the loaded function as contiguous
            arrays; numbers and None are constants of the program.
        dynamic: whether sizes of more than 1 may differ in calls where the model allows it; or
            `dynamic_shapes` as of `torch.export.export`.
        isa: instruction sets to hold code for; see `sm.save`.
        hints: likely values of the sizes, by their names in `print(sm.load(path))`; see `sm.save`.
        **kwargs: arguments by keyword.

    Raises:
        SaveError for a model with an operator that PyTorch itself would have to run, or that
        changes its buffers; what torch.export and compilation raise; OSError.
    """
    args, kwargs = _pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().contiguous(), (args, kwargs)
    )
    first = _record(model, args, kwargs, dynamic)
    recordings = [first]
    if dynamic is True:
        recordings += _variants(model, first, args, kwargs)
    save_programs(path, {type(model).__name__: [Draft(r) for r in recordings]}, isa, hints)


def _variants(model: Any, first: Recording, args: Any, kwargs: Any) -> Iterator[Recording]:
    """Yield recordings for dynamic sizes that are 1, where the model takes them."""
    for fewer in _with_ones(first, args, kwargs):
        try:
            yield _record(model, *fewer, True)
        except Exception:  # noqa: BLE001, S112  # a window larger than its image, say
            continue


def _record(model: Any, args: Any, kwargs: Any, dynamic: Any) -> Recording:
    with warnings.catch_warnings():
        # The tracer copies trees with functions that PyTorch itself has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        exported = _exported(model, args, kwargs, dynamic)
    with torch.no_grad():
        return _recording(exported, model, args, kwargs)


def _with_ones(r: Recording, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments with each choice of dynamic sizes cut to 1.

    Sizes of 1 follow other rules of broadcasting, so these are recordings of their own.
    """
    names = list(dict.fromkeys(n for x in r.leaves for d in x.shape for n in sizes_of(d)))
    choices = (c for count in range(1, len(names) + 1) for c in combinations(names, count))
    for ones in islice(choices, MAX_VARIANTS - 1):
        shapes = [
            [evaluate(d, {**r.hints, **dict.fromkeys(ones, 1)}) for d in x.shape] for x in r.leaves
        ]
        cut = iter(shapes)
        yield _pytree.tree_map_only(
            torch.Tensor,
            lambda x: x[tuple(slice(n) for n in next(cut))].contiguous(),  # noqa: B023
            (args, kwargs),
        )


# ---- tracing -------------------------------------------------------------------------------------


def _exported(model: Any, args: Any, kwargs: Any, dynamic: Any) -> Any:
    """Trace a model to the operators that have rules."""
    shapes = dynamic
    if isinstance(dynamic, bool):
        automatic, static = torch.export.Dim.AUTO, torch.export.Dim.STATIC
        shapes = None
        if dynamic:
            shapes = _pytree.tree_map(
                lambda x: (
                    [automatic if n > 1 else static for n in x.shape]
                    if isinstance(x, torch.Tensor)
                    else None
                ),
                dict(_signature(model).bind(*args, **kwargs).arguments),
            )
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    exported: Any = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    defaults: Any = torch.export.default_decompositions()
    table = {op: rule for op, rule in defaults.items() if str(op) not in TABLE}
    exported = exported.run_decompositions(table | decompositions())
    # The dtypes of a recording are fixed, and so is what this asserts of them.
    for x in exported.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        exported.graph.erase_node(x)
    return exported


class _Function(torch.nn.Module):
    """A function as a module, which torch.export takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


# ---- the recording -------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """Inputs of the traced graph: leaves of the caller and constants, with their nodes.

    None is not a leaf: it belongs to the nesting of the arguments.
    """

    users: list[Any]
    constants: dict[Any, torch.Tensor]


def _inputs(exported: Any, examples: Sequence[Any]) -> _Inputs:
    state = {**exported.constants, **exported.state_dict}
    placeholders = {n.name: n for n in exported.graph.find_nodes(op="placeholder")}
    inputs = _Inputs([], {})
    for spec in exported.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.kind.name == "USER_INPUT":
            inputs.users.append(node)
        elif isinstance(state.get(spec.target), torch.Tensor):
            inputs.constants[node] = state[spec.target]
        else:
            raise SaveError(what=f"the model's input {spec.target} of kind {spec.kind.name}")
    pairs = zip(inputs.users, examples, strict=True)
    inputs = inputs._replace(users=[x for x, example in pairs if example is not None])
    changed = [s for s in exported.graph_signature.output_specs if s.kind.name != "USER_OUTPUT"]
    if changed:
        raise SaveError(what=f"a model that changes its buffer {changed[0].target}")
    return inputs


def _recording(exported: Any, model: Any, args: Any, kwargs: Any) -> Recording:
    examples: list[Any] = _pytree.tree_leaves((args, kwargs))
    inputs = _inputs(exported, examples)
    lowering = Lowering(exported.graph)
    if lowering.left or lowering.final_writes or len(lowering.stages) > 1:
        left = "; ".join(f"{x.operator} ({x.reason}) in {x.where}" for x in lowering.left)
        raise SaveError(what=f"what PyTorch itself has to run: {left or 'a write in place'}")
    sources = {*inputs.users, *inputs.constants}
    computed: Any = [
        x
        for x in lowering.results
        if isinstance(x, torch.fx.Node) and x not in sources and not is_size(x)
    ]
    values = {x: lowering.value(x, 0) for x in dict.fromkeys(computed)}
    stage, sizes = lowering.stage(0), lowering.sizes
    graph, checks = graph_of_outputs(stage, [v.node for v in values.values()], sizes)
    graph, constants, size_inputs = _arranged(graph, stage.inputs, inputs)
    names = input_size_names(graph)
    call = _Call(inputs.users, [x for x in examples if x is not None], sizes)
    guards = tuple(_guards(inputs.users, sizes))
    conditions = [*call.conditions, *_ranges(exported, sizes)]
    conditions += map(str, guards)
    conditions += [f"{text(e)} >= 0" for e in checks.sizes]
    results = [x for x in lowering.results if x is not None]
    nest = [None if x is None else _LEAF for x in lowering.results]
    outcomes = [_outcome(x, list(values), inputs, sizes) for x in results]
    sized = "".join(f"{text(x.value)}, " for x in outcomes if x.kind == "size")
    return Recording(
        _parameters(model),
        nest_to_data(_by_position(model, args, kwargs)),
        [],
        tuple(call.names),
        tuple(call.leaves),
        graph,
        tuple(k for k, x in enumerate(inputs.users) if x in stage.inputs),
        tuple(constants),
        tuple(outcomes),
        nest_to_data(_pytree.tree_unflatten(nest, exported.call_spec.out_spec)),
        Formula(", ".join(call.parameters), _guarded(names, conditions)),
        guards,
        {name: sizes.hints[name] for name in names},
        Formula(", ".join(call.parameters), f"({sized})") if sized else None,
        size_inputs=tuple(map(names.index, size_inputs)),
        match_names=tuple(call.parameters),
    )


def _guarded(names: Sequence[str], conditions: Sequence[str]) -> str:
    values = "".join(f"{name}, " for name in names)
    return f"({values}) if {' and '.join(conditions)} else None" if conditions else f"({values})"


def _arranged(
    graph: Graph, read: Mapping[Any, V], inputs: _Inputs
) -> tuple[Graph, list[Array], list[str]]:
    """Return the graph with a recording's order of inputs, its constants, and size inputs."""
    nodes = dict(zip(read, graph.inputs, strict=False))
    copies: dict[Node, Node] = {}
    constants: list[Array] = []
    for x in (x for x in inputs.users if x in nodes):
        op: Any = nodes[x].op
        copies[nodes[x]] = build.input(op.label, nodes[x].type, None, nodes[x].origin)
    for x, tensor in ((x, t) for x, t in inputs.constants.items() if x in nodes):
        node = nodes[x]
        op = node.op
        copies[node] = build.input(op.label, node.type, None, node.origin, constant=True)
        order = memory_order(x.meta["val"])
        array = as_array(tensor.detach())
        constants.append(np.ascontiguousarray(array if order is None else array.transpose(order)))
    size_inputs: list[str] = []
    for node in (x for x in graph.inputs if x not in copies):
        (name,) = sizes_of(node.type.shape[0])
        size_inputs.append(name)
        op = node.op
        copies[node] = build.input(op.label, TensorType(bool_, node.type.shape), (0,))
    ordered = tuple(copies.values())
    for x in graph.nodes():
        if x not in copies:
            copies[x] = Node(x.op, tuple(copies[i] for i in x.inputs), x.type, x.origin)
    outputs = tuple(copies[x] for x in graph.outputs)
    return replace(graph, inputs=ordered, outputs=outputs), constants, size_inputs


def _outcome(x: Any, computed: Sequence[Any], inputs: _Inputs, sizes: Sizes) -> Outcome:
    if x in computed:
        return Outcome("graph", computed.index(x))
    if x in inputs.users:
        return Outcome("argument", inputs.users.index(x))
    if x in inputs.constants:
        return Outcome("captured", 0, as_array(inputs.constants[x].detach().contiguous()))
    if isinstance(x, torch.fx.Node):
        return Outcome("size", 0, sizes.index(x.meta["val"]))
    if isinstance(x, bool | int | float | str):
        return Outcome("plain", 0, x)
    raise SaveError(what=f"a result of the model of type {type(x).__name__}")


# ---- arguments -----------------------------------------------------------------------------------


class _Call:
    """Parameters of the formula that matches a call, and what each argument has to be."""

    def __init__(self, nodes: Sequence[Any], examples: Sequence[Any], sizes: Sizes) -> None:
        self.names = [str(x.name) for x in nodes]
        self.leaves: list[SavedArgument] = []
        self.parameters: list[str] = []
        self.conditions: list[str] = []
        for node, example in zip(nodes, examples, strict=True):
            if isinstance(example, torch.Tensor):
                shape = tuple(sizes.index(n) for n in node.meta["val"].shape)
                self.leaves.append(SavedArgument(from_numpy(as_array(example).dtype), shape))
                for d in shape:
                    self._add_dimension(d)
            elif isinstance(example, bool | int | float):
                self.leaves.append(SavedArgument(constant=example))
            else:
                kind = type(example).__name__
                raise SaveError(what=f"the argument {node.name} of type {kind}: {example!r}")
        numbers = [x for x in examples if type(x) in (int, float)]
        self.parameters += [f"_number{k}" for k in range(len(numbers))]

    def _add_dimension(self, d: Index) -> None:
        name = text(d)
        if {*sizes_of(d)} != {name} or name in self.parameters:
            name = f"_{len(self.parameters)}"
            if sizes_of(d):
                self.conditions.append(f"{name} == {text(d)}")
        self.parameters.append(name)


def _guards(nodes: Sequence[Any], sizes: Sizes) -> Iterator[Guard]:
    """Yield the conditions on sizes under which the tracer would make the same graph.

    Raises SaveError for a condition that has no form in a file.
    """
    named = frozenset(sizes.names)
    env: Any = next((n.node.shape_env for x in nodes for n in _symbolic_dims(x)), None)
    conditions = [] if env is None else [env.replace(g.expr) for g in env.guards]
    for condition in dict.fromkeys(conditions):
        if condition == sympy.true:
            continue
        relation, swapped = _RELATIONS.get(type(condition).__name__, ("", False))
        try:
            if not relation or not named.issuperset(condition.free_symbols):
                raise UnsupportedError("not a relation of sizes of arguments")
            left, right = map(sizes.convert, condition.args)
        except UnsupportedError as error:
            raise SaveError(what=f"the condition {condition} on sizes") from error
        if swapped:
            left, right = right, left
        yield Guard(left, relation, right, UNKNOWN)


def _symbolic_dims(x: Any) -> list[Any]:
    value = x.meta.get("val")
    dims = value.shape if isinstance(value, torch.Tensor) else ()
    return [n for n in dims if isinstance(n, torch.SymInt)]


def _ranges(exported: Any, sizes: Sizes) -> Iterator[str]:
    """Yield the bounds of sizes that the trace holds for, beyond being 2 or more."""
    for symbol, bounds in exported.range_constraints.items():
        name = sizes.names.get(symbol)
        if name is None:
            continue
        if bounds.lower > _LEAST:
            yield f"{name} >= {int(bounds.lower)}"
        if bounds.upper < _GREATEST:
            yield f"{name} <= {int(bounds.upper)}"


_LEAST, _GREATEST = 2, 2**62
_RELATIONS: Mapping[str, tuple[str, bool]] = {
    "Equality": ("==", False),
    "Unequality": ("!=", False),
    "StrictLessThan": ("<", False),
    "LessThan": ("<=", False),
    "StrictGreaterThan": ("<", True),
    "GreaterThan": ("<=", True),
}
"""Class of a SymPy relation -> a guard's relation, and whether its sides change places."""
_LEAF = object()


def _parameters(model: Any) -> tuple[Parameter, ...]:
    parameters = _signature(model).parameters.values()
    return tuple(Parameter(p.name, p.kind.name, p.default is not p.empty) for p in parameters)


def _signature(model: Any) -> Signature:
    try:
        return signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        raise SaveError(what=f"{model}, which does not tell its parameters,") from None


def _by_position(model: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    bound = _signature(model).bind(*args, **kwargs)
    return bound.args, dict(sorted(bound.kwargs.items()))


def nest_to_data(x: Any) -> Any:
    """Return the nesting of a value as data of a recording."""
    if x is None:
        return ["none"]
    name = type(x).__name__
    if is_dataclass(type(x)):
        keys = [f.name for f in fields(x)]
        return ["record", name, keys, [nest_to_data(getattr(x, k)) for k in keys]]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        keys = list(x._fields)  # pyright: ignore[reportAttributeAccessIssue,reportUnknownArgumentType,reportUnknownMemberType]
        return ["named", name, keys, [nest_to_data(item) for item in x]]
    if type(x) in (tuple, list):
        return ["sequence", name, None, [nest_to_data(item) for item in x]]
    if isinstance(x, dict):
        return ["mapping", "dict", list(x), [nest_to_data(item) for item in x.values()]]
    return "leaf"
