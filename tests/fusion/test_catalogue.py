"""The catalogue's rows as plans: kernels and bytes are exact."""

from __future__ import annotations

import pytest
from tests.fusion.formulas import MACHINE, Formula, between, calls, kernels, reasons

from smelt.fusion import plan
from smelt.types.dtype import i64
from smelt.types.expr import size

N, M = 4096, 2048
X = 4 * N * M
"""Bytes of one large array."""


def formula() -> Formula:
    return Formula(n=N, m=M)


# ---- A: elementwise, broadcast, views ----------------------------------------------------------


def test_a1_chain_of_three():
    g = formula()
    x, b = g.input("x", "n", "m"), g.input("b", "n", "m")
    fused_plan = g.plan(g.of("log", g.of("max", g.of("add", x, b), 0.0)))
    assert kernels(fused_plan) == 1
    assert g.bytes(fused_plan) == (3 * X, 7 * X)


def test_a1_with_a_row():
    g = formula()
    x, b = g.input("x", "n", "m"), g.input("b", "m")
    fused_plan = g.plan(g.of("log", g.of("max", g.of("add", x, b), 0.0)))
    assert g.bytes(fused_plan) == (2 * X + 4 * M, 6 * X + 4 * M)


def test_a2_constants_cost_nothing():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.of("add", g.of("max", g.of("mul", x, 2.0), 0.0), 1.0))
    assert (kernels(fused_plan), g.bytes(fused_plan)) == (1, (2 * X, 6 * X))


def test_a3_two_results_of_one_value():
    g = formula()
    x = g.input("x", "n", "m")
    a = g.of("exp", x)
    fused_plan = g.plan(g.of("add", a, 1.0), g.of("mul", a, 3.0))
    assert kernels(fused_plan) == 1
    assert g.bytes(fused_plan) == (3 * X, 6 * X)
    assert a not in fused_plan.clusters[0].outputs


def shared_by_two_sides_of_a_call(g: Formula, dear: bool):
    """`a` is read before a library call and again after it."""
    x = g.input("x", "n", "m")
    a = g.of("add", x, 1.0)
    for _ in range(12 if dear else 0):
        a = g.of("erf", a)
    return a, g.of("add", g.sort(g.of("square", a)), g.of("abs", a))


@pytest.mark.parametrize("dear", [False, True])
def test_a4_cheap_values_are_recomputed_and_expensive_ones_stored(dear: bool):
    g = formula()
    a, y = shared_by_two_sides_of_a_call(g, dear)
    fused_plan = g.plan(y)
    assert (kernels(fused_plan), calls(fused_plan)) == (2, 1)
    again = [c for c in fused_plan.clusters if a in c.recomputed]
    written = [c for c in fused_plan.clusters if a in c.outputs]
    assert bool(again) == (not dear)
    assert bool(written) == dear
    about = {d.reason for d in fused_plan.decisions if d.reason.startswith("recompute")}
    assert about == ({"recompute-dear"} if dear else {"recompute-cheap"})


def test_a5_independent_updates_start_together():
    g = Formula()
    rate = g.input("rate")
    results = []
    for k in range(100):
        p, d = g.input(f"p{k}", 10 + k), g.input(f"d{k}", 10 + k)
        results.append(g.of("sub", p, g.of("mul", d, rate)))
    fused_plan = g.plan(*results)
    assert len(fused_plan.launches) == 1
    assert kernels(fused_plan) == 100


def test_a6_views_between_operators():
    g = formula()
    x = g.input("x", "n", "m")
    a = g.reshape(g.permute(g.of("exp", x), 1, 0), size("n") * size("m"))
    b = g.flip(g.of("abs", a), 0)
    c = g.pad(g.of("neg", g.cut(b, 0, 1, size("n") * size("m") - 2)), (1,), (1,))
    fused_plan = g.plan(g.of("add", c, 1.0))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X)


def test_a6_concatenated_pieces_are_written_once():
    g = formula()
    x, y = g.input("x", "n", "m"), g.input("y", "n", "m")
    fused_plan = g.plan(g.concat(0, g.of("neg", x), g.of("abs", y)))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 4 * X)


