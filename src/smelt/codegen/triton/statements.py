"""Print a kernel's statements as the body of one Triton function."""

from __future__ import annotations

from smelt.codegen.triton.indices import FLOOR_FUNCTIONS
from smelt.codegen.triton.lanes import Lanes
from smelt.codegen.triton.refusal import refuse
from smelt.codegen.triton.schedule import Schedule
from smelt.codegen.triton.values import ValuePrinter
from smelt.codegen.triton.writer import Text, Writer, full, type_name
from smelt.dataclass import dataclass
from smelt.kernel.ir import (
    Block,
    Kernel,
    Let,
    Merge,
    Position,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.types.dtype import i32, i64

__all__ = ["Program", "print_program"]


@dataclass(frozen=True, slots=True)
class Program:
    """A printed kernel and what its launch passes, in the order of the parameters.

    `strides` maps names to a parameter and its dimension; `blocks` maps axes to lanes (None: the
    extent, padded to a power of two).
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    strides: dict[str, tuple[str, int]]
    sizes: tuple[str, ...]
    blocks: dict[str, int | None]


def print_program(kernel: Kernel, schedule: Schedule) -> Program:
    """Print the functions of a kernel; raise DeviceKernelError for what cannot be printed."""
    writer = Writer({a.name: k for k, a in enumerate(kernel.axes)})
    lanes = Lanes(kernel, schedule)
    values = ValuePrinter(kernel, writer, lanes)
    lanes.declare(writer, values.indices)
    for statement in kernel.body:
        print_statement(statement, values)
    pointers = tuple(dict.fromkeys(p.name for p in (*kernel.inputs, *kernel.outputs)))
    name = f"kernel_{kernel.name}"
    parameters = [
        *(f"ptr_{p}" for p in pointers),
        *values.strides,
        *(f"size_{s}" for s in values.sizes),
        *(f"{lanes.block(a)}: tl.constexpr" for a in lanes.blocks),
    ]
    head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
    helpers = [FLOOR_FUNCTIONS[f].lstrip("\n") for f in sorted(values.indices.functions)]
    helpers += [f.text for f in values.functions.values()]
    text = "\n\n".join([*helpers, "\n".join([*head, *writer.lines, ""])])
    return Program(
        name, text, pointers, dict(values.strides), tuple(values.sizes), dict(lanes.blocks)
    )


def print_statement(s: Statement, values: ValuePrinter) -> None:
    """Write the lines of a statement; raise DeviceKernelError for kinds without any."""
    match s:
        case Let(name=name, value=value):
            x = values.value(value)
            values.writer.line(f"v_{name} = {full(x).code}")
            values.names[name] = Text(f"v_{name}", x.axes, x.dtype)
        case Position(name=name, value=value, extent=extent):
            x = full(values.cast(values.value(value), i64))
            last = f"tl.full([], {values.indices.text(extent).operand} - 1, tl.int64)"
            inside = f"tl.minimum(tl.maximum({x.code}, 0), {last})"
            values.writer.line(f"v_{name} = {inside}.to(tl.int32)")
            values.names[name] = Text(f"v_{name}", x.axes, i32)
        case Store():
            _store(s, values)
        case Update(state=name, value=value):
            old = values.names[name]
            x = values.broadcast(values.cast(values.value(value), old.dtype), old.axes)
            values.writer.line(f"n_{name} = {full(x).code}")
            values.new_states[name] = Text(f"n_{name}", old.axes, old.dtype)
        case Stream():
            _stream(s, values)
        case Merge():
            refuse(values.kernel.name, "parts of a stream that merge")


# ---- streams -----------------------------------------------------------------------------------


def _stream(s: Stream, values: ValuePrinter) -> None:
    """Write a loop over blocks; the states are variables that it carries."""
    if s.bounds:
        refuse(values.kernel.name, "a stream whose blocks compute a range of another axis")
    for state in s.states:
        _begin_state(state, values)
    with values.scope():
        for block in s.blocks:
            _loop(block, values)
        if s.where is not None:
            condition = values.value(s.where)
            if condition.axes:
                refuse(values.kernel.name, "a condition of blocks that varies inside of them")
            values.writer.line(f"if {condition.code}:")
            values.writer.indent += 1
        for statement in s.body:
            print_statement(statement, values)
        for state in s.states:
            if state.name in values.new_states:
                values.writer.line(f"s_{state.name} = {values.new_states[state.name].code}")


def _begin_state(state: State, values: ValuePrinter) -> None:
    first = values.value(state.init)
    kept = (a for a in state.axes if values.lanes.index[a].axes)
    axes = values.writer.sorted((*first.axes, *kept))
    if first.number is not None and axes:
        code = f"tl.full({values.shape(axes)}, {first.code}, {type_name(first.dtype)})"
    else:
        code = full(values.broadcast(first, axes)).code
    values.writer.line(f"s_{state.name} = {code}")
    values.names[state.name] = Text(f"s_{state.name}", axes, first.dtype)


def _loop(block: Block, values: ValuePrinter) -> None:
    """Open the loop over an axis; blocks begin at multiples of their size."""
    writer, lanes, axis = values.writer, values.lanes, block.axis
    if block.part is not None:
        refuse(values.kernel.name, "parts of a stream on the grid")
    extent = values.indices.text(values.kernel.axis(axis).extent)
    stop = extent if block.stop is None else _end(block.stop, extent, values)
    start = None if block.start is None else _end(block.start, extent, values)
    count = lanes.schedule.streams[axis]
    first = "0" if start is None else start.code
    if count == 1:
        writer.line(f"for i_{axis} in tl.range({first}, {stop.code}):")
        writer.indent += 1
        lanes.fix(writer, axis, f"i_{axis}")
        return
    lanes.blocks[axis] = count
    name = lanes.block(axis)
    if start is not None:
        first = f"{first} // {name} * {name}"
    writer.line(f"for start_{axis} in tl.range({first}, {stop.code}, {name}):")
    writer.indent += 1
    lanes.enter(writer, axis, f"start_{axis}", stop.code, start)


def _end(value: Value, extent: Text, values: ValuePrinter) -> Text:
    """Return an end of a loop as an index, clamped to the axis."""
    x = full(values.cast(values.value(value), i64))
    if x.axes:
        refuse(values.kernel.name, "an end of a stream that varies along lanes")
    bound = f"tl.full([], {extent.code}, tl.int64)"
    inside = f"tl.minimum(tl.maximum({x.code}, 0), {bound})"
    return values.writer.bind(f"{inside}.to(tl.int32)", (), i32)


# ---- stores ------------------------------------------------------------------------------------


def _store(s: Store, values: ValuePrinter) -> None:
    if s.join:
        refuse(values.kernel.name, "a store that combines values of several programs")
    param = values.kernel.param(s.param)
    writer = values.writer
    x = values.value(s.value)
    where = [] if s.where is None else [values.bound(values.value(s.where))]
    offset = values.offset(param, s.index)
    axes = writer.joint(offset, x, *where)
    x = full(values.broadcast(x, axes))
    mask = values.mask(axes, where)
    pointer = values.broadcast(offset, axes).code
    code = x.code if x.dtype == param.dtype else f"{x.operand}.to({type_name(param.dtype)})"
    guard = "" if mask is None else f", mask={writer.spread(mask, axes, is_argument=True)}"
    writer.line(f"tl.store(ptr_{s.param} + {pointer}, {code}{guard})")
