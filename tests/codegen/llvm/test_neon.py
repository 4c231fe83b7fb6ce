"""Code for AArch64, run in an emulator, computes what interpreters do.

Here are the stored corpora, and cases of other modules' tests; `make nightly` runs those modules
whole.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.catalogue import harness
from tests.catalogue.rows import Row, draw, small
from tests.codegen.llvm import (
    emulate,
    test_contractions,
    test_dot_product,
    test_random,
)
from tests.codegen.llvm.guard_pages import KERNEL, Guarded, run_guarded
from tests.codegen.llvm.native import native, native_kernel
from tests.codegen.llvm.single_kernel import fuse, one_cluster
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes
from tests.lower.test_goldens import CASES, SIZES, Case, arrays_for

import smelt as sm
from smelt import knobs, lower
from smelt.codegen.build import asm_text, llvm_text
from smelt.errors import TargetError, UnsupportedError
from smelt.graph.text import parse as parse_graph
from smelt.kernel.interp import run as run_kernel
from smelt.kernel.text import parse
from smelt.machine.target import Isa, Target

NEON = Target.for_isa("neon")


# ---- the emulator --------------------------------------------------------------------------------


@emulate.needed
def test_memory_outside_of_buffers_is_forbidden() -> None:
    """The judge itself: a kernel that reads one element too many does not pass."""
    text = "kernel f(x: f32[n]) -> y: f32[n]\n  grid n/64\n  y[n] = x[n] * 2"
    kernel = native_kernel(parse(text), "neon")
    with Guarded() as memory:
        x = memory.copy(np.ones(8, "f4"), at_end=True)
        y = memory.array((9,), np.dtype("f4"), at_end=True)
        frame = memory.copy(np.array([x.ctypes.data, y.ctypes.data, 9], np.int64), at_end=True)
        (function,) = kernel.built.functions
        call = emulate.function(kernel.loaded.address(function.symbol), KERNEL)
        with pytest.raises(Exception, match="READ_UNMAPPED"):
            call(frame.ctypes.data, 0, 1, 0)


@emulate.needed
def test_lent_memory_ends_where_code_begins() -> None:
    """Pages behind what is touched may be those of the code, which the emulator has already."""
    machine = emulate.Machine.__new__(emulate.Machine)
    room = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(room))
    machine.lent, machine.pages = {}, [first + 2 * mmap.PAGESIZE]
    engine = SimpleNamespace(mem_map_ptr=lambda *_: None)
    assert machine.lend(engine, 0, first, 8, 0, None)
    assert machine.lent == {first: 2 * mmap.PAGESIZE}


# ---- corpora -------------------------------------------------------------------------------------


@emulate.needed
@pytest.mark.parametrize("name", [name for name in GOLDENS if name != "adamw"])
def test_golden_kernels_compute_their_reference(name: str) -> None:
    reference, kernel = REFERENCES[name], native(GOLDENS[name], "neon")
    repeated = {p.name for p in kernel.kernel.inputs if 0 in (p.strides or ())}
    for seed, scale in ((7, 2), (8, 5)):
        arrays = reference.inputs(np.random.default_rng(seed), scale)
        for key in repeated:
            arrays[key] = np.broadcast_to(arrays[key][:1], arrays[key].shape)
        for at_end in (True, False):
            actual = kernel(arrays, extra_sizes(name, arrays), at_end=at_end)
            for key, value in reference.outputs(**arrays).items():
                np.testing.assert_allclose(
                    actual[key].astype("f8"), value, rtol=reference.rtol, atol=reference.atol
                )


def test_families_have_no_back_end() -> None:
    with pytest.raises(UnsupportedError):
        native(GOLDENS["adamw"], "neon")


@emulate.needed
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file}-{c.name}")
def test_lowered_kernels_agree_with_the_interpreter(case: Case) -> None:
    kernel = fuse(case.source, "neon", **case.options())
    near = 2e-2 if "f16" in case.source else 2e-5
    for k, values in enumerate(SIZES):
        arrays = arrays_for(kernel, values, k)
        wanted = run_kernel(kernel.kernel, arrays, kernel.sizes(arrays))
        for p, actual in zip(kernel.kernel.outputs, kernel(*arrays), strict=True):
            np.testing.assert_allclose(
                actual.astype("f8"), wanted[p.name].astype("f8"), rtol=near, atol=near
            )


EVERY = 3
"""Of how many rows of the catalogue one runs by day."""
ROWS = [
    pytest.param(
        row, id=str(row), marks=[pytest.mark.nightly] if crc32(row.id.encode()) % EVERY else []
    )
    for name in ("a_elementwise", "b_reductions", "c_contractions", "d_convolutions", "f_losses")
    for row in import_module(f"tests.catalogue.test_{name}").ROWS
]


@emulate.needed
@pytest.mark.parametrize("row", ROWS)
def test_programs_of_the_catalogue(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned, compiled and run for the other machine, as whole programs."""
    monkeypatch.setattr(harness, "RUNS", NEON)
    monkeypatch.setattr(harness, "_COMPILED", {})
    with emulate.programs(), knobs.config(check_positions=False, cache=False):
        harness.check(harness.make(row), draw(row, small(row, 3)))