def test_a7_views_grouped_either_way():
    plans: list[tuple[int, int]] = []
    for early in (True, False):
        g = formula()
        x, w, y = g.input("x", "n", "m"), g.input("w", "m", "m"), g.input("y", "n", "m")
        product = g.matmul(x, w)
        if early:
            product, y = (g.reshape(v, "n", 1, "m") for v in (product, y))
        total = g.of("add", product, y)
        fused_plan = g.plan(total if early else g.reshape(total, "n", 1, "m"))
        plans.append((len(fused_plan.clusters), g.bytes(fused_plan)[0]))
    assert plans[0] == plans[1]


def test_a8_transposed_copy_of_a_computed_value():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.permute(g.of("exp", x), 1, 0))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X)


def test_a9_rotary_embedding():
    g = Formula(b=32, s=512)
    x, c, s = g.input("x", "b", "s", 64), g.input("c", "s", 64), g.input("si", "s", 64)
    first, second = g.cut(x, 2, 0, 32), g.cut(x, 2, 32, 32)
    transposed = g.concat(2, g.of("neg", second), first)
    fused_plan = g.plan(g.of("add", g.of("mul", x, c), g.of("mul", transposed, s)))
    assert kernels(fused_plan) == 1
    assert g.bytes(fused_plan)[0] == 4 * 64 * (2 * 32 * 512 + 2 * 512)


def test_a11_the_order_of_statements_changes_nothing():
    texts = []
    for swapped in (False, True):
        g = formula()
        x, y = g.input("x", "n", "m"), g.input("y", "n", "m")
        a, b = (g.of("exp", x), g.of("abs", y)) if not swapped else (g.of("abs", y), g.of("exp", x))
        if swapped:
            a, b = b, a
        fused_plan = g.plan(g.fold("sum", g.of("mul", a, b), 1), a)
        texts.append((kernels(fused_plan), g.bytes(fused_plan)))
    assert texts[0] == texts[1]
    assert texts[0][0] == 1


def test_a12_random_bits_are_part_of_their_readers():
    g = formula()
    x, key = g.input("x", "n", "m"), g.input("key", dtype=i64)
    at = g.of("add", g.iota("n", "m", axis=0), g.of("mul", g.iota("n", "m", axis=1), key))
    keep = g.of("gt", at, 5)
    fused_plan = g.plan(g.of("select", keep, g.of("mul", x, 2.0), x))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X + 8)


# ---- B: reductions and normalisation -----------------------------------------------------------


def test_b1_layer_norm_of_a_sum():
    g = formula()
    x, r, bias = g.input("x", "n", "m"), g.input("r", "n", "m"), g.input("bias", "m")
    scale, shift = g.input("scale", "m"), g.input("shift", "m")
    total = g.of("add", g.of("add", x, bias), r)
    y = g.of("add", g.of("mul", g.normalised(total, 1), scale), shift)
    fused_plan = g.plan(y)
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 3 * X + 3 * 4 * M)
    assert "row-in-fast-memory" in reasons(fused_plan, "fused")


def test_b1_the_sum_is_a_result_too():
    g = formula()
    x, r = g.input("x", "n", "m"), g.input("r", "n", "m")
    total = g.of("add", x, r)
    fused_plan = g.plan(g.normalised(total, 1), total)
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 4 * X)


def test_b2_norms():
    g = formula()
    x, scale = g.input("x", "n", "m"), g.input("scale", "m")
    rms = g.of("rsqrt", g.of("add", g.mean(g.of("mul", x, x), 1, keep=True), 1e-6))
    fused_plan = g.plan(g.of("mul", g.of("mul", x, rms), scale))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X + 4 * M)
    g = formula()
    x, y = g.input("x", "n", "m"), g.input("y", "n", "m")
    dots = [g.fold("sum", g.of("mul", a, b), 1) for a, b in ((x, y), (x, x), (y, y))]
    fused_plan = g.plan(g.of("div", dots[0], g.of("sqrt", g.of("mul", dots[1], dots[2]))))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X + 4 * N)


