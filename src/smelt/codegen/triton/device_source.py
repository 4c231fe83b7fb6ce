"""Print a kernel for ahead-of-time compilation: its programs and how each is launched.

`triton_source` is a file for people, with a launcher on torch's tensors. This is for the runtime:
constants have their values, and a launch is data. What compiles a program is given the text, one
entry and the architecture; nothing here imports Triton.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel double(x: f32[n]) -> y: f32[n]
...   grid n/4096
...   y[n] = x[n] * 2
... ''')
>>> (entry,) = device_source(kernel, {"n": 1000}).entries
>>> entry.constants, entry.warps, entry.signature["ptr_x"]
({'BLOCK_n': 1024, 'INDEX': 'tl.int32'}, 4, '*fp32')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from smelt.codegen.triton.block_axes import power_of_two
from smelt.codegen.triton.launcher import Stage
from smelt.codegen.triton.members import DIVISOR
from smelt.codegen.triton.schedule import EXACT, STAGES, Policy
from smelt.codegen.triton.source import print_stages
from smelt.codegen.triton.statements import MIN_WIDE, WIDE
from smelt.codegen.triton.writer import refuse
from smelt.kernel.device_code import DESCRIPTOR_ALIGNMENT, Argument, DeviceCode, Launch
from smelt.kernel.ir import Kernel, Param
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, evaluate, floordiv, minimum, mul, product

_IMPORTS = ("import triton", "import triton.language as tl")
_LIBDEVICE = "from triton.language.extra import libdevice"
MAX_OFFSET = (1 << 31) - 1
"""Largest offset in bytes that a signed number of 32 bits holds."""
_POINTERS = {"bool": "i1", "f16": "fp16", "f32": "fp32", "f64": "fp64"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A program of the text: its constants, the types of its other parameters, its launch.

    `signature` maps parameters to Triton's names of their types, in order; `aligned` has those
    whose addresses are multiples of 16 bytes, `divisible` numbers that are multiples of 16, and
    `near` the addresses of arrays of less than 2 GiB: 32 bits hold the offset of each byte.
    """

    symbol: str
    constants: Mapping[str, int | str]
    signature: Mapping[str, str]
    aligned: tuple[str, ...]
    warps: int
    grid: tuple[Index, ...]
    arguments: tuple[Argument, ...]
    stages: int = STAGES
    """Blocks of a loop that are loaded ahead, with the one in use."""
    divisible: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """The buffers among its arguments that it stores to."""


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """Text of a kernel's programs, its entries in the order of launches, and workspaces."""

    text: str
    entries: tuple[Entry, ...]
    workspaces: tuple[tuple[str, Index], ...]
    aligned: tuple[str, ...]
    is_wide: bool


class CompiledEntry(NamedTuple):
    """Code of one entry: image, symbol in it, threads and shared memory of a program.

    `scratch_arguments` counts the addresses that the compiler adds behind the entry's arguments.
    """

    image: bytes
    symbol: str
    threads: int
    shared_bytes: int
    scratch_arguments: int = 2
    facts: Mapping[str, Any] = {}
    scratch_bytes: int = 0
    """Of global memory, for every program of a launch: the first of these addresses."""


def device_source(kernel: Kernel, sizes: Mapping[str, int], policy: Policy = EXACT) -> DeviceSource:
    """Print a kernel for launches at these sizes, and at others with equal constants.

    Raises DeviceKernelError for what is not printed, or not launched by the runtime.
    """
    return source_of_stages(kernel, print_stages(kernel, sizes, policy), sizes)


def source_of_stages(
    kernel: Kernel, stages: Sequence[Stage], sizes: Mapping[str, int]
) -> DeviceSource:
    """Return the printed launches of a kernel for these sizes, as `device_source` does."""
    params = {p.name: p for s in stages for p in (*s.kernel.inputs, *s.kernel.outputs)}
    elements = [int(evaluate(product(p.shape), sizes)) for p in params.values()]
    is_wide = max(elements, default=0) >= MIN_WIDE
    functions: dict[str, str] = {}
    for stage in stages:
        functions |= stage.program.functions
    programs = [*functions.values(), *(s.program.text for s in stages)]
    imports = [*_IMPORTS, *([_LIBDEVICE] if any("libdevice." in p for p in programs) else [])]
    callers = {p.name for p in (*kernel.inputs, *kernel.outputs)}
    workspaces = [(n, _nbytes(p)) for n, p in params.items() if n not in callers]
    return DeviceSource(
        "\n\n".join(["\n".join([*imports, ""]), *programs]),
        tuple(_entry(stage, params, sizes, is_wide) for stage in stages),
        tuple(workspaces),
        tuple(p.name for p in (*kernel.inputs, *kernel.outputs) if _is_in_vectors(p)),
        is_wide and all(s.program.has_wide_offsets for s in stages),
    )


