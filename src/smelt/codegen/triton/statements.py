"""Print a kernel's statements as the body of one Triton function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.triton.epilogue_halves import DividedLaunch, divided_launch
from smelt.codegen.triton.indices import FLOOR_FUNCTIONS
from smelt.codegen.triton.lanes import Lanes
from smelt.codegen.triton.members import Members, members_of
from smelt.codegen.triton.schedule import (
    ATOMICS,
    Schedule,
    adds_products,
    carries_steps,
    is_atomic,
    selects_visits,
)
from smelt.codegen.triton.values import ValuePrinter
from smelt.codegen.triton.writer import Text, Writer, full, refuse, type_name
from smelt.kernel import ir
from smelt.kernel.decided_blocks import DecidedBlocks, decided_blocks
from smelt.kernel.walk import loads, stores
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_, i32, i64
from smelt.types.expr import product

WIDE = "INDEX"
"""The constant of a program that is the type of its indices and offsets."""
MIN_WIDE = 1 << 31
"""Minimum elements of an array whose offsets need 64 bits."""


@dataclass(frozen=True, slots=True)
class Program:
    """A printed kernel and what its launch passes, in the order of the parameters.

    `strides` maps names to a parameter and its dimension; `blocks` maps axes to lanes (None: the
    extent, padded to a power of two). `members` has what the table of a family's arrays lists.
    """

    name: str
    text: str
    functions: Mapping[str, str]
    pointers: tuple[str, ...]
    strides: Mapping[str, tuple[str, int]]
    sizes: tuple[str, ...]
    blocks: Mapping[str, int | None]
    members: Members | None
    has_wide_offsets: bool
    copied: tuple[str, ...] = ()
    """The arrays that tensor descriptors copy: their addresses and rows are aligned."""


def print_program(kernel: ir.Kernel, schedule: Schedule) -> Program:
    """Print the functions of a kernel; raise DeviceKernelError for what cannot be printed."""
    writer = Writer({a.name: k for k, a in enumerate(kernel.axes)})
    wide = not has_short_offsets(kernel)
    lanes = Lanes(kernel, schedule, WIDE if wide else "tl.int32")
    values = ValuePrinter(kernel, writer, lanes)
    members = members_of(kernel)
    if members is not None:
        members.print(writer, lanes.index_type)
    lanes.declare(writer, values.indices, members=members is not None)
    divided = divided_launch(kernel, schedule.halved) if schedule.halved else None
    whole = kernel.body if divided is None else (*divided.before, divided.loop)
    for statement in whole:
        print_statement(statement, values)
    if divided is not None:
        _halves(divided, schedule.halved, values)
    used = {f"ptr_{p}" for p in _accessed(kernel)}
    pointers = dict.fromkeys(
        p.name for p in (*kernel.inputs, *kernel.outputs) if f"ptr_{p.name}" in used and not p.each
    )
    sizes = [s for s in values.sizes if members is None or s not in members.sizes]
    name = f"kernel_{kernel.name}"
    parameters = [
        *([] if members is None else ["ptr_members"]),
        *(f"ptr_{p}" for p in pointers),
        *values.strides,
        *(f"size_{s}" for s in sizes),
        *([] if members is None else ["MEMBERS: tl.constexpr", "DIVISOR: tl.constexpr"]),
        *(f"{lanes.block(a)}: tl.constexpr" for a in lanes.blocks),
        *([f"{WIDE}: tl.constexpr"] if wide else []),
    ]
    head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
    head += [f"    {descriptor} = {code}" for code, descriptor in values.descriptors.items()]
    functions = {f: FLOOR_FUNCTIONS[f].lstrip("\n") for f in sorted(values.indices.functions)}
    functions |= {f.name: f.text for f in values.functions.values()}
    return Program(
        name,
        "\n".join([*head, *writer.lines, ""]),
        functions,
        tuple(pointers),
        dict(values.strides),
        tuple(sizes),
        dict(lanes.blocks),
        members,
        wide,
        tuple(dict.fromkeys(v.param for v in (*schedule.copied, *schedule.stored))),
    )


def has_short_offsets(kernel: ir.Kernel) -> bool:
    """Return whether every offset of every array is known to have 32 bits."""
    params = (*kernel.inputs, *kernel.outputs)
    if any(p.strides is not None and None in p.strides for p in params):
        return False
    counts = [product(p.shape) for p in params]
    return all(isinstance(n, int) and n < MIN_WIDE for n in counts)


def _accessed(kernel: ir.Kernel) -> list[str]:
    return [*(v.param for v in loads(kernel)), *(s.param for s in stores(kernel))]


def print_statement(s: ir.Statement, values: ValuePrinter) -> None:
    """Write the lines of a statement; raise DeviceKernelError for kinds without any."""
    match s:
        case ir.Let(name=name, value=value):
            x = values.value(value)
            if x.stored is None:
                values.writer.line(f"v_{name} = {full(x).code}")
                x = Text(f"v_{name}", x.axes, x.dtype, narrow=x.narrow)
            values.define(name, x)
        case ir.Position(name=name, value=value, extent=extent):
            x = full(values.cast(values.value(value), i64))
            last = f"tl.full([], {values.indices.text(extent).operand} - 1, tl.int64)"
            inside = f"tl.minimum(tl.maximum({x.code}, 0), {last})"
            values.writer.line(f"v_{name} = {inside}.to({values.lanes.index_type})")
            values.define(name, Text(f"v_{name}", x.axes, i32), is_position=True)
        case ir.Store():
            _store(s, values)
        case ir.Update(state=name, value=value):
            old = values.names[name]
            x = values.broadcast(values.cast(values.value(value), old.dtype), old.axes)
            values.writer.line(f"n_{name} = {full(x).code}")
            values.define_next(name, Text(f"n_{name}", old.axes, old.dtype))
        case ir.Stream():
            _stream(s, values)
        case ir.Merge():
            raise AssertionError("a merge is a launch of its own")


# ---- streams -----------------------------------------------------------------------------------


def _stream(s: ir.Stream, values: ValuePrinter) -> None:
    """Write a loop over blocks; the states are variables that it carries.

    All of an axis is computed where a block needs a range of it: the rest is identity elements.
    """
    for state in s.states:
        _begin_state(state, values)
    full = decided_blocks(s) if values.lanes.schedule.splits_loops else None
    if full is not None and full.axis in values.lanes.schedule.streams:
        _loops(s, full, values)
        return
    with values.scope():
        if _selects(s):
            _selected_visits(s, values)
            return
        if adds_products(s):
            _one_loop(s.blocks, values)
            _visit(s, values)
            return
        for block in s.blocks:
            is_last = block is s.blocks[-1]
            ahead = values.lanes.schedule.stages if is_last and carries_steps(s) else None
            _loop(block, values, is_aligned=not any(map(_selects, s.body)), ahead=ahead)
        _visit(s, values)


def _selects(s: ir.Statement) -> bool:
    return isinstance(s, ir.Stream) and selects_visits(s)


def _selected_visits(s: ir.Stream, values: ValuePrinter) -> None:
    """Write a loop over blocks of positions, and one over those where the condition holds.

    These are found one after another, so that their order stays.
    """
    for block in s.blocks[:-1]:
        _loop(block, values)
    writer, lanes, axis = values.writer, values.lanes, s.blocks[-1].axis
    lanes.stream(axis)
    _blocks(axis, "0", values.indices.text(values.kernel.axis(axis).extent).code, None, values)
    condition = values.value(s.where) if s.where is not None else None
    holds = None if condition is None else values.mask((axis,), [condition])
    if holds is None or holds.axes != (axis,):
        refuse(values.kernel.name, "a condition of visits that varies along other lanes")
    writer.line(f"holds_{axis} = {holds.code}")
    place = f"next_{axis}"
    writer.line(f"{place} = {lanes.typed(f'start_{axis}')} - 1")
    writer.open(f"for _ in tl.range(0, tl.sum(holds_{axis}.to(tl.int32), 0)):")
    later = f"holds_{axis} & (i_{axis} > {place})"
    writer.line(f"{place} = tl.min(tl.where({later}, i_{axis}, i_{axis} + {lanes.block(axis)}), 0)")
    lanes.select(axis, place)
    for statement in s.body:
        print_statement(statement, values)


def _visit(s: ir.Stream, values: ValuePrinter) -> None:
    """Write what a stream does with one block, and its states' new values."""
    if s.where is not None:
        condition = values.value(s.where)
        if condition.axes:
            refuse(values.kernel.name, "a condition of blocks that varies inside of them")
        values.writer.open(f"if {condition.code}:")
    for statement in s.body:
        print_statement(statement, values)
    for state in s.states:
        if state.name in values.new_states:
            values.writer.line(f"s_{state.name} = {values.new_states[state.name].code}")


