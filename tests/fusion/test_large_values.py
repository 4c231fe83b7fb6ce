"""What plans for GPUs store between kernels: no scores, and no logits of all tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.fusion.large_programs import PROGRAMS

import smelt as sm
from smelt import fusion, passes
from smelt.backend.gpus import gpu
from smelt.frontends.array.trace import Trace
from smelt.fusion.bitsets import Hints
from smelt.fusion.compose import SCARCE_CHUNKS, total_kept_bytes
from smelt.journal.facts import Journal
from smelt.tune.scheduled_gpu import ScheduledGpu, scheduled

TARGETS = ("h100", "a100", "4090", "b200", "mi300x")
LENGTH, HEADS = 4096, 16


def kept_bytes(function: Any, specs: list[str], machine: ScheduledGpu) -> int:
    return kept_by(sm.jit(function).lower(*map(sm.spec, specs)).trace, machine)


def kept_by(trace: Trace, machine: ScheduledGpu) -> int:
    """Return the bytes that a plan keeps between kernels, those of a chunk included."""
    graph = passes.run(trace.graph, Journal(), "eager", trace.hints, machine.tiling)
    plan = fusion.plan(graph, machine, Journal(), trace.hints)
    return total_kept_bytes(plan, Hints(trace.hints))


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.attention(q, k, v, causal=True)


def attention_gradient(q: Any, k: Any, v: Any, g: Any) -> Any:
    return sm.vjp(attention, q, k, v)[1](g)


def loss(x: Any, w: Any, labels: Any) -> Any:
    return sm.nn.cross_entropy(x @ w, labels)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [64, 128, 256, 512])
def test_attention_stores_no_scores(width: int, target: str):
    specs = [f"bf16[{HEADS},{LENGTH},{width}]"] * 3
    machine = scheduled(gpu(target))
    in_wider_types = 2 * 4 * (2 * HEADS * LENGTH * width)
    assert kept_bytes(attention, specs, machine) <= max(2 * machine.chunk_bytes, in_wider_types)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [64, 128])
def test_the_gradient_of_attention_stores_no_scores(width: int, target: str):
    specs = [f"bf16[{HEADS},{LENGTH},{width}]"] * 4
    scores = 4 * HEADS * LENGTH**2
    assert kept_bytes(attention_gradient, specs, scheduled(gpu(target))) < scores / 2


@pytest.mark.parametrize("width", [64, 128, 256])
def test_nothing_grows_with_the_scores_where_products_are_fast(width: int):
    specs = [f"bf16[{HEADS},{LENGTH},{width}]"] * 4
    assert kept_bytes(attention_gradient, specs, scheduled(gpu("h100"))) < LENGTH * HEADS * 64


@pytest.mark.parametrize("target", TARGETS)
def test_a_classifier_s_loss_stores_a_chunk_of_its_logits(target: str):
    tokens, words = 8192, 128256
    machine = scheduled(gpu(target))
    specs = [f"bf16[{tokens},4096]", f"bf16[4096,{words}]", f"i64[{tokens}]"]
    assert kept_bytes(loss, specs, machine) <= machine.chunk_bytes < 2 * tokens * words


@pytest.mark.parametrize(
    ("target", "tokens", "width", "words"),
    [("h100", 8192, 4096, 131072), ("4090", 4096, 2048, 65536)],
)
def test_gradients_of_a_classifier_with_few_tokens_store_no_logits(
    target: str, tokens: int, width: int, words: int
):
    """Chunks of tokens would add up the weights' gradient in as much memory as logits take."""
    machine = scheduled(gpu(target))
    specs = [f"bf16[{tokens},{width}]", f"bf16[{width},{words}]", f"i64[{tokens}]"]
    kept = kept_bytes(sm.value_and_grad(loss, (0, 1)), specs, machine)
    assert kept <= SCARCE_CHUNKS * machine.chunk_bytes < 2 * tokens * words


# ---- every form ----------------------------------------------------------------------------------


@cache
def recorded(name: str, dtype: str, *, backward: bool) -> Trace:
    program = PROGRAMS[name]
    specs = program.specs(dtype)
    code, specs = program.gradient(dtype) if backward else (program.code, specs)
    return sm.jit(code).lower(*specs).trace


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_form_stores_scores_or_logits(name: str, dtype: str, backward: bool, target: str):
    """A plan keeps a 64th of the device's memory, or arguments and results in wider types."""
    trace, machine = recorded(name, dtype, backward=backward), scheduled(gpu(target))
    passed = sum(n.type.nbytes for n in (*trace.graph.inputs, *trace.graph.outputs))
    assert kept_by(trace, machine) <= max(SCARCE_CHUNKS * machine.chunk_bytes, 2 * passed)
