"""Random loops: graph interpreter, kernel interpreter, native code, and NumPy agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.oracles import agree, compiled, kernels_agree

from smelt.fusion.text import parse as parse_plan
from smelt.fusion.text import text as plan_text
from smelt.graph import interp
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.graph.verify import verify

Array = np.ndarray[Any, Any]
_FLOATS = ("f32", "f64", "f16", "bf16")
_UNARY = ("tanh", "neg", "abs", "sin", "sigmoid")
_BINARY = ("add", "sub", "mul", "max", "min")


@st.composite
def loop_texts(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """The text of a graph with one loop, the dtype, and the operators of its step.

    The carries and slices have the shape [n,m]; constants are broadcast.
    """
    dtype = draw(st.sampled_from((*_FLOATS, "i32", "i64", "u8")))
    is_float = dtype in _FLOATS
    carries = draw(st.integers(1, 3))
    slices = draw(st.integers(0, 2))
    constants = draw(st.lists(st.sampled_from(("[m]", "[n,m]", "[]", "[n,1]")), max_size=2))
    mixes = draw(st.booleans())  # an operator that reads other elements of a carry
    values = [f"c{k}" for k in range(carries)] + [f"x{k}" for k in range(slices)]
    full = list(values)
    values += [f"k{k}" for k in range(len(constants))]
    lines: list[str] = []
    operators: list[str] = []
    for k in range(draw(st.integers(1, 6))):
        name = f"v{k}"
        first = draw(st.sampled_from(full))  # the result has the full shape
        if is_float and draw(st.booleans()):
            op = draw(st.sampled_from(_UNARY))
            lines.append(f"{name} = {op}({first})")
        else:
            op = draw(st.sampled_from(_BINARY))
            lines.append(f"{name} = {op}({first}, {draw(st.sampled_from(values))})")
        operators.append(op)
        full.append(name)
        values.append(name)
    if mixes:
        lines.append(f"mixed = flip({full[-1]}) {{axes=(0,)}}")
        full.append("mixed")
    outputs = [draw(st.sampled_from(full)) for _ in range(carries)]
    stacked = [draw(st.sampled_from(full)) for _ in range(draw(st.integers(0, 2)))]
    body_inputs = [f"{v}: {dtype}[n,m]" for v in full[: carries + slices]]
    body_inputs += [f"k{k}: {dtype}{shape}" for k, shape in enumerate(constants)]
    step = [f"graph step({', '.join(body_inputs)}) {{", *lines]
    step += [f"return {', '.join([*outputs, *stacked])}", "}"]
    reverse = str(draw(st.booleans())).lower()
    wanted = draw(
        st.lists(
            st.integers(0, 2 * carries + len(stacked) - 1), min_size=1, max_size=4, unique=True
        )
    )
    operands = [f"c{k}: {dtype}[n,m]" for k in range(carries)]
    operands += [f"x{k}: {dtype}[t,n,m]" for k in range(slices)]
    operands += [f"k{k}: {dtype}{shape}" for k, shape in enumerate(constants)]
    operands += [f"length: {dtype}[t]"] if not slices else []
    arguments = ", ".join(x.partition(":")[0] for x in operands if not x.startswith("length"))
    before = [f"u{k} = add(x{k}, x{k})" for k in range(slices) if draw(st.booleans())]
    for line in before:  # neighbours that become a part of the step
        arguments = arguments.replace(line[-3:-1], line[:2])
    loops = [
        f"r{which} = loop({arguments}) {{carries={carries}, slices={slices}, length=(t,),"
        f' reverse={reverse}, which={which}, names=("n", "m"), sizes=(n, m),'
        f" body={chr(10).join(step)}}}"
        for which in wanted
    ]
    after = [which for which in wanted if draw(st.booleans())]
    readers = [f"w{which} = mul(r{which}, r{which})" for which in after]
    results = ", ".join(f"{'w' if which in after else 'r'}{which}" for which in wanted)
    lines = [f"graph f({', '.join(operands)}) {{", *before, *loops, *readers]
    return (
        "\n".join([*lines, f"return {results}", "}"]),
        dtype,
        operators,
    )


def _arrays(graph: Graph, sizes: dict[str, int], seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for x in graph.inputs:
        shape = tuple(d if isinstance(d, int) else sizes[str(d)] for d in x.type.shape)
        kind = x.type.dtype
        values = rng.normal(size=shape) if kind.is_float else rng.integers(0, 7, size=shape)
        arrays.append(np.asarray(values).astype(kind.numpy))
    return arrays


@settings(max_examples=60, deadline=None)
@given(
    loop_texts(),
    st.sampled_from((0, 1, 2, 5)),
    st.integers(1, 3),
    st.sampled_from((1, 5, 70)),
    st.integers(0, 99),
)
def test_judges_agree(
    source: tuple[str, str, list[str]], t: int, n: int, m: int, seed: int
) -> None:
    """Whatever a step computes, of any length; the texts of graph and plan read back."""
    graph = parse(source[0])
    verify(graph)
    assert text(parse(text(graph))) == text(graph)
    sizes = {"t": t, "n": n, "m": m}
    arrays = _arrays(graph, sizes, seed)
    with np.errstate(all="ignore"):
        expected = interp.run(graph, arrays, sizes)
    program, results = compiled(graph, arrays, sizes, verify=True)
    allowed = _tolerances(graph, arrays, sizes, expected)
    for name, want, got, tolerance in zip(graph.outputs, expected, results, allowed, strict=True):
        assert agree(want, got, tolerance) == "", (name, source[0])
    assert kernels_agree(program, arrays, sizes, allowed) == ""
    plan = plan_text(program.plan)
    assert plan_text(parse_plan(plan, program.plan.graph)) == plan


def _tolerances(
    graph: Graph, arrays: list[Array], sizes: dict[str, int], expected: list[Array]
) -> list[Array]:
    """What results move by if the operands do, as after each step: half types round a lot."""
    moved = [np.zeros(e.shape) for e in expected]
    rng = np.random.default_rng(0)
    for _ in range(3):
        others = [
            (a.astype(np.float64) * (1 + rng.uniform(-8, 8, a.shape) * _eps(a))).astype(a.dtype)
            if a.dtype.kind not in "iub"
            else a
            for a in arrays
        ]
        with np.errstate(all="ignore"):
            disturbed = interp.run(graph, others, sizes)
            for k, (d, e) in enumerate(zip(disturbed, expected, strict=True)):
                gap = np.abs(d.astype(np.float64) - e.astype(np.float64))
                moved[k] = np.maximum(moved[k], np.where(np.isnan(gap), np.inf, gap))
    return [
        32 * gap + np.abs(np.nan_to_num(e.astype(np.float64))) * 64 * _eps(e)
        for gap, e in zip(moved, expected, strict=True)
    ]


def _eps(a: Array) -> float:
    if a.dtype.kind in "iub":
        return 0.0
    return {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-7}[a.dtype.itemsize]
