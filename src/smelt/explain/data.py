"""Data model of a report: the source of its text, JSON and JSON schema.

Numbers are for the sizes of the report. Bytes are bytes, `_ns` are nanoseconds, `_seconds` seconds;
None stands for what was not measured or does not apply. References are indices: of a node in
`ReportData.nodes`, of a kernel in `kernels`, of a decision in `decisions`.

>>> to_data(Place(file="q.py", line=14, function="f", text="y = sm.exp(x)"))["line"]
14
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from smelt.explain.page_data import PageData
from smelt.python.dataclass import dataclass
from smelt.types import json_data

FORMAT = "smelt-report"
VERSION = "1.12"
"""Version of the JSON form: an incompatible change raises the first number, an addition the second.
"""

NodeKind = Literal["input", "constant", "source", "view", "operator", "call", "check"]
EdgeKind = Literal["virtual", "memory"]
Role = Literal["grid", "stream", "tile"]
Level = Literal["l1", "l2", "l3", "dram"]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's program."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeData:
    """A value of the graph after the passes.

    `name` is its name in the graph's text, `label` its name in decisions, and `words` are what the
    program calls it, as in `matmul`, `@`, `x @ w`. `kernels` compute it (several if it is
    recomputed, none if it is an input). `shape` is text over sizes, `dims` the numbers.
    """

    id: int
    name: str
    label: str
    op: str
    attributes: str
    kind: NodeKind
    dtype: str
    shape: str
    dims: tuple[int, ...]
    nbytes: int
    inputs: tuple[int, ...]
    output: bool
    kernels: tuple[int, ...]
    place: Place | None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeData:
    """`reader` reads `producer`: from memory, or `virtual` where the value stays in a kernel."""

    producer: int
    reader: int
    kind: EdgeKind
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisData:
    """An axis of a kernel and its role.

    `block` is its block length (None: not blocked), `parts` the number of grid parts that a
    streamed axis is split into (0: not split).
    """

    name: str
    extent: str
    size: int
    role: Role
    block: int | None
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamData:
    """An array that a kernel reads or writes.

    `node` is None for a value that only chunks have, such as the number of their first row; arrays
    of a chunk's kernel are blocks of rows of their nodes. `touched_bytes` counts distinct elements
    that it visits, an upper bound unless `exact`.
    """

    name: str
    role: Literal["in", "out"]
    node: int | None
    dtype: str
    shape: str
    nbytes: int
    touched: int
    touched_bytes: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorData:
    """A node in a kernel's execution order; `recomputed` if another kernel computes it too."""

    node: int
    recomputed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileData:
    """The compilation of a kernel. `cache` is hit-memory, hit-disk, miss, or none for a call."""

    cache: Literal["hit-memory", "hit-disk", "miss", "none"]
    reason: str
    lower_seconds: float | None
    emit_seconds: float | None
    load_seconds: float | None
    ir_size: int | None
    code_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeData:
    """Times of one launch: median and minimum over `runs` runs."""

    median_ns: float
    least_ns: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceData:
    """A GPU and its published rates; those of tensor cores are for bfloat16."""

    key: str
    name: str
    arch: str
    processors: int
    gbytes_per_second: float
    tensor_tflops: float
    float32_tflops: float
    cache_gbytes_per_second: float = 0.0
    """Of the cache that all processors share."""
    memory_bytes: int = 0
    """Bytes of its memory; 0 in reports of a version that did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceScheduleData:
    """A schedule of a launch: its blocks, why it is a candidate, and why it is not used."""

    blocks: str
    reason: str
    predicted_ns: float
    dropped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCodeData:
    """What a compiled program needs; it was compiled for the device and not run.

    `registers` and spilled bytes (`spills`) are a thread's, `shared_bytes` a program's. `occupancy`
    is the part of a processor's warps that run at a time. `instructions` counts telling mnemonics.
    """

    compiler: str
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    occupancy: float
    instructions: Mapping[str, int]
    assembly: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLaunchData:
    """A launch of a kernel: its schedule, its code where Triton is installed, other candidates."""

    name: str
    schedule: DeviceScheduleData
    code: DeviceCodeData | None
    candidates: tuple[DeviceScheduleData, ...]
    once: bool = False
    """Whether the first call alone makes it: what it computes follows from constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKernelData:
    """A kernel as a Triton file, or the reason why it is `refused`.

    `floor_ns` is the time for its bytes at the published rates, `cached_bytes` of which the plan
    leaves in the shared cache. `planned_ns` is the planner's prediction, which decided what is
    fused. `shared_with` are the kernels that share launches, this one among them, and
    `table_sources` the programs of these, in the first of them.
    """

    source: str | None
    refused: str | None
    floor_ns: float
    launches: tuple[DeviceLaunchData, ...] = ()
    cached_bytes: int = 0
    planned_ns: float | None = None
    shared_with: tuple[int, ...] = ()
    table_sources: tuple[str, ...] = ()
    table_launches: int = 0
    """Launches of the program and of those that fill its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelData:
    """A cluster: a kernel, a library call, a chunked part or a check.

    `kind` "call" is a library call, without text. `kind` "rounds" is a part that runs in row
    chunks; its numbers cover all `rounds` chunks. The kernels of a chunk follow all other entries,
    with the numbers of the first chunk; `within` is the index of the chunked entry. `kind` "loop"
    is a loop of `rounds` steps (1 if that is not known), with the kernels of one step in the same
    way. `kind` "check" only checks that the inputs are valid (indices inside of their axes).

    `transfers` count arrays read and written, `*_unfused` what the same operators would move
    unfused. `floor_ns` is the minimum time for its bytes at the bandwidth of `level`, the smallest
    memory that holds them; `predicted_ns` is the planner's model.
    """

    id: int
    name: str
    kind: Literal["kernel", "call", "rounds", "loop", "check"]
    text: str | None
    operators: tuple[OperatorData, ...]
    places: tuple[Place, ...]
    axes: tuple[AxisData, ...]
    params: tuple[ParamData, ...]
    read_bytes: int
    written_bytes: int
    bytes: int
    bytes_unfused: int
    exact: bool
    transfers: int
    transfers_unfused: int
    flops: int
    transcendentals: int
    level: Level
    floor_ns: float
    predicted_ns: float | None
    measured: TimeData | None
    compile: CompileData
    within: int | None = None
    rounds: int = 1
    device: DeviceKernelData | None = None
    """The program of a device; None unless the report is for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferData:
    """The storage of a value, from writing kernel `first` to last reader `last`.

    `offset` is in bytes from the start of the arena, or of the result `within` whose memory holds
    the value until that result is written; None elsewhere. `reuses` is the node whose memory is
    overwritten in place.
    """

    node: int
    place: Literal["input", "output", "arena", "within"]
    nbytes: int
    offset: int | None
    first: int
    last: int
    reuses: int | None
    within: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantData:
    """A value computed from constant inputs alone, and whether it is `kept` between calls.

    `what` is "packed" or "computed"; keeping it takes `nbytes`, with `room` left in the budget, and
    saves about `saves_ns` per call.
    """

    value: str
    what: str
    nbytes: int
    saves_ns: float
    kept: bool
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderData:
    """The memory layout of results of `windows` windowed reductions: channels `last` or first.

    `first_ns` and `last_ns` are the predicted times of what differs between the two.
    """

    windows: int
    last: bool
    first_ns: float
    last_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryData:
    """Whether `library` computes the product `value` instead of a kernel, and why in words.

    `shape` is the stack, rows, columns and summed terms. `own_ns` and `library_ns` are the
    predicted times of the product alone, where they are known.
    """

    value: str
    library: str
    shape: tuple[int, ...]
    taken: bool
    reason: str
    own_ns: float | None
    library_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionData:
    """A candidate fusion, in the planner's order.

    `a` and `b` are names that the settings must_fuse and never_fuse take; `a_node` and `b_node`
    their nodes, where they are unique; `a_label` and `b_label` the labels of these. `terms` are the
    parts of the fused kernel's predicted time in ns; the rest is as in
    `smelt.journal.facts.Decision`.
    """

    id: int
    a: str
    b: str
    a_label: str
    b_label: str
    a_node: int | None
    b_node: int | None
    verdict: Literal["fused", "split"]
    code: str
    reason: str
    sentence: str
    override: str
    saves_bytes: int
    saves_ns: float
    costs_bytes: int
    costs_ns: float
    fused_ns: float | None
    split_ns: float | None
    a_place: Place | None
    b_place: Place | None
    terms: dict[str, float]
    details: dict[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassData:
    """A pass: nodes before and after, and its time."""

    name: str
    before: int
    after: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateData:
    """Bandwidth of a memory level with all threads, in GB/s."""

    level: Level
    nbytes: int | None
    read: float
    write: float
    copy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetData:
    """The machine: roofs of the roofline, `measured` here or assumed."""

    name: str
    isa: str
    vector_bytes: int
    cores: int
    measured: bool
    rates: tuple[RateData, ...]
    gflops: float
    dispatch_ns: float
    launch_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryData:
    """Bytes of a call, named as in JAX.

    `computed` and `packed` are values computed once from constant inputs and kept between calls.
    """

    argument: int
    output: int
    alias: int
    temp: int
    code: int
    computed: int = 0
    packed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalData:
    """Sums over all kernels, as often as they run.

    `kernels` counts those of a chunked part once, `bytes` only its traffic with the outside: what a
    chunk holds stays in cache. `operators` excludes views, constants and positions. Checks count in
    times only.
    """

    operators: int
    kernels: int
    calls: int
    bytes: int
    bytes_unfused: int
    exact: bool
    transfers: int
    transfers_unfused: int
    flops: int
    transcendentals: int
    floor_ns: float
    predicted_ns: float | None
    measured: TimeData | None
    compile_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """All data about a compiled function at given sizes."""

    format: str
    version: str
    smelt: str
    name: str
    text: str
    plan: str
    sizes: dict[str, int]
    target: TargetData
    total: TotalData
    memory: MemoryData
    passes: tuple[PassData, ...]
    nodes: tuple[NodeData, ...]
    edges: tuple[EdgeData, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernels: tuple[KernelData, ...]
    launches: tuple[tuple[int, ...], ...]
    buffers: tuple[BufferData, ...]
    decisions: tuple[DecisionData, ...]
    constants: tuple[ConstantData, ...] = ()
    checks: tuple[int, ...] = ()
    """Nodes computed only to check the inputs, in addition to `outputs`."""
    orders: tuple[OrderData, ...] = ()
    libraries: tuple[LibraryData, ...] = ()
    page: PageData | None = None
    """What only the page shows; None unless it was requested."""
    device: DeviceData | None = None
    """The GPU that the programs of the kernels are for; None for a report on the CPU alone."""


def to_data(value: Any) -> Any:
    """Return dicts, lists and scalars for `json` with all fields."""
    return json_data.to_data(value, full=True)