@emulate.needed
@pytest.mark.parametrize(("part", "hint"), [(5, 64), (6, 1 << 20)])
def test_random_programs(part: int, hint: int) -> None:
    test_random.test_any_program_is_one_kernel("neon", part, hint, streaming=part == 5)


# ---- products ------------------------------------------------------------------------------------

PAIRS = ("bf16 bf16", "i8 i8", "u8 i8", "u8 u8", "i16 i16")


@emulate.needed
@pytest.mark.parametrize(
    ("dtype", "usual"),
    [
        ("f4", True),
        *(pytest.param(*x, marks=pytest.mark.nightly) for x in (("f4", False), ("f8", True))),
    ],
)
def test_every_register_tile(dtype: str, usual: bool) -> None:
    """All sizes up to two tiles."""
    test_contractions.test_every_size_up_to_two_tiles("neon", dtype, usual)


@emulate.needed
@pytest.mark.parametrize(
    "pair", ["u8 i8", *(pytest.param(p, marks=pytest.mark.nightly) for p in PAIRS if p != "u8 i8")]
)
def test_every_register_tile_of_short_numbers(pair: str) -> None:
    """All sizes up to two tiles, with groups that dot-product instructions take."""
    test_dot_product.test_every_size_up_to_two_tiles(pair, "neon")


@emulate.needed
@pytest.mark.parametrize("isa", ["neon", "neon-bf16"])
@pytest.mark.parametrize("pair", [p for p in PAIRS if "bf" not in p])
def test_sums_of_extreme_bytes_are_exact(pair: str, isa: Isa) -> None:
    test_dot_product.test_extremes_are_exact(pair, isa)


@emulate.needed
@pytest.mark.parametrize("isa", ["neon", "neon-bf16"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("spec", test_dot_product.LAYOUTS)
def test_packed_operands_end_at_forbidden_pages(pair: str, spec: str, isa: Isa) -> None:
    """The second set has instructions that the emulator executes by models of them."""
    first, second = pair.split()
    kernel = test_dot_product.product_kernel(pair, spec, isa)
    for m, n, k in ((1, 1, 1), (13, 33, 17), (17, 65, 70)):
        x, y = test_dot_product.drawn(first, (m, k), m), test_dot_product.drawn(second, (k, n), n)
        right = test_dot_product.wanted(x, y)
        x = np.ascontiguousarray(x.T) if spec.startswith("k,m") else x
        y = np.ascontiguousarray(y.T) if "n,k" in spec else y
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x, y], at_end=at_end)
            assert np.array_equal(actual, right), (m, n, k)


# ---- rows that end inside of a vector ------------------------------------------------------------


def sum_of_rows(dtype: str) -> str:
    return f"graph f(x: {dtype}[m,n], y: {dtype}[n]) {{\n  v0 = add(x, y)\n  return v0\n}}"


@emulate.needed
@pytest.mark.parametrize("isa", ["neon", "portable"])
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f32", "f64"])
def test_rows_of_every_length_end_at_forbidden_pages(dtype: str, isa: Isa) -> None:
    kernel = fuse(sum_of_rows(dtype), isa)
    for n in range(1, 40):
        x = np.arange(3 * n).reshape(3, n).astype(kernel.graph.inputs[0].type.dtype.numpy)
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x, x[0]], at_end=at_end)
            assert np.array_equal(actual, x + x[0]), n