def test_b2_group_norm_with_silu_is_walked_group_by_group():
    g = Formula(n=8, h=56, w=56)
    x, scale = g.input("x", "n", 256, "h", "w"), g.input("scale", 256)
    groups = g.reshape(x, "n", 32, 8, "h", "w")
    y = g.reshape(g.normalised(groups, 2, 3, 4), "n", 256, "h", "w")
    y = g.silu(g.of("mul", y, g.reshape(scale, 256, 1, 1)))
    fused_plan = g.plan(y)
    whole = 4 * 8 * 256 * 56 * 56
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * whole + 4 * 256)
    assert fused_plan.clusters[0].shape(0) == groups.type.shape


def test_b3_batch_norm_in_training():
    g = Formula(n=32, h=56, w=56)
    x = g.input("x", "n", 64, "h", "w")
    fused_plan = g.plan(g.normalised(x, 0, 2, 3))
    assert kernels(fused_plan) <= 2


@pytest.mark.parametrize("axis", [0, 1])
def test_b4_softmax_over_either_axis(axis: int):
    g = Formula(n=128, m=1 << 16) if axis == 0 else formula()
    x, mask = g.input("x", "n", "m"), g.input("mask", "n", "m")
    fused_plan = g.plan(g.softmax(g.of("add", g.of("mul", x, 0.125), mask), axis))
    assert kernels(fused_plan) == 1
    assert g.bytes(fused_plan)[0] == 3 * X


def test_b4_columns_that_outgrow_fast_memory_are_streamed():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.softmax(x, 0))
    assert kernels(fused_plan) == 1
    assert "cascade" in reasons(fused_plan, "fused")
    assert g.bytes(fused_plan)[0] == 2 * X


def test_b4_log_softmax_of_rows_beyond_all_caches_stores_no_row():
    g = Formula(n=4, m=1 << 24)
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.of("sub", x, g.logsumexp(x)))
    assert kernels(fused_plan) <= 3
    written = {node.type.elements for c in fused_plan.clusters for node in c.outputs}
    assert written <= {x.type.elements, size("n")}


def test_b5_reductions_of_one_array():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(
        *(g.fold(f, x, 1) for f in ("sum", "max", "min", "argmax")), g.centred(x, 1)[1]
    )
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, X + 4 * N * 4 + 8 * N)


def test_b5_of_a_whole_array():
    g = Formula(n=1 << 14, m=1 << 12)
    x = g.input("x", "n", "m")
    fused_plan = g.plan(*(g.fold(f, x, 0, 1) for f in ("sum", "max", "min", "prod")))
    assert (kernels(fused_plan), len(fused_plan.launches)) == (1, 1)
    g = Formula(n=1 << 14, m=1 << 12)
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.mean(x, 0, 1), g.centred(x, 0, 1)[1])
    assert kernels(fused_plan) <= 2


def test_b6_sums_of_rows_and_columns():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.fold("sum", x, 0), g.fold("sum", x, 1))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, X + 4 * N + 4 * M)
    assert reasons(fused_plan, "fused") == {"sibling"}


def test_views_are_free():
    g = formula()
    x = g.input("x", "n", "m")
    y = g.of("exp", g.permute(g.flip(x, 0), 1, 0))
    fused_plan = g.plan(g.fold("sum", y, 0))
    free = [d for d in fused_plan.decisions if d.reason == "free-view"]
    assert [(d.details["a_op"], d.details["b_op"]) for d in free] == [
        ("flip", "exp"),
        ("permute", "exp"),
    ]


def test_b7_a_whole_reduction_with_work_before_and_after():
    g = formula()
    x, y = g.input("x", "n", "m"), g.input("y", "n", "m")
    d = g.of("sub", x, y)
    fused_plan = g.plan(g.of("sqrt", g.mean(g.of("mul", d, d), 0, 1)))
    assert (kernels(fused_plan), len(fused_plan.launches), g.bytes(fused_plan)[0]) == (
        1,
        1,
        2 * X + 4,
    )


def test_b8_divergence_of_two_rows_of_logits():
    g = formula()
    a, b = g.input("a", "n", "m"), g.input("b", "n", "m")
    log_a, log_b = (g.of("sub", v, g.logsumexp(v)) for v in (a, b))
    y = g.fold("sum", g.of("mul", g.of("exp", log_a), g.of("sub", log_a, log_b)), 1)
    fused_plan = g.plan(y)
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X + 4 * N)


