"""Products by instructions that multiply matrices (AMX): every size, layout, extreme and end."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import SingleKernel, fuse, one_cluster
from tests.codegen.llvm.test_dot_product import (
    KINDS,
    LAYOUTS,
    MORE,
    PLAIN,
    VNNI,
    drawn,
    errs_as_float32_sums,
    grouped,
    lets_nan_and_infinity_travel,
    source,
    wanted,
)

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.graph.text import parse
from smelt.machine import processor
from smelt.machine.processor import Processor
from smelt.machine.target import Target

AMX = ("amx-bf16", "amx-int8", "amx-tile")
OF_BYTES = {"i8 i8": "tdpbssd", "i8 u8": "tdpbsud", "u8 i8": "tdpbusd", "u8 u8": "tdpbuud"}
PAIRS = ("bf16 bf16", *OF_BYTES)
runs = pytest.mark.skipif(
    not all(map(Target.host().has, AMX)), reason="the processor multiplies no matrices"
)


def product_kernel(pair: str, spec: str = PLAIN) -> SingleKernel:
    kernel = fuse(source(pair, spec), "avx512", usual=True, features=(*MORE, *AMX))
    assert by_matrices(kernel)
    return kernel


def by_matrices(kernel: SingleKernel) -> bool:
    results = [c for p in program(kernel.kernel).phases for c in schedule(p, kernel.target).blocked]
    return bool(results) and all(c.group is not None and c.group.matrix for c in results)


@runs
@pytest.mark.parametrize("pair", PAIRS)
def test_every_size_up_to_two_tiles(pair: str) -> None:
    """What is left over of rows, columns and summed positions, each beside the others."""
    kernel, (first, second) = product_kernel(pair), pair.split()
    together = 2 if first == "bf16" else 4
    depths = (1, 2, 3, 16 * together - 1, 16 * together, 16 * together + 1, 40 * together + 1)
    for k in (0, *depths):
        x, y = drawn(first, (70, k), k), drawn(second, (k, 70), k + 1)
        right = wanted(x, y)
        step = 1 if k == depths[-1] else 5
        for m, n in product(range(1, 70, step), range(1, 70, 7)):
            (actual,) = kernel(x[:m], np.ascontiguousarray(y[:, :n]))
            assert np.array_equal(actual, right[:m, :n]), (m, n, k)


@runs
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("spec", LAYOUTS)
def test_layouts_and_blocks_between_forbidden_pages(pair: str, spec: str) -> None:
    """Operands that are walked along or across, several blocks, nothing read beyond the end."""
    (first, second), kernel = pair.split(), product_kernel(pair, spec)
    sizes = ((1, 1, 1), (13, 33, 17), (40, 300, 70), (17, 65, 1029), (530, 270, 1100))
    for m, n, k in (*sizes, (45, 70, 1540)):
        x, y = drawn(first, (m, k), m), drawn(second, (k, n), n)
        right = wanted(x, y)
        x = np.ascontiguousarray(x.T) if spec.startswith("k,m") else x
        y = np.ascontiguousarray(y.T) if "n,k" in spec else y
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x, y], at_end=at_end)
            assert np.array_equal(actual, right), (m, n, k)


@runs
@pytest.mark.parametrize("pair", ["bf16 bf16", "u8 i8"])
def test_rows_are_read_in_place_or_packed(pair: str) -> None:
    """Rows at every alignment.

    They begin at a cache line or within one, their distances map to the same cache sets or not, and
    the last group may be partial.
    """
    kernel, (first, second) = product_kernel(pair), pair.split()
    assert all(
        c.units for p in program(kernel.kernel).phases for c in schedule(p, kernel.target).blocked
    )
    room = np.zeros(1 << 20, np.uint8)
    start = -room.ctypes.data % 64
    for nbytes, begin in product((64, 192, 4096, 4160, 70), (0, 2, 16)):
        m, k = 50, nbytes // KINDS[first].itemsize
        x, y = drawn(first, (m, k), k), drawn(second, (k, 70), k)
        lies = room[start + begin :][: x.nbytes].view(x.dtype).reshape(x.shape)
        lies[:] = x
        assert np.array_equal(kernel(lies, y)[0], wanted(x, y)), (nbytes, begin)


@runs
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("spec", [LAYOUTS[0], LAYOUTS[1]])
def test_few_rows(pair: str, spec: str) -> None:
    """The few for which nothing is packed, and those for which it is."""
    first, second = pair.split()
    kernel = fuse(source(pair, spec), "avx512", features=(*MORE, *AMX))
    for m, n, k in ((1, 70, 33), (6, 40, 515), (7, 40, 515), (16, 300, 70), (17, 33, 129)):
        x, y = drawn(first, (m, k), m), drawn(second, (k, n), n)
        right = wanted(x, y)
        y = np.ascontiguousarray(y.T) if "n,k" in spec else y
        for at_end in (False, True):
            assert np.array_equal(run_guarded(kernel, [x, y], at_end=at_end)[0], right), (m, n, k)


@runs
@pytest.mark.parametrize("pair", OF_BYTES)
def test_extremes_are_exact(pair: str) -> None:
    """No step saturates; sums that leave int32 wrap."""
    kernel = product_kernel(pair)
    first, second = (np.iinfo(KINDS[p]) for p in pair.split())
    for a, b in product((first.min, first.max), (second.min, second.max)):
        x, y = np.full((14, 1027), a, first.dtype), np.full((1027, 37), b, second.dtype)
        assert np.array_equal(kernel(x, y)[0], wanted(x, y)), (a, b)
    x, y = np.full((3, 1 << 18), first.max, first.dtype), np.full((1 << 18, 2), second.max)
    assert np.array_equal(kernel(x, y.astype(second.dtype))[0], wanted(x, y.astype(second.dtype)))


@runs
def test_error_is_that_of_float32_sums() -> None:
    errs_as_float32_sums(product_kernel("bf16 bf16"))


@runs
def test_nan_and_infinity_travel() -> None:
    lets_nan_and_infinity_travel(product_kernel("bf16 bf16"))


@runs
def test_computed_operands() -> None:
    """Zero points leave more than a byte; a clipped or chosen byte is one."""
    head = "graph f(x: i8[m,k], y: u8[k,n]) {\n a = cast(x) {dtype=i32}\n"
    tail = ' b = cast(y) {dtype=i32}\n s = contract(c, b) {spec="m,k; k,n -> m,n"}\n return s\n}'
    x, y = drawn("i8", (50, 170), 1), drawn("u8", (170, 50), 2)
    for code, does, fits in (
        (" c = max(a, 0:i32)\n", lambda v: np.maximum(v, 0), True),
        (" c = sub(a, 3:i32)\n", lambda v: v - 3, False),
    ):
        kernel = fuse(head + code + tail, usual=True, features=(*MORE, *AMX))
        assert grouped(kernel) and by_matrices(kernel) == fits
        assert np.array_equal(kernel(x, y)[0], does(x.astype("i8").astype("i4")) @ y.astype("i4"))


@pytest.mark.parametrize("pair", PAIRS)
def test_the_inner_loop_is_loads_and_products(pair: str) -> None:
    """On any machine: four products of two rows and two columns of tiles, each loaded once, of
    which those of the panels are not kept near; and every configuration is given back."""
    target = Target.for_isa("avx512")
    target = replace(target, features=(*target.features, *VNNI, *AMX))
    kernel = lower.run(one_cluster(parse(source(pair))), "eager", {})
    text = asm_text(kernel, target)
    step = OF_BYTES.get(pair, "tdpbf16ps")
    loops = re.findall(r"(?m)^\.LBB\S+:.*\n((?:\t(?!j)[^\n]*\n)+)\tj\w+\t", text)
    counts = {(len(re.findall(step, b)), len(re.findall("tileload", b))) for b in loops}
    assert (4, 4) in counts
    assert (2, 3) in counts  # a last band of one row of tiles
    assert {*re.findall(r"tileloaddt1\t.*%tmm(\d)", text)} == {"6", "7"}
    assert not re.search("vpdpbusd|vdpbf16ps", text)
    assert text.count("tilerelease") == 1
    reported = set(re.findall(r"tdp\w+", text))
    assert reported == {step}


def test_what_the_system_does_not_permit_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses tiles to processes whose threads leave too little room for interrupts."""
    actual = Processor(
        "x86_64-unknown-linux-gnu", "sapphirerapids", ("avx2", *AMX), ("avx512fp16",)
    )
    monkeypatch.setattr(processor, "_amx_permitted", lambda: False)
    kept = processor.permitted_processor(actual)
    assert kept.features == ("avx2",)
    assert kept.disabled == tuple(sorted(("avx512fp16", *AMX)))
    monkeypatch.setattr(processor, "_amx_permitted", lambda: True)
    assert processor.permitted_processor(actual) == actual


def test_narrower_vectors_have_no_matrices() -> None:
    """A machine may hide the widest vectors and show AMX; panels are as wide as vectors."""
    target = Target.for_isa("avx2")
    target = replace(target, features=(*target.features, "avxvnni", *AMX))
    for pair in PAIRS:
        kernel = lower.run(one_cluster(parse(source(pair))), "eager", {})
        assert "tdp" not in asm_text(kernel, target)
