"""A handwritten report: a table look-up before a normalisation.

    k0: exp#0                        (x -> h, 12.6 MB)
    k1: gather#1 mean#2 sub#3        (h, i -> y)

`exp` and `gather` stay apart because fusing would compute rows again.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.explain.data import (
    FORMAT,
    VERSION,
    AxisData,
    BufferData,
    CompileData,
    DecisionData,
    EdgeData,
    KernelData,
    MemoryData,
    NodeData,
    OperatorData,
    ParamData,
    PassData,
    Place,
    RateData,
    ReportData,
    TargetData,
    TimeData,
    TotalData,
)

FILE = "/home/ann/model.py"
ROW = 4 * 768
H = 4096 * ROW


def place(line: int) -> Place:
    return Place(file=FILE, line=line, function="embed", text=f"line {line}")


def node(number, name, op, kind, inputs, kernels, line=None, *, dims=(4096, 768), output=False):
    label = name if kind in ("input", "constant") else f"{op}#{name[1:]}"
    return NodeData(
        id=number,
        name=name,
        label=label,
        op=op,
        attributes="",
        kind=kind,
        dtype="f32",
        shape=",".join("rc"[k] for k in range(len(dims))),
        dims=dims,
        nbytes=4 * _count(dims),
        inputs=inputs,
        output=output,
        kernels=kernels,
        place=place(line) if line else None,
    )


def _count(dims):
    total = 1
    for d in dims:
        total *= d
    return total


NODES = (
    node(0, "x", "input", "input", (), ()),
    node(1, "i", "input", "input", (), (), dims=(4096,)),
    node(2, "v0", "exp", "operator", (0,), (0,), 40),
    node(3, "v1", "gather", "operator", (2, 1), (1,), 41),
    node(4, "v2", "reduce.sum", "operator", (3,), (1,), 42, dims=(4096,)),
    node(5, "v3", "reshape", "view", (4,), (1,), 42, dims=(4096, 1)),
    node(6, "v4", "sub", "operator", (3, 5), (1,), 43, output=True),
    node(7, "1.0:f32", "constant", "constant", (), (2,), dims=()),
    node(8, "v5", "log", "operator", (1,), (2,), 50, dims=(4096,), output=True),
)


def decision(number, a, b, verdict, reason, code, sentence, **numbers):
    nodes = {n.name: n for n in NODES}
    usual = {
        "saves_bytes": 0,
        "saves_ns": 0.0,
        "costs_bytes": 0,
        "costs_ns": 0.0,
        "fused_ns": None,
        "split_ns": None,
        "terms": {},
        "details": {},
    }
    override = "`sm.config(must_fuse=[(a, b)])` or `SMELT_MUST_FUSE=a+b` fuses them."
    if verdict == "fused":
        override = "`sm.config(never_fuse=[(a, b)])` or `SMELT_NEVER_FUSE=a+b` keeps them apart."
    return DecisionData(
        id=number,
        a=a,
        b=b,
        a_label=nodes[a].label,
        b_label=nodes[b].label,
        a_node=nodes[a].id,
        b_node=nodes[b].id,
        verdict=verdict,
        code=code,
        reason=reason,
        sentence=sentence,
        override=override,
        a_place=nodes[a].place,
        b_place=nodes[b].place,
        **(usual | numbers),
    )


DECISIONS = (
    decision(0, "v1", "v2", "fused", "saves-traffic", "F101",
             "gather#1 is not written and read again: 25,165,824 bytes less",
             saves_bytes=2 * H, saves_ns=376_000.0, fused_ns=420_000.0, split_ns=796_000.0),
    decision(1, "v2", "v4", "fused", "row-in-fast-memory", "F108",
             "a row of 3,072 bytes stays in L1 and is swept 2 times",
             saves_bytes=H, saves_ns=180_000.0, fused_ns=450_000.0, split_ns=630_000.0,
             terms={"touch": 400_000.0, "arithmetic": 120_000.0, "launch": 2_000.0}),
    decision(2, "v0", "v1", "split", "index-depends-on-data", "F023",
             "each row of exp#0 would be computed 3.1 times, once for each use by index",
             saves_bytes=2 * H, saves_ns=376_000.0, costs_bytes=2 * H, costs_ns=910_000.0,
             fused_ns=1_334_000.0, split_ns=800_000.0),
)  # fmt: skip


def param(name, role, number):
    n = NODES[number]
    return ParamData(
        name=name,
        role=role,
        node=number,
        dtype=n.dtype,
        shape=n.shape,
        nbytes=n.nbytes,
        touched=n.nbytes // 4,
        touched_bytes=n.nbytes,
        exact=True,
    )


def kernel(number, operators, params, axes, ns, text, unfused, **more):
    read = sum(p.touched_bytes for p in params if p.role == "in")
    written = sum(p.touched_bytes for p in params if p.role == "out")
    usual = {"flops": 0, "transcendentals": 0, "transfers_unfused": len(params)}
    return KernelData(
        id=number,
        name=f"k{number}",
        kind="kernel",
        text=text,
        operators=tuple(OperatorData(node=n, recomputed=n == 4) for n in operators),
        places=tuple(dict.fromkeys(NODES[n].place for n in operators if NODES[n].place)),
        axes=axes,
        params=params,
        read_bytes=read,
        written_bytes=written,
        bytes=read + written,
        bytes_unfused=unfused,
        exact=True,
        transfers=len(params),
        level="dram",
        floor_ns=(read + written) / 67.0,
        predicted_ns=0.9 * ns,
        measured=TimeData(median_ns=ns, least_ns=0.95 * ns, runs=99),
        compile=CompileData(
            cache="miss",
            reason="no entry",
            lower_seconds=0.001,
            emit_seconds=0.03,
            load_seconds=None,
            ir_size=200,
            code_bytes=1500,
        ),
        **(usual | more),
    )


def axis(name, size, role, block=None):
    return AxisData(name=name, extent=name, size=size, role=role, block=block, parts=0)


GRID = (axis("r", 4096, "grid", 1), axis("c", 768, "grid", 4096))
KERNELS = (
    kernel(0, (2,), (param("x", "in", 0), param("y", "out", 2)), GRID, 440_000.0,
           "kernel k0(x: f32[r,c]) -> y: f32[r,c]\n  grid r, c/4096\n  v0 = x[r,c]\n"
           "  v1 = exp(v0)\n  y[r,c] = v1", 2 * H, transcendentals=H // 4),
    kernel(1, (3, 4, 5, 6), (param("t0", "in", 2), param("i", "in", 1), param("y", "out", 6)),
           (axis("r", 4096, "grid", 1), axis("c", 768, "tile")), 500_000.0,
           "kernel k1(t0: f32[r,c], i: i64[r]) -> y: f32[r,c]\n  grid r\n  v0 = i[r]\n"
           "  p1 = position(v0, size(r))\n  v2 = t0[p1,c]\n  v3 = sum(v2 over c)\n"
           "  v4 = v2 - v3\n  y[r,c] = v4", 6 * H, flops=2 * H // 4, transfers_unfused=8),
    kernel(2, (7, 8), (param("i", "in", 1), param("y", "out", 8)), (), 1_500.0,
           "kernel k2(i: f32[r]) -> y: f32[r]\n  grid r\n  y[r] = log(i[r])", 8 * 4096),
)  # fmt: skip
RATES = tuple(
    RateData(level=level, nbytes=n, read=g, write=g, copy=g)
    for level, n, g in (
        ("l1", 49152, 900.0),
        ("l2", 1 << 20, 500.0),
        ("l3", 1 << 25, 200.0),
        ("dram", None, 67.0),
    )
)

DATA = ReportData(
    format=FORMAT,
    version=VERSION,
    smelt="0.1.0",
    name="embed",
    text="graph embed(...)",
    plan="plan embed",
    sizes={"r": 4096, "c": 768},
    target=TargetData(
        name="Some CPU (1.2.3)", isa="avx512", vector_bytes=64, cores=2, measured=True,
        rates=RATES, gflops=576.0, dispatch_ns=500.0, launch_ns=2000.0,
    ),
    total=TotalData(
        operators=5, kernels=3, calls=0, bytes=sum(k.bytes for k in KERNELS),
        bytes_unfused=sum(k.bytes_unfused for k in KERNELS), exact=True, transfers=7,
        transfers_unfused=12, flops=2 * H // 4, transcendentals=H // 4,
        floor_ns=sum(k.floor_ns for k in KERNELS), predicted_ns=846_000.0,
        measured=TimeData(median_ns=945_000.0, least_ns=930_000.0, runs=99), compile_seconds=0.094,
    ),
    memory=MemoryData(argument=H + 16384, output=H + 16384, alias=0, temp=H, code=4500),
    passes=(PassData(name="cse", before=9, after=9, seconds=1e-5),),
    nodes=NODES,
    edges=tuple(
        EdgeData(
            producer=x, reader=n.id, nbytes=NODES[x].nbytes,
            kind="virtual" if NODES[x].kernels == n.kernels else "memory",
        )
        for n in NODES for x in n.inputs
    ),
    inputs=(0, 1),
    outputs=(6, 8),
    kernels=KERNELS,
    launches=((0, 2), (1,)),
    buffers=(BufferData(node=2, place="arena", nbytes=H, offset=0, first=0, last=1, reuses=None),),
    decisions=DECISIONS,
)  # fmt: skip


def without(*numbers: int) -> ReportData:
    """The report with only some of its decisions, renumbered."""
    kept = [d for d in DECISIONS if d.id not in numbers]
    return replace(DATA, decisions=tuple(replace(d, id=k) for k, d in enumerate(kept)))