@pytest.mark.parametrize(
    "source",
    [
        sum_of_rows("f32"),
        sum_of_rows("i8"),
        test_contractions.matrices("f32", "m,k; n,k -> m,n").replace("[m,k]", "[3,k]"),
        'graph f(x: f32[m,k], y: f32[k]) { v0 = contract(x, y) {spec="m,k; k -> m"} return v0 }',
    ],
)
def test_ends_of_rows_are_accessed_in_runs(source: str) -> None:
    """Where no instruction takes a mask, LLVM would access each lane by itself."""
    kernel = lower.run(one_cluster(parse_graph(source)), "eager", {})
    assert "llvm.masked" not in llvm_text(kernel, NEON)
    assert "llvm.masked" not in llvm_text(kernel, Target.for_isa("portable"))
    assert "llvm.masked" in llvm_text(kernel, Target.for_isa("avx512"))


# ---- instructions --------------------------------------------------------------------------------


def mnemonics(source: str, isa: Isa) -> set[str]:
    """The instructions that a graph's kernel has on an instruction set."""
    kernel = lower.run(one_cluster(parse_graph(source)), "eager", {})
    text = asm_text(kernel, Target.for_isa(isa))
    by_element = r"^\s+(fmla)\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]"
    words = set(re.findall(r"^\s+([a-z]\w*)", text, flags=re.MULTILINE))
    return words | {f"{x} by element" for x in re.findall(by_element, text, flags=re.MULTILINE)}


def test_products_multiply_by_an_element() -> None:
    source = test_contractions.matrices("f32", "m,k; k,n -> m,n")
    assert "fmla by element" in mnemonics(source, "neon")


@pytest.mark.parametrize(
    ("pair", "isa", "instructions"),
    [
        ("i8 i8", "neon", {"sdot"}),
        ("u8 u8", "neon", {"udot"}),
        ("u8 i8", "neon", {"sdot"}),  # the left operand is packed with its sign flipped
        ("i8 u8", "neon", {"udot"}),
        ("u8 i8", "neon-bf16", {"usdot", "usmmla"}),
        ("i8 u8", "neon-bf16", {"usdot"}),
        ("i8 i8", "neon-bf16", {"sdot", "smmla"}),
        ("u8 u8", "neon-bf16", {"udot", "ummla"}),
        ("bf16 bf16", "neon-bf16", {"bfdot", "bfmmla"}),
    ],
)
def test_dot_product_instructions(pair: str, isa: Isa, instructions: set[str]) -> None:
    """Squares of sums take two units along k, and the last one a dot product."""
    dots = {"sdot", "udot", "usdot", "bfdot", "smmla", "ummla", "usmmla", "bfmmla"}
    assert dots & mnemonics(test_dot_product.source(pair), isa) == instructions


def test_what_no_instruction_multiplies_is_multiplied_as_it_is() -> None:
    dots = {"sdot", "udot", "usdot", "bfdot"}
    for pair in ("i16 i16", "bf16 bf16"):
        assert not dots & mnemonics(test_dot_product.source(pair), "neon")


# ---- without such a machine ----------------------------------------------------------------------


def linear(x: Any, w: Any) -> Any:
    return sm.nn.gelu(x @ w)


def test_any_host_explains_programs_for_it() -> None:
    """Decisions, LLVM and assembly; by the argument and by the setting."""
    specs = sm.spec((64, 96), sm.float32), sm.spec((96, 80), sm.float32)
    report = sm.explain(linear, *specs, target="neon")
    assert report.data.target.isa == "neon"
    assert report.decisions
    (kernel,) = report.kernels
    assert "fmla" in kernel.asm and "define" in kernel.llvm
    with sm.config(target="neon"):
        (kernel,) = sm.explain(linear, *specs).kernels
        assert "fmla" in kernel.asm
        if emulate.is_foreign(NEON):
            with pytest.raises(TargetError, match="aarch64"):
                sm.jit(linear)(np.ones((2, 3), "f4"), np.ones((3, 4), "f4"))
