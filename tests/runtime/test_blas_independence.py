"""No product uses NumPy or its BLAS, which may fail.

The reference semantics of operators are NumPy's; compiled programs have no part of them.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = """
import numpy as np

def refused(*args, **options):
    raise RuntimeError("a product of NumPy's")

for name in ("matmul", "dot", "einsum", "tensordot", "inner", "vdot"):
    setattr(np, name, refused)
import smelt as sm
rng = np.random.default_rng(0)

def drawn(*shape):
    return rng.standard_normal(shape).astype(np.float32)
"""
PROGRAMS = {
    "product": "sm.jit(lambda x, w: x @ w)(drawn(70, 50), drawn(50, 90))",
    "vector": "sm.jit(lambda x, w: x @ w)(drawn(300), drawn(300, 90))",
    "einsum": "sm.jit(lambda x, w: sm.einsum('ij,kj->ik', x, w))(drawn(9, 5), drawn(8, 5))",
    "lazy": "sm.asarray(drawn(40, 30)) @ sm.asarray(drawn(30, 20))",
    "convolution": "sm.jit(lambda x, w: sm.nn.conv(x, w))(drawn(2, 8, 20, 20), drawn(16, 8, 3, 3))",
    "attention": "sm.jit(sm.nn.attention)(*[drawn(2, 600, 32) for _ in range(3)])",
    "gradient": "sm.jit(sm.grad(lambda w: sm.sum((w @ w) ** 2)))(drawn(40, 40))",
}


def run_line(line: str) -> subprocess.CompletedProcess[str]:
    """What a process says in which the products of NumPy are refused."""
    code = f"{FORBIDDEN}\n{line}"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_compiled_products_are_ours(program: str) -> None:
    done = run_line(f"print(np.isfinite(np.asarray({program})).all())")
    assert done.stdout.strip() == "True", done.stderr


def test_the_check_can_fail() -> None:
    done = run_line("np.matmul(drawn(2, 2), drawn(2, 2))")
    assert "a product of NumPy's" in done.stderr