def _entry(
    stage: Stage, params: Mapping[str, Param], sizes: Mapping[str, int], is_wide: bool
) -> Entry:
    kernel, program = stage.kernel, stage.program
    members = program.members
    constants: dict[str, int | str] = {}
    if members is not None:
        if program.pointers or program.strides or program.sizes:
            refuse(kernel.name, "a family of arrays beside others")
        is_divided = all(sizes[s] % DIVISOR == 0 for s in members.sizes)
        constants |= {"MEMBERS": power_of_two(members.count), "DIVISOR": DIVISOR**is_divided}
    total = 1
    for axis, lanes in program.blocks.items():
        if lanes is None:
            extent = int(evaluate(kernel.axis(axis).extent, sizes))
            lanes = power_of_two(max(extent, stage.schedule.whole[axis]))
        constants[f"BLOCK_{axis}"] = lanes
        total *= lanes
    if program.has_wide_offsets:
        constants[WIDE] = "tl.int64" if is_wide else "tl.int32"
    pointers = {f"ptr_{p}": f"*{_type_name(params[p].dtype)}" for p in program.pointers}
    numbers = dict.fromkeys(program.strides, "i64" if is_wide else "i32")
    numbers |= {f"size_{s}": "i64" if sizes[s] >= MIN_WIDE else "i32" for s in program.sizes}
    return Entry(
        program.name,
        constants,
        {**({} if members is None else {"ptr_members": "*i64"}), **pointers, **numbers},
        (
            *(() if members is None else ("ptr_members",)),
            *(f"ptr_{p}" for p in program.pointers if _is_in_vectors(params[p])),
        ),
        stage.schedule.warps_of(total),
        (_programs(stage),),
        (
            *(() if members is None else (Argument("table"),)),
            *(Argument("buffer", p) for p in program.pointers),
            *(Argument("stride", p, d) for p, d in program.strides.values()),
            *(Argument("size", s) for s in program.sizes),
        ),
        stage.schedule.stages,
        tuple(f"size_{s}" for s in program.sizes if sizes[s] and sizes[s] % DIVISOR == 0),
        tuple(f"ptr_{p}" for p in program.pointers if _is_near(params[p], sizes)),
        tuple(p.name for p in kernel.outputs),
    )


def _is_near(p: Param, sizes: Mapping[str, int]) -> bool:
    """Return whether 32 bits hold the offset in bytes of every element of a parameter."""
    return p.strides is None and int(evaluate(_nbytes(p), sizes)) <= MAX_OFFSET


def _is_in_vectors(p: Param) -> bool:
    """Return whether neighbouring elements of a parameter may be known to be adjacent."""
    return bool(p.shape) and (p.strides is None or 1 in p.strides)


def _programs(stage: Stage) -> Index:
    count: Index = 1
    for axis, lanes in stage.schedule.grid.items():
        extent = stage.kernel.axis(axis).extent
        count = mul(count, extent if lanes == 1 else floordiv(add(extent, lanes - 1), lanes))
    most = stage.schedule.programs
    return count if most is None else minimum(count, most)


def _nbytes(p: Param) -> Index:
    return mul(product(p.shape), p.dtype.itemsize)


def _type_name(dtype: DType) -> str:
    return _POINTERS.get(dtype.name, dtype.name)


def compile_source(
    source: DeviceSource, arch: str, compile_entry: Callable[[str, Entry, str], CompiledEntry]
) -> DeviceCode:
    """Compile the programs of a kernel and return its code.

    Raises the compiler's errors.
    """
    images: dict[bytes, int] = {}
    launches: list[Launch] = []
    facts: list[Mapping[str, Any]] = []
    workspaces = list(source.workspaces)
    for entry in source.entries:
        compiled = compile_entry(source.text, entry, arch)
        number = images.setdefault(compiled.image, len(images))
        scratch = [Argument("null")] * compiled.scratch_arguments
        if compiled.scratch_bytes:
            scratch[0] = Argument("scratch", f"scratch of {entry.symbol}")
            nbytes = mul(product(entry.grid), compiled.scratch_bytes)
            workspaces.append((scratch[0].name, add(nbytes, DESCRIPTOR_ALIGNMENT)))
        launches.append(
            Launch(
                compiled.symbol,
                entry.grid,
                compiled.threads,
                compiled.shared_bytes,
                (*entry.arguments, *scratch),
                number,
                entry.writes,
            )
        )
        facts.append(compiled.facts)
    return DeviceCode(
        tuple(images),
        arch,
        tuple(launches),
        tuple(workspaces),
        source.aligned,
        source.is_wide,
        {"entries": [dict(f) for f in facts]},
    )
