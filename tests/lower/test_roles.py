"""Roles of axes: which are grid, which are split, independent of sizes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue.harness import MACHINE
from tests.codegen.llvm.single_kernel import one_cluster

from smelt import lower
from smelt.backend.gpus import gpu
from smelt.fusion.bitsets import Hints
from smelt.fusion.predict import cost_model
from smelt.fusion.region import region_of
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.kernel.ir import Block, Kernel, Split, Stream
from smelt.kernel.text import text
from smelt.kernel.verify import verify
from smelt.machine.blocks import MIN_TASKS, PARTS, PRODUCT_PARTS, SPLIT_ABOVE
from smelt.tune.scheduled_gpu import scheduled
from smelt.types.expr import Index, evaluate, sizes_of


def lowered(lines: str, args: str = "x: f32[n,m]", **hints: int) -> Kernel:
    graph = parse(f"graph f({args}) {{\n{lines}\n}}")
    return verify(lower.run(one_cluster(graph), "eager", hints))


def grid(kernel: Kernel) -> list[str]:
    return [b.axis for b in kernel.grid if isinstance(b, Block)]


def parts(of: Index, n: int) -> int:
    """How many parts there are where all sizes are `n`."""
    return int(evaluate(of, dict.fromkeys(sizes_of(of), n)))


def split(kernel: Kernel) -> str | None:
    actual = [b.axis for b in kernel.grid if isinstance(b, Split)]
    assert len(actual) <= 1
    for b in kernel.grid:
        if isinstance(b, Split):
            most = PRODUCT_PARTS if " dot(" in text(kernel) else PARTS
            assert [parts(b.parts, n) for n in (0, 1, 1 << 20)] == [1, 1, most]
    assert len(actual) == sum(isinstance(s, Stream) for s in kernel.body)
    return actual[0] if actual else None


SUM = "a = reduce.sum(x) {{axes=({},)}}\nreturn a"


@pytest.mark.parametrize(
    ("lines", "roles"),
    [
        ("a = exp(x)\nreturn a", ["n", "m"]),
        (SUM.format(0), ["m"]),
        (SUM.format(1), ["n"]),
        ("a = scan.sum(x) {axis=0}\nreturn a", ["m"]),
        ("a = scan.sum(x) {axis=1}\nreturn a", ["n"]),
        ("a = reduce.sum(x) {axes=(0,1)}\nreturn a", []),
        ("a = reduce.sum(x) {axes=(0,)}\nb = sub(x, a)\nreturn b", ["m"]),
        ("a = reduce.sum(x) {axes=(1,)}\nb = exp(x)\nreturn a, b", ["n"]),
        ("a = reduce.sum(x) {axes=(1,)}\nb = reduce.sum(x) {axes=(0,)}\nreturn a, b", []),
        ("a = permute(x) {perm=(1,0)}\nreturn a", ["m", "n"]),
        ('a = contract(x, x) {spec="i,k; j,k -> i,j"}\nreturn a', ["n", "n2"]),
        (
            'a = contract(x, x) {spec="i,k; j,k -> i,j"}\nb = reduce.max(a) {axes=(1,)}\nreturn b',
            ["n"],
        ),
        ("a = reduce.sum(x) {axes=(0,1)}\nb = sub(x, a)\nreturn b", []),
    ],
)
def test_independent_positions_are_grid(lines: str, roles: list[str]) -> None:
    assert grid(lowered(lines, n=8, m=8)) == roles


@pytest.mark.parametrize(
    ("lines", "axis"),
    [
        (SUM.format(0), "n"),
        (SUM.format(1), "m"),
        ("a = reduce.sum(x) {axes=(0,1)}\nreturn a", "n"),
        ("a = reduce.sum(x) {axes=(0,1)}\nb = reduce.max(x) {axes=(0,1)}\nreturn a, b", "n"),
        ("a = reduce.sum(x) {axes=(0,1)}\nb = reduce.max(x) {axes=(0,)}\nreturn a, b", "n"),
        ('a = contract(x, x) {spec="i,k; i,k -> "}\nreturn a', "n"),
        ('a = contract(x, x) {spec="k,m; k,n -> m,n"}\nb = exp(a)\nreturn b', "n"),
        ("a = reduce.argmax(x) {axes=(0,)}\nreturn a", "n"),
        ("a = reduce.argmax(x) {axes=(0,)}\nb = reduce.sum(x) {axes=(0,)}\nreturn a, b", "n"),
        ("a = reduce.argmax(x) {axes=(0,1)}\nreturn a", "n"),
        ("a = reduce.argmax(x) {axes=(0,1)}\nb = reduce.sum(x) {axes=(0,1)}\nreturn a, b", "n"),
        # what cannot be done in one sweep, or not in parts:
        (
            (
                "a = reduce.max(x) {axes=(0,1)}\nb = sub(x, a)\nc = reduce.sum(b) {axes=(0,1)}\n"
                "return c"
            ),
            None,
        ),
        ("a = reduce.sum(x) {axes=(0,1)}\nb = sub(x, a)\nreturn b", None),
        ('a = contract(x, x) {spec="m,k; n,k -> m,n"}\nreturn a', None),
        ("a = scan.sum(x) {axis=0}\nb = reduce.sum(a) {axes=(0,1)}\nreturn b", None),
    ],
)
def test_what_is_split(lines: str, axis: str | None) -> None:
    few = {"n": 2, "m": 2}
    if axis in (None, "n"):
        few["n"] = 1 << 20
    if axis in (None, "m"):
        few["m"] = 1 << 20
    assert split(lowered(lines, **few)) == axis


def test_a_column_reduction_inside_a_cascade_is_split_by_the_other_axis() -> None:
    """Rows may be split: the maximum of a row waits for no other row."""
    kernel = lowered(
        "a = reduce.max(x) {axes=(1,)}\nb = reduce.sum(a) {axes=(0,)}\nreturn b", n=1 << 20, m=8
    )
    assert split(kernel) == "n"


@pytest.mark.parametrize(
    ("sizes", "axis"),
    [
        ({"n": 8, "m": 1 << 8, "k": 1 << 6}, "m"),
        ({"n": 1 << 10, "m": 2, "k": 1 << 11}, "n"),
        ({"n": 8, "m": 4, "k": 1 << 11}, "n"),
        ({"n": 8, "m": 4, "k": 1 << 13}, "k"),
    ],
)
def test_parts_are_not_a_few_elements_of_a_line(sizes: dict[str, int], axis: str) -> None:
    """What memory is walked along is split only where each part is some vectors long."""
    kernel = lowered("a = reduce.sum(x) {axes=(0,1,2)}\nreturn a", "x: f32[n,m,k]", **sizes)
    assert split(kernel) == axis


def test_only_long_reductions_of_few_results_are_split() -> None:
    limit = SPLIT_ABOVE
    assert split(lowered(SUM.format(0), "x: f32[n]", n=limit - 1)) is None
    assert split(lowered(SUM.format(0), "x: f32[n]", n=limit)) == "n"
    rows = {"n": MIN_TASKS - 1, "m": 1 << 20}
    assert split(lowered(SUM.format(1), **rows)) == "m"
    assert split(lowered(SUM.format(1), **{**rows, "n": MIN_TASKS})) is None


def test_parts_of_columns_have_rows_enough() -> None:
    """Otherwise they would write and read again as much as they fold."""
    for rows, parts in ((127, []), (128, [2]), (1000, [15]), (1 << 20, [64])):
        kernel = lowered(SUM.format(0), f"x: f32[{rows},2000]")
        assert [b.parts for b in kernel.grid if isinstance(b, Split)] == parts
    whole = lowered("a = reduce.sum(x) {axes=(0,1)}\nreturn a", "x: f32[20,2000]")
    assert [b.parts for b in whole.grid if isinstance(b, Split)] == [20]


def test_many_sums_of_columns_are_tasks_enough() -> None:
    """Fewer columns go together where each is folded many times, so that none need be split."""

    def sums(count: int) -> str:
        each = "a{0} = mul(x, {0}.5:f32)\nb{0} = exp(a{0})\nc{0} = reduce.sum(b{0}) {{axes=(0,)}}"
        lines = [each.format(k) for k in range(count)]
        return "\n".join([*lines, "return " + ", ".join(f"c{k}" for k in range(count))])

    columns = 32 * MIN_TASKS
    few, many = (lowered(sums(n), n=1 << 12, m=columns) for n in (2, 40))
    assert split(few) == "n" and split(many) is None


def test_numbers_for_rows_do_not_make_rows_columns() -> None:
    """A thousand independent rows are enough, whatever else is read once for each of them."""
    lines = "a = reduce.sum(x) {axes=(1,)}\nb = mul(a, y)\nreturn b"
    assert split(lowered(lines, "x: f32[n,m], y: f32[n]", n=1000, m=1000)) is None
    gathered = "a = gather(x, i) {first=0}\nb = reduce.sum(a) {axes=(1,)}\nreturn b"
    assert split(lowered(gathered, "x: f32[n,m], i: i64[n]", n=1000, m=1000)) is None
    assert split(lowered(SUM.format(0), n=1 << 16, m=1000)) == "n"


FORCES = """a = reshape(x) {shape=(n,1,m)}
b = reshape(x) {shape=(1,n,m)}
c = sub(a, b)
d = reshape(t) {shape=(n,n,1)}
e = mul(c, d)
f = reduce.sum(e) {axes=(1,)}
g = permute(t) {perm=(1,0)}
h = reshape(g) {shape=(n,n,1)}
i = mul(c, h)
j = reduce.sum(i) {axes=(1,)}
k = sub(f, j)
return k"""


@pytest.mark.parametrize(("n", "m"), [(500, 3), (3, 500), (500, 500)])
def test_vectors_take_one_of_several_axes_that_arrays_run_along(n: int, m: int) -> None:
    """Rows of one array are columns of another: the other axis is tasks, whichever vectors take."""
    assert split(lowered(FORCES, "x: f32[n,m], t: f32[n,n]", n=n, m=m)) is None


def test_sizes_decide_nothing_but_the_split() -> None:
    lines = "a = exp(x)\nb = reduce.sum(a) {axes=(1,)}\nc = sqrt(b)\nreturn c"
    whole, parts = lowered(lines, n=1000, m=1000), lowered(lines, n=1, m=1 << 20)
    assert text(whole) == text(lowered(lines, n=999, m=1 << 22))
    assert text(parts) == text(lowered(lines, n=2, m=1 << 25))
    assert split(whole) is None
    assert split(parts) == "m"


@pytest.mark.parametrize("sizes", [("p", "q"), ("p", "part"), ("part", "p"), ("p0", "p")])
def test_the_number_of_the_part_has_a_name_of_its_own(sizes: tuple[str, str]) -> None:
    for args in (f"x: f32[{sizes[0]},{sizes[1]}]", f"{sizes[0]}: f32[{sizes[1]},{sizes[0]}]"):
        name = args.split(":")[0]
        hints = dict.fromkeys(sizes, 1 << 12)
        kernel = lowered(f"a = reduce.sum({name}) {{axes=(0,1)}}\nreturn a", args, **hints)
        assert split(kernel) is not None
        assert kernel.grid[-1].name not in {a.name for a in kernel.axes}  # type: ignore[union-attr]


def test_the_stream_holds_only_what_its_reductions_and_stores_read() -> None:
    kernel = lowered(
        "a = exp(x)\nb = reduce.sum(a) {axes=(0,)}\nc = cos(y)\nd = mul(b, c)\ne = sin(x)\n"
        "return d, e",
        "x: f32[n], y: f32[]",
        n=1 << 20,
    )
    shown = text(kernel)
    inside = "\n".join(line for line in shown.splitlines() if line.startswith("    "))
    assert "cos" not in inside
    assert len(re.findall(r"exp|sin", inside)) == 2
    assert shown.index("cos") > shown.index("merge")


REDUCED = {
    "columns": SUM.format(0),
    "all": "a = reduce.sum(x) {axes=(0,1)}\nreturn a",
    "rows and columns": "a = reduce.sum(x) {axes=(1,)}\nb = reduce.sum(x) {axes=(0,)}\nreturn a, b",
    "columns and all": "a = reduce.max(x) {axes=(0,)}\nb = reduce.sum(x) {axes=(0,1)}\nreturn a, b",
    "transposed": "t = permute(x) {perm=(1,0)}\na = reduce.sum(t) {axes=(0,1)}\nreturn a",
    "positions": "a = reduce.argmax(x) {axes=(0,)}\nreturn a",
    "centred": "a = reduce.sum(x) {axes=(1,)}\nk = reshape(a) {shape=(n, 1)}\nb = sub(x, k)\n"
    "c = reduce.sum(b) {axes=(0,)}\nreturn c",
}


SIZES = st.integers(100, 400) | st.integers(1, 1 << 13)


@settings(max_examples=100, deadline=None)
@given(
    lines=st.sampled_from(list(REDUCED.values())),
    rows=SIZES,
    columns=SIZES,
    machine=st.sampled_from([MACHINE, scheduled(gpu("h100"))]),
)
def test_the_planner_predicts_the_axis_that_is_split(lines, rows, columns, machine):
    graph = parse(f"graph f(x: f32[n,m]) {{\n{lines}\n}}")
    sizes, cluster, units = {"n": rows, "m": columns}, one_cluster(graph), Units(graph)
    model = cost_model(units, machine, Hints(sizes))
    region = region_of(units, cluster)
    planned = ScheduleModel(units, region, model.extents, machine.tiling).split
    kernel = lower.run(cluster, "eager", sizes, machine.tiling)
    actual = [kernel.axis(b.axis).extent for b in kernel.grid if isinstance(b, Split)]
    if planned and actual:
        assert units.extents[region.axes[planned.bit_length() - 1]] == actual[0]
