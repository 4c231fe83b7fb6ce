"""Run plans by the printed files' own launchers in Triton's interpreter; fail on other numbers.

`python -m tests.frontends.torch.printed_in_interpreter` runs every program in a process of its own,
since Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import os
import warnings

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

from typing import Any
from unittest import mock

import numpy as np
import torch
from tests.codegen.triton_interpreter import repair
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import smelt as sm
from smelt.backend.gpus import gpu
from smelt.errors import FallbackWarning
from smelt.frontends.torch import printed_program as printed
from smelt.frontends.torch.backend import compile_traced
from smelt.frontends.torch.printed_program import printed_program

CPU = torch.device("cpu")


def softmax(x: Any) -> Any:
    return sm.nn.softmax(x * 2, axis=1)


def mlp(x: Any, w: Any, v: Any) -> Any:
    hidden = sm.tanh(x @ w)
    return hidden @ v, sm.sum(hidden, axis=0)


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.softmax(q @ k.T, axis=1) @ v


def loss_and_gradient(x: Any, w: Any) -> Any:
    return sm.value_and_grad(lambda w: sm.sum(sm.tanh(x @ w)))(w)


PROGRAMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "softmax": (softmax, ((5, 300),)),
    "mlp": (mlp, ((24, 40), (40, 33), (33, 17))),
    "attention": (attention, ((40, 16), (70, 16), (70, 16))),
    "gradient": (loss_and_gradient, ((20, 16), (16, 24))),
    "scan": (lambda x: sm.cumulative_sum(x, axis=0), ((300,),)),
}


def attention_gradient(q: Any, k: Any, v: Any, g: Any) -> Any:
    return sm.vjp(lambda *x: sm.nn.attention(*x, causal=True), q, k, v)[1](g)


PROGRAMS["attention gradient"] = attention_gradient, ((80, 16),) * 4
RECOMPUTED = ("attention gradient",)
"""Programs whose largest values are recomputed on a GPU with a small cache."""


def check(name: str) -> None:
    """Compare a plan's results with those of the compiled CPU program."""
    function, shapes = PROGRAMS[name]
    draw = np.random.default_rng(1).standard_normal
    arrays = [draw(s).astype(np.float32) for s in shapes]
    trace = sm.jit(function).lower(*arrays).trace
    machine = gpu("h100").with_cache(1 << 13) if name in RECOMPUTED else None
    program = printed_program(trace.graph, trace.hints, CPU, machine)
    stored = [s for s in program.values if s.place == "arena"]
    assert not machine or not any(s.shape[-2:] == (80, 80) for s in stored)
    sizes = tuple(trace.hints[n] for n in program.size_names)
    for _ in range(2):
        computed = program.run([torch.from_numpy(a) for a in arrays], sizes)
    by_value = {n: k for k, n in enumerate(_outputs(program))}
    results = [computed[by_value[n]].numpy() for n in program.outputs]
    wanted = sm.jit(function)(*arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for x, w in zip(results, wanted, strict=True):
        np.testing.assert_allclose(x, np.asarray(w), 1e-4, 1e-5)
    assert len(program.files) == len(program.recipe.steps), name


def check_library() -> None:
    """A product with nothing fused to it is torch's where the settings say so, and only there."""
    random = np.random.default_rng(2)
    x, w, b = (random.standard_normal(s).astype(np.float32) for s in ((40, 70), (30, 70), (30,)))
    for function, arrays, files in ((lambda x, w: x @ w.T, (x, w), 0), (biased, (x, w, b), 1)):
        trace = sm.jit(function).lower(*arrays).trace
        with sm.config(library_products="plain"):
            program = printed_program(trace.graph, trace.hints, CPU)
        sizes = tuple(trace.hints[n] for n in program.size_names)
        (y,) = program.run([torch.from_numpy(a) for a in arrays], sizes)
        np.testing.assert_allclose(y.numpy(), function(*arrays), 1e-4, 1e-5)
        assert len(program.files) == files


def check_race() -> None:
    """A product is torch's from the second call on where its first call found torch faster."""
    x, w = (torch.randn(s) for s in ((40, 70), (30, 70)))
    trace = sm.jit(lambda x, w: x @ w.T).lower(x.numpy(), w.numpy()).trace
    for ratio, calls in ((0.5, 3), (0.99, 1), (2.0, 1)):
        with (
            sm.config(library_products="auto", tune="race"),
            mock.patch.object(
                printed, "compare", lambda one, other, _, r=ratio: (one(), other(), r)[2]
            ),
            mock.patch.object(torch, "einsum", wraps=torch.einsum) as einsum,
        ):
            program = printed_program(trace.graph, trace.hints, CPU)
            sizes = tuple(trace.hints[n] for n in program.size_names)
            for _ in range(2):
                (y,) = program.run([x, w], sizes)
                torch.testing.assert_close(y, x @ w.T)
        assert einsum.call_count == calls


def biased(x: Any, w: Any, b: Any) -> Any:
    return x @ w.T + b


def _outputs(program: Any) -> list[int]:
    return [n for n, v in enumerate(program.values) if v.place == "output"]


def check_segment() -> None:
    """Compare a program that torch has traced on a GPU, with an argument that is transposed."""
    with FakeTensorMode():
        examples = [torch.empty(7, 40, device="cuda"), torch.empty(20, 40, device="cuda").T]
    graph = make_fx(lambda x, w: (torch.tanh(x @ w).T, x.sum(1)))(*examples)
    settings = {"strict": True, "device_launch": "torch"}
    x, w = torch.randn(7, 40), torch.randn(20, 40).T
    with (
        mock.patch.object(printed, "printed_program", lambda g, h, _: printed_program(g, h, CPU)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", FallbackWarning)
        y, total = compile_traced(graph, settings, "inference")([x, w])
    torch.testing.assert_close(y, torch.tanh(x @ w).T)
    torch.testing.assert_close(total, x.sum(1))


if __name__ == "__main__":
    repair()
    check_segment()
    check_library()
    check_race()
    for program_name in PROGRAMS:
        check(program_name)
        print(program_name)