def _loops(s: ir.Stream, full: DecidedBlocks, values: ValuePrinter) -> None:
    """Write three loops: blocks before, in and after the range in which no mask cuts a block.

    The ends of the range are whole blocks, so that the loop over it needs no masks of its own.
    """
    (block,), writer, lanes = s.blocks, values.writer, values.lanes
    axis = block.axis
    size = lanes.stream(axis)
    start, stop = _ends(block, values)
    before = "0" if start is None else f"tl.cdiv({start.code}, {size})"
    after = f"{stop.code} // {size}"
    for end in full.starts:
        before = f"tl.maximum({before}, tl.cdiv({_end(end, stop, values).code}, {size}))"
    for end in full.stops:
        after = f"tl.minimum({after}, {_end(end, stop, values).code} // {size})"
    first_full = f"full_{axis}" if before != "0" else "0"
    if before != "0":
        writer.line(f"full_{axis} = {before} * {size}")
    writer.line(f"rest_{axis} = tl.maximum({after}, {before}) * {size}")
    if before != "0":
        first = "0" if start is None else f"{start.code} // {size} * {size}"
        with values.scope():
            end = f"tl.minimum(full_{axis}, {stop.code})"
            _blocks(axis, first, writer.bind(end, (), i32).code, start, values)
            _visit(s, values)
    with values.scope(), values.decided(full.conditions):
        _blocks(axis, first_full, f"rest_{axis}", None, values, is_full=True)
        _visit(s, values)
    with values.scope():
        _blocks(axis, f"rest_{axis}", stop.code, None, values)
        _visit(s, values)


