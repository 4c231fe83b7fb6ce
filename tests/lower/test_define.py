"""Pulling back definitions: what is shared, what is guarded, where values come from."""

from __future__ import annotations

import sys

import pytest
from tests.codegen.llvm.single_kernel import one_cluster

from smelt import lower
from smelt.errors import VerifyError
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.kernel.ir import Apply, Const, Kernel, Let, Load, Position, Reduce, Store
from smelt.kernel.text import text


def lowered(source: str, rounding: str = "eager", **hints: int) -> Kernel:
    return lower.run(one_cluster(parse(source)), rounding, hints)


def body(lines: str, args: str = "x: f32[n,m]") -> str:
    return f"graph f({args}) {{\n{lines}\n}}"


def values(kernel: Kernel, kind: type) -> list[Let]:
    return [s for s in kernel.body if isinstance(s, Let) and isinstance(s.value, kind)]


def test_equal_values_are_built_once() -> None:
    """Two operators that compute the same element share it, through views that change nothing."""
    kernel = lowered(
        body(
            "a = exp(x)\nb = exp(x)\nc = permute(x) {perm=(1,0)}\nd = permute(c) {perm=(1,0)}\n"
            "e = exp(d)\nr = reshape(x) {shape=(n,m)}\ns = exp(r)\n"
            "g = add(a, b)\nh = add(g, e)\ni = add(h, s)\nreturn i"
        )
    )
    assert len(values(kernel, Load)) == 1
    assert [s.value.op for s in values(kernel, Apply)].count("exp") == 1


def test_equal_reductions_are_built_once() -> None:
    kernel = lowered(
        body(
            "a = reduce.sum(x) {axes=(1,)}\nb = reduce.sum(x) {axes=(1,)}\nc = mul(a, b)\nreturn c"
        )
    )
    assert len(values(kernel, Reduce)) == 1


def test_a_value_read_at_two_positions_is_built_for_both() -> None:
    kernel = lowered(body("a = exp(x)\nb = flip(a) {axes=(1,)}\nc = add(a, b)\nreturn c"))
    assert len(values(kernel, Load)) == 2
    assert [s.value.op for s in values(kernel, Apply)].count("exp") == 2


def test_reductions_along_one_dimension_share_its_axis() -> None:
    """Through elementwise operators, broadcasts and permutations, in any number."""
    kernel = lowered(
        body(
            "a = reduce.max(x) {axes=(1,)}\nb = reshape(a) {shape=(n,1)}\n"
            "c = sub(x, b)\nd = exp(c)\n"
            "e = permute(d) {perm=(1,0)}\ng = reduce.sum(e) {axes=(0,)}\n"
            "h = reduce.sum(d) {axes=(1,)}\ni = reduce.min(c) {axes=(1,)}\n"
            "j = add(g, h)\nk = add(j, i)\nreturn k"
        )
    )
    assert [a.name for a in kernel.axes] == ["n", "m"]
    assert {f.value.over for f in values(kernel, Reduce)} == {("m",)}
    assert len(values(kernel, Reduce)) == 3


def test_an_axis_in_use_is_not_used_again() -> None:
    """The gram matrix of rows with themselves needs two axes of one extent."""
    kernel = lowered(
        body(
            'a = contract(x, x) {spec="i,k; j,k -> i,j"}\nb = reduce.sum(a) {axes=(1,)}\n'
            "c = reshape(b) {shape=(n,1)}\nd = div(a, c)\nreturn d"
        )
    )
    assert [str(a.extent) for a in kernel.axes] == ["n", "n", "m"]
    assert [b.axis for b in kernel.grid] == ["n"]


@pytest.mark.parametrize(
    ("index", "guarded"),
    [
        ("slice(x) {starts=(1,0), sizes=(n - 1,m), steps=(1,1)}", False),
        ("slice(x) {starts=(n - 1,0), sizes=(n,m), steps=(-1,1)}", False),
        ("flip(x) {axes=(0,1)}", False),
        ("pad(x) {low=(0,0), high=(0,0), value=1.0}", False),
        ("pad(x) {low=(1,0), high=(0,0), value=1.0}", True),
        ("pad(x) {low=(0,0), high=(0,1), value=1.0}", True),
        ("concat(x, x) {axis=0}", True),
    ],
)
def test_only_open_ends_are_guarded(index: str, guarded: bool) -> None:
    kernel = lowered(body(f"a = {index}\nreturn a"))
    assert any(s.value.other is not None for s in values(kernel, Load)) == guarded