def test_b9_a_running_sum_with_work_on_both_sides():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.of("add", g.scan("sum", g.of("mul", x, 2.0), 1), 1.0))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 2 * X)


# ---- F, H --------------------------------------------------------------------------------------


def test_f1_cross_entropy():
    g = Formula(n=1024, m=32000)
    x, label = g.input("x", "n", "m"), g.input("label", "n", dtype=i64)
    chosen = g.gather(x, g.iota("n"), label)
    loss = g.of("sub", g.reshape(g.logsumexp(x), "n"), chosen)
    fused_plan = g.plan(g.mean(loss, 0))
    assert kernels(fused_plan) == 1
    assert g.bytes(fused_plan)[0] <= 4 * 1024 * 32000 + (8 + 4) * 1024 + 4


def test_f1_cross_entropy_of_gathered_log_softmax():
    g = Formula(n=1024, m=32000)
    x, label = g.input("x", "n", "m"), g.input("label", "n", dtype=i64)
    logs = g.of("sub", x, g.logsumexp(x))
    fused_plan = g.plan(g.mean(g.of("neg", g.gather(logs, g.iota("n"), label)), 0))
    assert kernels(fused_plan) <= 2
    assert all(logs not in c.outputs for c in fused_plan.clusters)


def test_h1_one_long_row_is_one_kernel():
    g = Formula(n=1 << 26)
    x = g.input("x", "n")
    fused_plan = g.plan(g.fold("sum", g.of("exp", x), 0))
    assert (kernels(fused_plan), g.bytes(fused_plan)[0]) == (1, 4 * (1 << 26) + 4)


def test_h2_an_expensive_value_read_by_many_is_stored_once():
    g = formula()
    x = g.input("x", "n", "m")
    dear = x
    for _ in range(12):
        dear = g.of("erf", dear)
    y = g.sort(g.of("add", dear, 1.0))
    for _ in range(5):
        y = g.sort(g.of("add", y, dear))
    fused_plan = g.plan(y)
    times = sum(dear in c.nodes for c in fused_plan.clusters)
    assert times == 1
    assert sum(dear in c.outputs for c in fused_plan.clusters) == 1


def test_h3_many_inputs_are_split_where_few_bytes_cross():
    g = formula()
    xs = [g.input(f"x{k}", "n", "m") for k in range(60)]
    parts = []
    for k in range(0, 60, 5):
        part = xs[k]
        for x in xs[k + 1 : k + 5]:
            for _ in range(2):
                part = g.of("add", g.of("abs", g.of("mul", part, x)), 1.0)
        parts.append(part)
    total = parts[0]
    for p in parts[1:]:
        total = g.of("max", g.of("square", total), p)
    fused_plan = g.plan(total)
    assert 2 <= kernels(fused_plan) <= 6
    assert g.bytes(fused_plan)[0] <= (60 + 1 + 2 * 5) * X
    assert all(len(c.inputs) <= 30 for c in fused_plan.clusters)


def test_h5_a_library_call_in_a_chain_is_one_call_more():
    g = formula()
    x = g.input("x", "n", "m")
    before = g.of("exp", g.of("add", x, 1.0))
    fused_plan = g.plan(g.of("log", g.of("abs", g.sort(before))))
    assert (kernels(fused_plan), calls(fused_plan)) == (2, 1)
    assert g.bytes(fused_plan)[0] == 6 * X
    assert {d.reason for d in between(fused_plan, "exp", "extern.test_sorted")} == {
        "extern-barrier"
    }


def test_without_fusion_every_operator_is_a_kernel():
    g = formula()
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.permute(g.softmax(x), 1, 0), fuse=False)
    assert kernels(fused_plan) == 6
    assert reasons(fused_plan, "split") == {"fuse-off"}
    fused, apart = g.bytes(fused_plan)
    assert fused == apart


def test_results_that_are_inputs_need_no_kernel():
    g = formula()
    x = g.input("x", "n", "m")
    y = g.of("exp", x)
    fused_plan = g.plan(x, y, y)
    assert len(fused_plan.clusters) == 1
    assert plan(g.graph(x), MACHINE, None, {}).clusters == ()
