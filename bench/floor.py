"""Measure the machine's floors: minimum costs of moving bytes, computing and calling.

python -m bench.floor             # measure now (about 2 s) and print
python -m bench.floor a1 tiny     # and the floors of these rows
"""

from __future__ import annotations

import sys

from bench.mover import Mover
from bench.table import NOTHING, Table, duration
from bench.workloads import WORKLOADS
from smelt.machine.target import LEVELS, Target
from smelt.runtime import probe
from smelt.runtime.probe import Kernels


def rates(target: Target) -> Table:
    """Return the bandwidth by level, for one thread and for all."""
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes, 0)
    rows: list[tuple[str, ...]] = []
    for level, size in zip(LEVELS, sizes, strict=True):
        one, many = target.one_thread.at(level), target.all_threads.at(level)
        capacity = f"{size // 1024} KiB" if size else NOTHING
        figures = (one.read, one.write, one.copy, many.read, many.write, many.copy)
        rows.append((level, capacity, *(f"{value:.0f}" for value in figures)))
    non_temporal = (f"{target.nt_store_gbs:.0f}", f"{target.nt_copy_gbs:.0f}")
    rows.append(("past the caches", NOTHING, *(NOTHING,) * 4, *non_temporal))
    headers = ("GB/s", "size", *(f"{kind}, 1" for kind in ("read", "write", "copy")))
    headers += tuple(f"{kind}, {target.cores}" for kind in ("read", "write", "copy"))
    return Table(f"Bandwidth: {target.name}, {target.isa}", headers, tuple(rows))


def costs(target: Target) -> Table:
    """Return the costs of whole-vector arithmetic on one core, and fixed overheads."""
    rows = [(f"{name}, one vector", duration(ns)) for name, ns in target.op_ns.items()]
    rows += [
        ("plan call from Python", duration(target.dispatch_ns)),
        ("fork and join of the pool", duration(target.launch_ns)),
        ("first touch, 1 MiB in 4 KiB pages", duration(target.page_fault_ns_per_byte * 2**20)),
        ("first touch, 1 MiB in huge pages", duration(target.huge_fault_ns_per_byte * 2**20)),
        ("machine code, one LLVM instruction", duration(target.compile_ns_per_instr)),
    ]
    title = f"Costs: {target.fma_gflops:.0f} GFLOP/s a core in multiply-adds"
    return Table(title, ("what", "time"), tuple(rows))


def row_floors(names: list[str], target: Target) -> Table:
    """Return the floor of some rows, each the best of ten short runs."""
    kernels = Kernels(target)
    rows: list[tuple[str, ...]] = []
    for name in names:
        row = WORKLOADS[name]
        if not row.floor:
            rows.append((row.title, NOTHING, NOTHING, NOTHING))
            continue
        arrays = row.arrays()
        read, written = row.traffic(arrays, row.reference(arrays))
        mover = Mover(kernels, read, written, target.cores)
        repeat = max(1, int(1e6 / mover.time_ns(10)))
        ns = min(mover.time_ns(repeat) for _ in range(10))
        moved = read + written
        rows.append((row.title, f"{moved / 2**20:.3g} MiB", duration(ns), f"{moved / ns:.0f}"))
    return Table("Floors", ("workload", "bytes", "floor", "GB/s"), tuple(rows))


def main(arguments: list[str]) -> None:
    """Print this machine's floors, and those of the named rows."""
    unknown = [name for name in arguments if name not in WORKLOADS]
    if unknown:
        sys.exit(f"unknown rows: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    target = probe.measure()
    print(rates(target).plain())
    print()
    print(costs(target).plain())
    if arguments:
        print()
        print(row_floors(arguments, target).plain())


if __name__ == "__main__":
    main(sys.argv[1:])
