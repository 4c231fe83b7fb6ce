"""Print a kernel's statements as the body of one Triton function."""

from __future__ import annotations

from smelt.codegen.triton.indices import FLOOR_FUNCTIONS
from smelt.codegen.triton.lanes import Lanes
from smelt.codegen.triton.refusal import refuse
from smelt.codegen.triton.schedule import Schedule
from smelt.codegen.triton.values import ValuePrinter
from smelt.codegen.triton.writer import Text, Writer, full, type_name
from smelt.dataclass import dataclass
from smelt.kernel.ir import Kernel, Let, Position, Statement, Store
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
        _statement(statement, values)
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


def _statement(s: Statement, values: ValuePrinter) -> None:
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
        case _:
            refuse(values.kernel.name, f"statements of kind {type(s).__name__.lower()}")


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
    pointer = offset.code if offset.axes == axes else writer.spread(offset, axes)
    code = x.code if x.dtype == param.dtype else f"{x.operand}.to({type_name(param.dtype)})"
    guard = "" if mask is None else f", mask={writer.spread(mask, axes, is_argument=True)}"
    writer.line(f"tl.store(ptr_{s.param} + {pointer}, {code}{guard})")
