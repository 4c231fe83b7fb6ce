"""Code of the scalar rows: no calls out of a kernel's loop, no surprises in hot functions."""

from __future__ import annotations

import re

import pytest
from tests.codegen.compile_scalar import row_assembly
from tests.codegen.scalar_values import operands

from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f16, f32, f64

LIBM = {f"{name}{suffix}" for name in ("sin", "cos", "tan", "fmod") for suffix in ("", "f")}
_CALL = {"avx512": r"\b(?:callq?|jmp)\s+\*?([\w.$]+)", "neon": r"\b(?:bl|b)\s+(?!\.L)([\w.$]+)"}
STORE = re.compile(r"vmov[ua]p[sd]\s+%[yz]mm\d+, (?!.*%rsp).*\(")
_ADDRESS = r"movabsq\s+\$([A-Za-z_]\w*),"


def calls(assembly: str, isa: str) -> set[str]:
    """Names of the functions that code jumps to or takes the address of."""
    pattern = _CALL["neon" if isa == "neon" else "avx512"]
    result = set(re.findall(pattern, assembly)) | set(re.findall(_ADDRESS, assembly))
    return {n for n in result if not re.match(r"smelt|\.L|f\d", n)}


def loop(assembly: str) -> list[str]:
    """The instructions of the first innermost loop that stores a vector."""
    for block in re.split(r"\n\.LBB\w+:", assembly):
        lines = [line.split("#")[0].strip() for line in block.splitlines()]
        code = [line for line in lines if line and not line.startswith(".")]
        if any(STORE.match(line) for line in code):
            return code
    raise AssertionError("no vector loop")


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("name", SCALARS)
def test_only_rare_cases_leave_the_kernel(name: str, isa: str) -> None:
    """Compiles for all back ends, foreign ones too, and calls nothing but four libm functions."""
    op = SCALARS[name]
    for dtypes in operands(op):
        if dtypes[op.rule.lead] not in (f16, f32, f64) and name not in ("philox", "and", "shl"):
            continue
        assembly = row_assembly(op, dtypes, 16 if isa == "avx512" else 8, isa)
        assert calls(assembly, isa) <= LIBM, dtypes


@pytest.mark.parametrize(
    ("name", "dtype", "isa", "most"),
    [
        ("exp", f32, "avx512", 18),
        ("log", f32, "avx512", 24),
        ("exp", f64, "avx512", 24),
        ("exp", f32, "avx2", 24),
        ("exp2", f32, "avx2", 22),
    ],
    ids=str,
)
def test_hot_loops_stay_short(name: str, dtype: DType, isa: str, most: int) -> None:
    """Instructions for one vector, loads, stores and copies included, loop control not."""
    lanes = (64 if isa == "avx512" else 128) // dtype.itemsize
    code = loop(row_assembly(SCALARS[name], (dtype,), lanes, isa))
    vector = [line for line in code if line.startswith("v")]
    stores = sum(bool(STORE.match(line)) for line in vector)
    assert len(vector) / stores <= most
    assert not any("div" in line or "cvt" in line for line in vector)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["log", "log2", "log10", "pow"])
def test_logarithms_do_not_divide(name: str, dtype: DType) -> None:
    """A division takes as long as thirty multiplications; a table in registers takes one."""
    operands = (dtype,) * SCALARS[name].arity
    assembly = row_assembly(SCALARS[name], operands, 64 // dtype.itemsize, "avx512")
    assert not re.search(r"vdivp[sd]", assembly)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_powers_of_e_that_are_zero_are_not_scaled(dtype: DType) -> None:
    """An instruction that underflows is handed to microcode, which takes a hundred cycles: lanes
    whose result rounds to 0 are masked out."""
    assembly = row_assembly(SCALARS["exp"], (dtype,), 64 // dtype.itemsize, "avx512")
    scaled = [line for line in assembly.splitlines() if "vscalefp" in line]
    assert scaled
    assert all("{z}" in line for line in scaled)