def _begin_state(state: ir.State, values: ValuePrinter) -> None:
    first = values.value(state.init)
    kept = (a for a in state.axes if values.lanes.index[a].axes)
    axes = values.writer.sorted((*first.axes, *kept))
    if first.number is not None and axes:
        code = f"tl.full({values.shape(axes)}, {first.code}, {type_name(first.dtype)})"
    else:
        code = full(values.broadcast(first, axes)).code
    values.writer.line(f"s_{state.name} = {code}")
    values.define(state.name, Text(f"s_{state.name}", axes, first.dtype))


def _ends(block: ir.Block, values: ValuePrinter) -> tuple[Text | None, Text]:
    """Return where the visits of an axis start, if that is not 0, and stop."""
    extent = values.indices.text(values.kernel.axis(block.axis).extent)
    stop = extent if block.stop is None else _end(block.stop, extent, values)
    return None if block.start is None else _end(block.start, extent, values), stop


def _loop(
    block: ir.Block, values: ValuePrinter, *, is_aligned: bool = True, ahead: int | None = None
) -> None:
    """Open the loop over an axis; aligned blocks begin at multiples of their size.

    Steps of one load `ahead` of the arithmetic, which Triton does by itself for products alone.
    """
    writer, lanes, axis = values.writer, values.lanes, block.axis
    start, stop = _ends(block, values)
    first = "0" if start is None else start.code
    if block.size == 1 or lanes.schedule.streams[axis] == 1:
        step = f"i_{axis}" if lanes.typed("") == "" else f"step_{axis}"
        stages = "" if ahead is None else f", num_stages={ahead}"
        writer.open(f"for {step} in tl.range({first}, {stop.code}{stages}):")
        lanes.fix(writer, axis, f"i_{axis}" if step == f"i_{axis}" else lanes.typed(step))
        return
    name = lanes.stream(axis)
    if start is not None and is_aligned:
        first = f"{first} // {name} * {name}"
    _blocks(axis, first, stop.code, start, values)


def _one_loop(blocks: Sequence[ir.Block], values: ValuePrinter) -> None:
    """Open one loop over the blocks of several axes: Triton loads ahead in the innermost loop."""
    writer, lanes, axes = values.writer, values.lanes, [b.axis for b in blocks]
    extents = [values.indices.text(values.kernel.axis(a).extent) for a in axes]
    counts = [
        x.operand if lanes.schedule.streams[a] == 1 else f"tl.cdiv({x.code}, {lanes.stream(a)})"
        for a, x in zip(axes, extents, strict=True)
    ]
    step = f"step_{axes[0]}"
    writer.open(f"for {step} in tl.range(0, {' * '.join(counts)}):")
    for k, axis in enumerate(axes):
        inside = counts[k + 1 :]
        place = f"{step} // ({' * '.join(inside)})" if inside else step
        place = f"{place} % {counts[k]}" if k else place
        if lanes.schedule.streams[axis] == 1:
            lanes.fix(writer, axis, lanes.typed(f"({place})"))
            continue
        writer.line(f"start_{axis} = {place} * {lanes.block(axis)}")
        lanes.enter(writer, axis, lanes.typed(f"start_{axis}"), extents[k].code)


