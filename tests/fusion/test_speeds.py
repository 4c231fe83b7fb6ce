"""Compare plans by assumed figures with plans by measured ones, on several classes of processors.

A program should get the same plan in the first process, before the machine is measured, as in
later ones. `MEASURED` are figures as measured, on quiet machines and busy ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import draw, record
from tests.catalogue.rows import small, wanted

import smelt as sm
from smelt import driver, fusion, knobs, passes
from smelt.explain.report import report
from smelt.explain.text import page
from smelt.fusion.text import text
from smelt.graph.ir import Graph
from smelt.instruction_sets import PROCESSORS, Isa
from smelt.journal import Journal
from smelt.runtime import figures
from smelt.runtime.figures import Sample
from smelt.target import LEVELS, Bandwidth, Rates, Target

MODULES = (
    *("a_elementwise", "b_reductions", "c_contractions", "d_convolutions", "e_attention"),
    *("e_backward", "f_losses", "f_splade", "g_training", "h_refusals"),
)
NARROW = ("haswell", "broadwell", "skylake", "znver2", "znver3")
"""Classes without AVX-512."""
Program = tuple[Graph, Mapping[str, int]]


def typical(cpu: str, cores: int = 2) -> Target:
    """A machine before it is measured."""
    is_arm, is_narrow = cpu.startswith("neoverse"), cpu in NARROW
    isa: Isa = "neon-bf16" if is_arm else "avx2" if is_narrow else "avx512"
    return Target.for_isa(isa, cores, cpu)


def attention(d: int) -> Any:
    return lambda q, k, v: sm.nn.softmax(q @ sm.matrix_transpose(k) * d**-0.5, axis=-1) @ v


def decoded(x: Any, q: Any, scale: Any) -> Any:
    """Multiply with weights of four bits, two in a byte, scaled in groups of 128."""
    w = sm.reshape(sm.stack([q & 15, q >> 4], axis=-1), (1024, 8, 128))
    w = (sm.astype(w, sm.float32) - 8.0) * scale[:, :, None]
    return x @ sm.matrix_transpose(sm.reshape(w, (1024, 1024)))


EXTRA: dict[str, tuple[Any, tuple[str, ...]]] = {
    **{f"attention {d}": (attention(d), (f"f32[1,8,1024,{d}]",) * 3) for d in (64, 128, 256)},
    **{
        f"int4 {n}": (decoded, (f"f32[{n},1024]", "uint8[1024,512]", "f32[1024,8]"))
        for n in (16, 256)
    },
    **{
        f"softmax {r} {c}": (lambda x: sm.nn.softmax(x, axis=0), (f"f32[{r},{c}]",))
        for r, c in ((100, 4096), (512, 768), (64, 1000))
    },
}


@cache
def programs() -> dict[str, Program]:
    """The catalogue's programs and those of `EXTRA`, after the passes."""
    result: dict[str, Program] = {}
    rounding = knobs.ROUNDING.get()
    for module in MODULES:
        for row in getattr(import_module(f"tests.catalogue.test_{module}"), "ROWS", ()):
            trace = record(row.code, draw(row, small(row, 3), "f32"))
            dims = [n for x in row.inputs for n in wanted(x, "f32").dims(row.sizes)]
            result[row.id] = passes.run(trace.graph, Journal(), rounding), _sizes(trace, dims)
    for name, (code, specs) in EXTRA.items():
        arguments = [sm.spec(s) for s in specs]
        trace = sm.jit(code).lower(*arguments).trace
        dims = [n for x in arguments for n in x.shape]
        result[name] = passes.run(trace.graph, Journal(), rounding), _sizes(trace, dims)
    return result


def _sizes(trace: Any, dims: Iterable[Any]) -> dict[str, int]:
    names = driver.input_size_names(trace.graph)
    return dict(zip(names, trace.match(*dims), strict=True))


@cache
def plans(machine: Target) -> dict[str, str]:
    with knobs.config(check_positions=False):
        return {
            name: text(fusion.plan(graph, machine, None, sizes))
            for name, (graph, sizes) in programs().items()
        }


def different(machine: Target, other: Target) -> set[str]:
    a, b = plans(machine), plans(other)
    return {name for name in a if a[name] != b[name]}


# ---- measured figures ----------------------------------------------------------------------------

# fmt: off
MEASURED: dict[str, dict[str, tuple[float, ...]]] = {
    # read, write, copy of each level with one thread, then with all; non-temporal store and copy;
    # nanoseconds of fma and exp; of a launch.
    "znver4": {  # two virtual cores, eight processes on them
        "one_thread": (
            218.2, 116.6, 231.9, 111.6, 107.9, 108.9,
            90.9, 81.0, 88.4, 29.6, 28.0, 27.3,
        ),
        "all_threads": (
            218.2, 116.6, 231.9, 111.6, 107.9, 109.9,
            90.9, 81.0, 88.4, 29.6, 28.1, 27.3,
        ),
        "rest": (52.9, 42.9, 0.2735, 2.865, 50.0),
    },
    "znver5": {  # two virtual cores of a quiet machine
        "one_thread": (
            580.0, 290.0, 580.0, 280.0, 280.0, 280.0,
            126.0, 125.0, 130.0, 38.0, 32.0, 44.0,
        ),
        "all_threads": (
            1160.0, 580.0, 1160.0, 560.0, 560.0, 560.0,
            235.0, 233.0, 243.0, 47.2, 34.0, 52.0,
        ),
        "rest": (44.0, 66.2, 0.1204, 1.3, 2000.0),
    },
}
# fmt: on
OTHER: dict[str, set[str]] = {"znver4": set(), "znver5": set()}
"""Class -> programs whose plan is another one once the machine is measured."""