def test_the_padding_of_a_bare_load_belongs_to_the_load() -> None:
    """No comparison and no select: a masked load fills the margin."""
    kernel = lowered(body("a = pad(x) {low=(1,2), high=(0,3), value=0.5}\nreturn a"))
    assert not values(kernel, Apply)
    (load,) = values(kernel, Load)
    assert load.value.other == Const(0.5, kernel.inputs[0].dtype)


def test_padding_differs_by_the_sign_of_zero() -> None:
    kernel = lowered(
        body(
            "a = pad(x) {low=(1,0), high=(0,0), value=0.0}\n"
            "b = pad(x) {low=(1,0), high=(0,0), value=-0.0}\nc = sub(a, b)\nreturn c"
        )
    )
    assert len(values(kernel, Load)) == 2


def test_a_shared_position_is_computed_once() -> None:
    kernel = lowered(
        body(
            "a = gather(x, i) {first=0}\nb = exp(x)\nc = gather(b, i) {first=0}\nd = add(a, c)\n"
            "return d",
            "x: f32[n,m], i: i64[p]",
        )
    )
    assert sum(isinstance(s, Position) for s in kernel.body) == 1
    assert len(values(kernel, Load)) == 2


def test_a_reduction_under_a_gather_has_an_axis_of_its_own() -> None:
    """The rows that are summed are chosen along an axis of the same extent."""
    kernel = lowered(
        body(
            "a = gather(x, i) {first=0}\nb = reduce.sum(a) {axes=(1,)}\nreturn b",
            "x: f32[n,n], i: i64[n]",
        )
    )
    (fold,) = values(kernel, Reduce)
    assert fold.value.over == ("n2",)
    swapped = lowered(
        body(
            "b = reduce.sum(x) {axes=(1,)}\na = gather(b, i) {first=0}\nreturn a",
            "x: f32[n,n], i: i64[n]",
        )
    )
    assert text(swapped) == text(kernel)


def test_a_shifted_scan_is_refused() -> None:
    """The planner never asks for it; if it did, the answer would be wrong."""
    with pytest.raises(VerifyError, match="shifted"):
        lowered(body("a = scan.sum(x) {axis=1}\nb = flip(a) {axes=(1,)}\nreturn b"))


@pytest.mark.parametrize("rounding", ["eager", "fast", "exact"])
def test_half_values_are_rounded_unless_fast(rounding: str) -> None:
    source = body("a = mul(x, x)\nb = add(a, x)\nreturn b", "x: f16[n]")
    shown = text(lowered(source, rounding))
    assert shown.count("f16(") == (0 if rounding == "fast" else 2)


def test_values_know_their_operators() -> None:
    """`origin` numbers the operator of the cluster that a value came from."""
    graph: Graph = parse(body("a = exp(x)\nb = reduce.sum(a) {axes=(1,)}\nc = sqrt(b)\nreturn c"))
    cluster = one_cluster(graph)
    names = [n.op.name for n in cluster.nodes]
    kernel = lower.run(cluster, "eager", {})
    actual = [names[s.origin] for s in kernel.body if isinstance(s, Let)]
    assert actual == ["exp", "exp", "reduce.sum", "sqrt"]


def test_every_output_is_stored_once_under_its_own_name() -> None:
    kernel = lowered(body("a = exp(x)\nb = add(a, 1.0:f32)\nreturn a, b, a"))
    stores = [s for s in kernel.body if isinstance(s, Store)]
    assert [s.param for s in stores] == [p.name for p in kernel.outputs] == ["y0", "y1"]


def test_nothing_unread_is_left() -> None:
    """The first attempt of a guarded load is not in the kernel that people read."""
    for lines in (
        "a = pad(x) {low=(1,0), high=(0,1), value=2.0}\nreturn a",
        "a = concat(x, x) {axis=1}\nb = exp(a)\nreturn b",
    ):
        kernel = lowered(body(lines))
        shown = text(kernel)
        for s in kernel.body:
            if isinstance(s, Let):
                assert shown.count(s.name) > 1, shown


def test_long_chains_of_reductions_fit_the_stack() -> None:
    """Rows and columns are summed in turn; afterwards Python's limit is what it was."""
    limit = sys.getrecursionlimit()
    lines = ["v0 = exp(x)"]
    for k in range(limit // 8):
        shape = "(n,1)" if k % 2 else "(1,n)"
        lines.append(f"s{k} = reduce.sum(v{k}) {{axes=({k % 2},)}}")
        lines.append(f"r{k} = reshape(s{k}) {{shape={shape}}}")
        lines.append(f"v{k + 1} = div(v{k}, r{k})")
    lines.append(f"return v{limit // 8}")
    kernel = lowered(body("\n".join(lines), "x: f32[n,n]"), n=4)
    assert len(values(kernel, Reduce)) == limit // 8
    assert sys.getrecursionlimit() == limit