def _blocks(
    axis: str,
    first: str,
    stop: str,
    start: Text | None,
    values: ValuePrinter,
    *,
    is_full: bool = False,
) -> None:
    """Open a loop over blocks, all of whose lanes exist if they are full."""
    writer, lanes = values.writer, values.lanes
    writer.open(f"for start_{axis} in tl.range({first}, {stop}, {lanes.block(axis)}):")
    lanes.enter(writer, axis, lanes.typed(f"start_{axis}"), stop, start, is_full=is_full)


def _end(value: ir.Value, extent: Text, values: ValuePrinter) -> Text:
    """Return an end of a loop as an index, clamped to 0 .. extent."""
    x = full(values.cast(values.value(value), i64))
    if x.axes:
        refuse(values.kernel.name, "an end of a stream that varies along lanes")
    bound = f"tl.full([], {extent.code}, tl.int64)"
    inside = f"tl.minimum(tl.maximum({x.code}, 0), {bound})"
    return values.writer.bind(f"{inside}.to({values.lanes.index_type})", (), i32)


def _halves(divided: DividedLaunch, axis: str, values: ValuePrinter) -> None:
    """Write the epilogue for the low and the high half of an axis' accumulators."""
    writer, lanes, block = values.writer, values.lanes, values.lanes.block(axis)
    extent = values.indices.text(values.kernel.axis(axis).extent).code
    halves: dict[str, tuple[Text, ...]] = {}
    for state in divided.loop.states:
        x = values.names[state.name]
        if axis not in x.axes:
            continue
        place = x.axes.index(axis)
        shape = [lanes.block(a) for a in x.axes]
        shape[place : place + 1] = "2", f"{block} // 2"
        order = [k for k in range(len(shape)) if k != place] + [place]
        names = f"low_{state.name}", f"high_{state.name}"
        code = f"{x.code}.reshape({', '.join(shape)}), {', '.join(map(str, order))}"
        writer.line(f"{', '.join(names)} = tl.split(tl.permute({code}))")
        halves[state.name] = tuple(Text(n, x.axes, x.dtype) for n in names)
    for k in range(2):
        with values.scope(), lanes.halved(axis):
            if k:
                writer.line(f"start_{axis} = start_{axis} + {lanes.block(axis)}")
            lanes.enter(writer, axis, f"start_{axis}", extent)
            for name, texts in halves.items():
                values.define(name, texts[k])
            for statement in divided.epilogue:
                print_statement(statement, values)


# ---- stores ------------------------------------------------------------------------------------


def _store(s: ir.Store, values: ValuePrinter) -> None:
    param = values.kernel.param(s.param)
    writer = values.writer
    if s in values.lanes.schedule.stored:
        values.store_block(s, param)
        return
    x = values.value(s.value)
    where = [] if s.where is None else [values.bound(values.value(s.where))]
    offset = values.offset(param, s.index)
    axes = writer.joint(offset, x, *where)
    x = full(values.broadcast(x, axes))
    mask = values.mask(axes, where)
    place = f"ptr_{s.param} + {values.broadcast(offset, axes).code}"
    guard = "" if mask is None else f", mask={writer.spread(mask, axes, is_argument=True)}"
    if s.join and is_atomic(values.kernel):
        code = f"tl.{ATOMICS[s.join]}({place}, {values.cast(x, param.dtype).code}"
        writer.line(f'{code}{guard}, sem="relaxed")')
        return
    if s.join:
        x = _joined(s.join, param, place, guard, x, values)
    code = x.code if x.dtype == param.dtype else f"{x.operand}.to({type_name(param.dtype)})"
    writer.line(f"tl.store({place}, {code}{guard})")


def _joined(
    join: str, param: ir.Param, place: str, guard: str, x: Text, values: ValuePrinter
) -> Text:
    """Return an element joined with `x`, after all stores so far.

    A program does its visits in order, and no other program stores these elements.
    """
    values.writer.line("tl.debug_barrier()")
    if join == ir.PUT:
        return x
    dtype = param.dtype.compute
    code = f"tl.load({place}{guard})"
    if dtype != param.dtype or dtype == bool_:
        code += f".to({type_name(dtype)})"
    old = values.writer.bind(code, x.axes, dtype)
    return values.bound(values.cast(values.apply(join, [old, x]), param.dtype))