def measured(cpu: str) -> Target:
    row, usual = MEASURED[cpu], typical(cpu)
    nt_store, nt_copy, fma, exp, launch = row["rest"]
    samples = {name: [Sample(1.0, 1.0, 0.0)] for name in figures.NAMES}
    for side in ("one_thread", "all_threads"):
        for name, value in zip(
            [n for n in figures.BANDWIDTHS if n.startswith(side)], row[side], strict=True
        ):
            samples[name] = [Sample(value, 1.0, 0.0)]
    named = {"nt_store_gbs": nt_store, "nt_copy_gbs": nt_copy, "op_ns.fma": fma}
    named |= {"op_ns.exp": exp, "launch_ns": launch}
    samples |= {name: [Sample(value, 1.0, 0.0)] for name, value in named.items()}
    target = figures.target_of(usual, samples)
    assert target is not None
    return target


def scaled(machine: Target, part: str, factor: float) -> Target:
    """A measured machine of which one part is `factor` times as fast as usual."""
    levels = {"the last-level cache": ("l3",), "main memory": ("dram",)}.get(part, ())
    levels = ("l1", "l2") if part == "the caches of a core" else levels

    def rates(side: Bandwidth) -> Bandwidth:
        return Bandwidth(
            *(
                Rates(*(x * factor for x in (r.read, r.write, r.copy))) if at in levels else r
                for at, r in ((at, side.at(at)) for at in LEVELS)
            )
        )

    memory = factor if part == "main memory" else 1.0
    return replace(
        machine,
        measured=True,
        one_thread=rates(machine.one_thread),
        all_threads=rates(machine.all_threads),
        nt_store_gbs=machine.nt_store_gbs * memory,
        nt_copy_gbs=machine.nt_copy_gbs * memory,
        fma_gflops=machine.fma_gflops * (factor if part == "arithmetic" else 1.0),
        launch_ns=machine.launch_ns / (factor if part == "launches" else 1.0),
    )


PARTS = ("arithmetic", "the caches of a core", "the last-level cache", "main memory", "launches")

# ---- the same plans ------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", MEASURED)
def test_the_first_process_plans_as_later_ones(cpu: str) -> None:
    machine = measured(cpu)
    assert different(typical(cpu), machine) == OTHER[cpu]
    assert bool(machine.speed_factors) or not OTHER[cpu], "the report says so"


@pytest.mark.parametrize("cpu", [name for name, row in PROCESSORS.items() if row.speeds])
def test_noise_changes_no_figure_to_plan_by(cpu: str) -> None:
    """Every figure apart may be off by 40 percent, and a part on average by a quarter."""
    rng, usual = np.random.default_rng(0), typical(cpu)
    for _ in range(20):
        noisy = usual
        for part in PARTS:
            noisy = scaled(noisy, part, float(rng.uniform(0.75, 1.33)))
        assert noisy.planning == replace(noisy, measured=True).planning == usual
        assert noisy.speed_factors == {}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_clearly_slower_counts_and_is_reported(part: str) -> None:
    usual = typical("znver5")
    slow = scaled(usual, part, 0.3)
    assert slow.speed_factors == {part: 0.25}
    assert slow.planning != usual
    assert slow.planning == scaled(usual, part, 0.22).planning, "in steps"


def test_launches_that_no_helper_took_part_in_say_nothing() -> None:
    assert scaled(typical("znver5"), "launches", 40.0).speed_factors == {}


def test_a_report_says_which_parts_are_unusual() -> None:
    machine = scaled(typical("znver5"), "main memory", 0.5)
    graph = sm.jit(sm.exp).lower(sm.spec("f32[1000]")).trace.graph
    compiled = driver.compile(graph, hints={}, journal=Journal(), target=machine)
    lines = page(report(compiled, {}).data, 2)
    assert "main memory: 2 times slower than usual for avx512" in lines


STORES_LITTLE = {
    "cascadelake": ("attention 256", "int4 16", "int4 256", "softmax 512 768"),
    "icelake-server": ("attention 256", "int4 16", "int4 256", "softmax 512 768"),
    "sapphirerapids": ("int4 16", "int4 256", "softmax 512 768"),
}
"""Class -> programs that assumed figures of another class stored large values of."""


@pytest.mark.parametrize("cpu", STORES_LITTLE)
def test_a_machine_that_is_not_measured_stores_no_decoded_weights(cpu: str) -> None:
    for name in STORES_LITTLE[cpu]:
        graph, sizes = programs()[name]
        plan = fusion.plan(graph, typical(cpu), None, sizes)
        stored = [n for c in plan.clusters for n in c.outputs if n not in plan.graph.outputs]
        assert all(len(n.type.shape) < 2 or n.type.shape[-1] == 1 for n in stored) or all(
            n.op.name.startswith("reduce") for n in stored
        ), f"{name} stores {[n.op.name for n in stored]}"
