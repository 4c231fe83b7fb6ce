"""Which kernels of a GPU torch's own product computes."""

from __future__ import annotations

import pytest

from smelt.frontends.torch.printed_program import product_einsum
from smelt.kernel.text import parse

HEAD = "kernel p(x: {0}[m,k], w: {0}[k,n]) -> y: {0}[m,n]\n  grid m, n\n"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_product_is_an_einsum(dtype):
    kernel = parse(f"{HEAD.format(dtype)}  y[m,n] = dot(x[m,k], w[k,n] over k as {dtype})")
    equation, operands = product_einsum(kernel)
    left, right, result = equation.replace("->", ",").split(",")
    assert operands == (0, 1) and left[1] == right[0] and result == left[0] + right[1]


def test_a_product_that_is_summed_in_blocks_is_an_einsum():
    kernel = parse(
        f"{HEAD.format('f32')}  stream k/64 with s = 0 [m,n]\n"
        "    s' = s + dot(x[m,k], w[k,n] over k)\n  y[m,n] = s"
    )
    assert product_einsum(kernel) is not None


@pytest.mark.parametrize(
    "body",
    [
        "y[m,n] = dot(x[m,k], w[k,n] over k) * 2",
        "y[m,n] = exp(dot(x[m,k], w[k,n] over k))",
        "y[m,n] = dot(x[m,k] + 1, w[k,n] over k)",
        "y[m,n] = dot(x[m,k], w[k,n] over k) + x[m,n]",
        "y[m,n] = x[m,0] * w[0,n]",
    ],
)
def test_a_kernel_with_other_operators_is_ours(body):
    assert product_einsum(parse(f"{HEAD.format('f32')}  {body}")) is None


def test_a_result_of_another_type_is_ours():
    text = "kernel p(x: bf16[m,k], w: bf16[k,n]) -> y: f32[m,n]\n  grid m, n\n"
    assert product_einsum(parse(f"{text}  y[m,n] = dot(x[m,k], w[k,n] over k)")) is None
